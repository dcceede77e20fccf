"""Regions: sites are fetched by rule, by measured latency, or elsewhere if their region has no workers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import redis

from gossamer.clock import SystemClock
from gossamer.engine.commit import FleetStore
from gossamer.engine.heartbeat import HeartbeatSender, heartbeats, live_regions
from gossamer.engine.links import Linker, RecentKeys
from gossamer.engine.regions import RegionChooser, RegionContext
from gossamer.engine.run import Engine
from gossamer.errors import ConnectFailed
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.base import FleetFrontier
from gossamer.jobs.fleet import merge_regions
from gossamer.jobs.worker import build_worker, places_of
from gossamer.lab.simweb.log import SimRequest, gaps
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Heartbeat, Lease, Request
from gossamer.settings import Settings, build
from gossamer.storage.segments import SegmentSink
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import environment, rows, until

NEAR, FAR = "127.0.0.1", "127.0.0.9"
FAR_SECONDS = 0.15
DELAY = 0.02
BEAT_SECONDS = 0.4
SITES, PAGES = 8, 40


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    return redis_server


class Place(NamedTuple):
    """Where a job is, if that is not a server."""

    url: str


@pytest.fixture(params=["redis", "folder"])
def place(request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path) -> RedisServer | Place:
    return server if request.param == "redis" else Place(f"folder:{tmp_path}/shared")


@asynccontextmanager
async def far_away(port: int) -> AsyncIterator[None]:
    """The same web at another address, from which every request arrives late."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(seconds)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(NEAR, port)
        await asyncio.gather(carry(reader, requests, FAR_SECONDS), carry(answers, writer, 0.0))

    relay = await asyncio.start_server(accept, FAR, port)
    try:
        yield
    finally:
        relay.close()


class Member:
    """A worker of a region, which sees the even sites near and the odd ones far away if it is in eu."""

    def __init__(self, url: str, folder: Path, region: str, *, name: str = "") -> None:
        self._url = url
        self._name = name or region
        self._folder = folder
        self.region = region
        self.places: RegionContext | None = None
        self.engine: Engine | None = None

    async def run(self) -> None:
        """Work to the end."""
        frontier = await open_fleet(self._url, "job", worker=self._name, region=self.region)
        settings = msgspec.structs.replace(
            frontier.settings, user_agent=f"gossamer in {self.region}", resolve=tuple(self._addresses())
        )
        clock = SystemClock()
        self.places = places_of(settings, self.region, clock)
        if self.places is not None:
            # The relay is late only with what it carries: it takes connections at once.
            self.places.connects = None
        store = FleetStore(frontier, [SegmentSink(self._folder, self._name)])
        async with build_worker(
            frontier, store, settings=settings, secret=frontier.secret, clock=clock, places=self.places
        ) as self.engine:
            one_heartbeat = Heartbeat(worker=self._name, region=self.region)
            heart = HeartbeatSender(
                frontier, self.engine, heartbeat=one_heartbeat, clock=clock, places=self.places, every=BEAT_SECONDS
            )
            async with heartbeats(heart):
                await self.engine.run()
        await store.aclose()
        await frontier.aclose()

    def _addresses(self) -> Iterator[str]:
        for site in range(SITES):
            yield f"s{site}.sim={NEAR if (site % 2 == 0) == (self.region == 'eu') else FAR}"


async def submit(server: RedisServer | Place, web: SimWeb, settings: Settings) -> FleetFrontier:
    """The job, paused until somebody lets it run."""
    frontier = await create_fleet(server.url, "job", settings)
    linker = Linker(settings, frontier.secret, RecentKeys())
    await frontier.add([linker.seed(url) for url in web.seeds])
    await frontier.steer("paused")
    return frontier


def job(**values: Any) -> Settings:
    return build({"allow_private": True, "delay": DELAY, "batch": 4, "commit_seconds": 0.02, **values})


def from_regions(log: Sequence[SimRequest]) -> dict[str, list[str]]:
    """The regions that each site was fetched from, page by page."""
    found: dict[str, list[str]] = {}
    for entry in log:
        found.setdefault(entry.site.partition(".")[0], []).append(entry.agent.rpartition(" ")[2])
    return found


def is_whole(web: SimWeb) -> None:
    assert not web.judge().missed
    assert min(gaps(web.log()).values()) >= DELAY


def test_sites_move_to_the_region_that_is_near_them_and_stay_there(server: RedisServer, tmp_path: Path) -> None:
    async def scenario(web: SimWeb) -> None:
        frontier = await submit(server, web, job(region_by="auto"))
        members = [Member(server.url, tmp_path, region) for region in ("eu", "us")]
        async with far_away(web.plan.port), asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(member.run())
            while not all(member.places and member.places.live == {"eu", "us"} for member in members):
                await asyncio.sleep(0.02)
            await frontier.steer("running")
        await frontier.aclose()

    with SimWeb(sites=SITES, pages_per_site=PAGES, page_bytes=2000, names=True) as web:
        asyncio.run(asyncio.wait_for(scenario(web), 60))
        is_whole(web)
        assert not web.judge().repeated
        for site, regions in from_regions(web.log()).items():
            near = "eu" if int(site[1:]) % 2 == 0 else "us"
            assert regions.count(near) > PAGES * 3 // 4, site
            assert set(regions[PAGES // 2 :]) == {near}, site
            assert len(list(groupby(regions))) <= 4, f"{site} went back and forth: {regions}"


@pytest.mark.parametrize(
    ("place", "region_by"),
    [
        ("redis", "rules"),
        pytest.param("redis", "auto", marks=pytest.mark.long),
        pytest.param("folder", "rules", marks=pytest.mark.long),
    ],
    indirect=["place"],
)
def test_a_region_whose_worker_died_waits_under_rules_and_is_taken_over_under_auto(
    place: RedisServer | Place, tmp_path: Path, region_by: str
) -> None:
    settings = job(
        region_by=region_by, regions={"eu": ["s0.sim", "s2.sim"], "us": ["*"]}, lease_seconds=1.0, max_deliveries=50
    )

    async def prepare(web: SimWeb) -> None:
        await (await submit(place, web, settings)).aclose()

    async def scenario(web: SimWeb, dying: subprocess.Popen[bytes]) -> float:
        """When the worker died."""
        frontier = await open_fleet(place.url, "job")
        eu, us = Member(place.url, tmp_path, "eu"), Member(place.url, tmp_path, "us")
        async with far_away(web.plan.port):
            try:
                while "us" not in live_regions(await frontier.workers()):
                    await asyncio.sleep(0.02)
                staying = asyncio.create_task(eu.run())
                await frontier.steer("running")
                while from_regions(web.log()).get("s1", []).count("us") < 8:
                    await asyncio.sleep(0.02)
            finally:
                dying.kill()
                dying.wait()
            died_at = SystemClock().epoch()
            if region_by == "auto":
                await staying
            else:
                while (view := merge_regions(await frontier.shards()))["eu"].ready + view["eu"].later:
                    await asyncio.sleep(0.05)
                assert view["us"].ready + view["us"].later == SITES - 2
                assert not staying.done(), "others may bring links"
                assert not (await frontier.counts()).finished
                await asyncio.gather(us.run(), staying)
        await frontier.aclose()
        return died_at

    with SimWeb(sites=SITES, pages_per_site=PAGES, page_bytes=2000, names=True) as web:
        asyncio.run(prepare(web))
        dying = subprocess.Popen([sys.executable, __file__, place.url, str(tmp_path), "us"], env=environment())
        died_at = asyncio.run(asyncio.wait_for(scenario(web, dying), 90))
        is_whole(web)
        # What it had sent may still have been on its way.
        late = from_regions([entry for entry in web.log() if entry.arrived_at > died_at + 4 * FAR_SECONDS])
        if region_by == "auto":
            assert {region for regions in late.values() for region in regions} == {"eu"}
        else:
            for site, regions in from_regions(web.log()).items():
                assert set(regions) == {"eu" if site in ("s0", "s2") else "us"}


def test_a_worker_without_a_region_leases_from_regions_that_have_no_worker(server: RedisServer, tmp_path: Path) -> None:
    """It moves no site: the sites stay in their region."""

    async def scenario(web: SimWeb) -> dict[str, Any]:
        frontier = await submit(server, web, job(region_by="auto", regions={"us": ["*"]}))
        await frontier.steer("running")
        async with far_away(web.plan.port):
            await Member(server.url, tmp_path, "", name="anybody").run()
        assert (await frontier.counts()).finished
        moved = {site: ((await frontier.site(site)) or {})["memo"] for site in {entry.site for entry in web.log()}}
        await frontier.aclose()
        return moved

    with SimWeb(sites=2, pages_per_site=3, page_bytes=2000, names=True) as web:
        moved = asyncio.run(asyncio.wait_for(scenario(web), 60))
        is_whole(web)
        assert len(moved) == 2
        assert not any("connect" in memo for memo in moved.values())


def lease(memo: dict[str, Any] | None = None, *, lane: int = 0, requests: int = 4) -> Lease:
    batch = tuple(Request(url=f"http://x.org/{number}", key=number + 1) for number in range(requests))
    return Lease(site="x.org", lane=lane, token=7, requests=batch, ttl=60.0, delay=1.0, memo=memo or {})


def test_without_connect_times_a_site_is_judged_by_its_fastest_answer_after_a_few_pages() -> None:
    placing = RegionChooser(lease(), RegionContext("eu", 60.0, frozenset({"eu", "us"})))
    for latency in (0.4, 0.2):
        placing.saw(latency, "")
        assert placing.after_page() is None
    placing.saw(0.3, "")
    note = placing.after_page()
    assert note is not None
    assert (note.region, note.token, note.memo) == ("us", 7, {"connect": {"eu": 0.2}, "home": "", "moves": 0})
    assert placing.leaves
    placing.saw(0.1, "")
    assert placing.after_page() is None, "once for a lease"


def test_unchanged_measurements_write_no_note() -> None:
    memo = {"connect": {"eu": 0.02}, "home": "eu", "moves": 0}
    placing = RegionChooser(lease(memo, requests=1), RegionContext("eu", 60.0, frozenset({"eu", "us"})))
    placing.saw(0.022, "")
    assert placing.after_page() is None
    other = RegionChooser(lease(memo, requests=1), RegionContext("eu", 60.0, frozenset({"eu", "us"})))
    other.saw(0.3, "")
    note = other.after_page()
    assert note is not None
    assert note.region == "us"


def test_only_the_first_lane_of_a_site_decides() -> None:
    placing = RegionChooser(lease(lane=1, requests=1), RegionContext("eu", 60.0, frozenset({"eu", "us"})))
    placing.saw(5.0, "")
    assert placing.after_page() is None
    assert placing.after_fault(ConnectFailed("no")) is None


def test_a_site_that_was_never_reached_from_here_is_tried_from_elsewhere() -> None:
    places = RegionContext("eu", 60.0, frozenset({"eu", "us"}))
    note = RegionChooser(lease(), places).after_fault(ConnectFailed("no"))
    assert note is not None
    assert (note.region, note.memo) == ("us", {"connect": {"eu": 60.0}, "home": "", "moves": 0})
    reached = {"connect": {"eu": 0.3, "us": 0.4}, "home": "eu", "moves": 0}
    assert RegionChooser(lease(reached), places).after_fault(ConnectFailed("no")) is None, (
        "a passing fault moves nothing"
    )


def gossamer(server: RedisServer | Place, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
        env={**environment(), "GOSSAMER_FRONTIER": server.url, **changes},
    )  # fmt: skip


@contextmanager
def joined(server: RedisServer | Place, name: str, *options: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """A worker for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "worker", "--job", "job", "--name", name, *options],
        stderr=subprocess.PIPE, text=True, env={**environment(), "GOSSAMER_FRONTIER": server.url, **changes},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ends_well(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said


def sites_of(folder: Path, name: str) -> set[str]:
    """The hosts of what a worker stored."""
    found = (row for path in (folder / "segments").glob(f"{name}*") for row in rows(path))
    return {row["page"]["url"].split("/")[2].partition(":")[0] for row in found}


def submitted(server: RedisServer | Place, web: SimWeb, folder: Path, *options: str) -> None:
    (folder / "seeds").write_text("\n".join(web.seeds))
    made = gossamer(
        server, "submit", "--seeds", str(folder / "seeds"), "--job", "job", "--allow-private", "--delay", str(DELAY),
        "--sink", f"jsonl:{folder}/out", *options,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr


def test_workers_take_the_sites_of_their_region_and_of_none(place: RedisServer | Place, tmp_path: Path) -> None:
    with SimWeb(sites=6, pages_per_site=20, page_bytes=2000) as web:
        hosts = [web.plan.host(site) for site in range(6)]
        submitted(place, web, tmp_path, "--regions", f"eu={hosts[0]},{hosts[1]}", "--regions", f"us={hosts[2]}")
        with joined(place, "first", "--region", "eu") as eu:
            until(lambda: len(web.log()) >= 5 * 21)
            status = gossamer(place, "status", "job").stdout
            assert "region us has 1 site to crawl, but no worker" in status
            assert eu.poll() is None, "it waits for what others may find"
            with joined(place, "second", GOSSAMER_REGION="us") as us:
                ends_well(eu, us)
        assert not web.judge().missed
        assert not web.judge().repeated
    assert sites_of(tmp_path / "out", "first") == {*hosts[:2], *hosts[3:]}
    assert sites_of(tmp_path / "out", "second") == {hosts[2]}


def test_workers_take_their_part_of_the_shards(server: RedisServer, tmp_path: Path) -> None:
    with SimWeb(sites=12, pages_per_site=10, page_bytes=2000) as web:
        submitted(server, web, tmp_path, "--shards", "8")
        with (
            joined(server, "first", "--shards", "0-3/8") as first_half,
            joined(server, "second", GOSSAMER_SHARDS="4-7/8") as second_half,
        ):
            ends_well(first_half, second_half)
        assert not web.judge().missed
        assert not web.judge().repeated
    first, second = sites_of(tmp_path / "out", "first"), sites_of(tmp_path / "out", "second")
    assert len(first | second) == 12
    assert not first & second
    assert min(len(first), len(second)) > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--shards", "0-3/4"), "has 8 shards, not 4"),
        (("--shards", "5-3/8"), "write 3-5/8"),
        (("--shards", "some"), "not a range"),
        (("--region", "e u"), "not a name"),
    ],
)
def test_a_part_or_region_that_cannot_be_is_refused(
    server: RedisServer, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    made = gossamer(
        server, "submit", "https://a.test", "--job", "job", "--shards", "0-7/8", "--sink", f"jsonl:{tmp_path}"
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    refused = gossamer(server, "worker", "--job", "job", *options)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "hint:" in refused.stderr


def test_a_crawl_gives_its_region_and_part_to_its_workers(server: RedisServer, tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=12, page_bytes=2000) as web:
        folder = tmp_path / "crawl"
        options = ("--region", "eu", "--shards", "2", "--workers", "2", "--regions", "eu=*", "--job", str(folder))
        done = gossamer(server, "crawl", *web.seeds, *options, "--allow-private", "--delay", str(DELAY))
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
    assert "region =" not in (folder / "job.toml").read_text()
    assert "shards =" not in (folder / "job.toml").read_text()


def test_regions_and_shards_are_for_fleets(server: RedisServer, tmp_path: Path) -> None:
    for option in (("--region", "eu"), ("--shards", "0/4")):
        refused = gossamer(server, "crawl", "https://a.test", "--job", str(tmp_path), *option, GOSSAMER_FRONTIER="")
        assert refused.returncode == 2
        assert "for fleets" in refused.stderr


if __name__ == "__main__":
    asyncio.run(Member(sys.argv[1], Path(sys.argv[2]), sys.argv[3]).run())
