"""Sites move to the region with the shortest connect time, however slow their servers are."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import msgspec
import pytest

from gossamer.clock import SystemClock
from gossamer.download.client import HttpDownloader
from gossamer.engine import regions
from gossamer.engine.commit import FleetStore
from gossamer.engine.heartbeat import HeartbeatSender, heartbeats
from gossamer.engine.links import Linker, RecentKeys
from gossamer.engine.regions import RegionChooser, RegionContext, RoundTrips
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.jobs.worker import build_worker, places_of
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Heartbeat, Lease, Request
from gossamer.settings import build
from gossamer.storage.segments import SegmentSink
from gossamer.testing.servers import RedisServer

NEAR, HERE, FAR = "127.0.0.1", "10.99.0.1", "10.99.0.2"
WAY_SECONDS, THOUGHT_SECONDS = 0.08, 0.2
SITES, PAGES = 4, 8


@contextmanager
def late_link() -> Iterator[None]:
    """HERE at a distance, as FAR: a device whose packets come back after a while, with their addresses exchanged."""
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, 0x400454CA, pack("16sH", b"late", 0x1001))  # TUNSETIFF; IFF_TUN, without a header of its own
    for words in (f"address add {HERE}/24 dev late", "link set late up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    packets: deque[tuple[float, bytes]] = deque()
    came = threading.Event()

    def take() -> None:
        while packet := os.read(file, 65536):
            packets.append((time.monotonic() + WAY_SECONDS, packet))
            came.set()

    def give() -> None:
        while True:
            came.wait()
            came.clear()
            while packets:
                due, packet = packets.popleft()
                time.sleep(max(0.0, due - time.monotonic()))
                if packet[0] >> 4 == 4:
                    os.write(file, packet[:12] + packet[16:20] + packet[12:16] + packet[20:])

    for work in (take, give):
        threading.Thread(target=work, daemon=True).start()
    yield


async def relay(port: int) -> asyncio.Server:
    """The web at HERE too, without any delay of its own."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(NEAR, port)
        await asyncio.gather(carry(reader, requests), carry(answers, writer))

    return await asyncio.start_server(accept, HERE, port)


async def member(url: str, folder: Path, region: str, seen: dict[str, RegionContext]) -> None:
    """A worker of a region: the even sites are near eu, the odd ones near us."""
    frontier = await open_fleet(url, "job", worker=region, region=region)
    hosts = [f"s{site}.sim={NEAR if (site % 2 == 0) == (region == 'eu') else FAR}" for site in range(SITES)]
    settings = msgspec.structs.replace(
        frontier.settings, user_agent=f"gossamer in {region}", resolve=tuple(hosts), allow_private=True
    )
    clock = SystemClock()
    places = places_of(settings, region, clock)
    assert places is not None
    seen[region] = places
    store = FleetStore(frontier, [SegmentSink(folder, region)])
    async with build_worker(
        frontier, store, settings=settings, secret=frontier.secret, clock=clock, places=places
    ) as engine:
        one_heartbeat = Heartbeat(worker=region, region=region)
        async with heartbeats(HeartbeatSender(frontier, engine, heartbeat=one_heartbeat, clock=clock, places=places)):
            await engine.run()
    await store.aclose()
    await frontier.aclose()


async def crawl(server: RedisServer, web: SimWeb, folder: Path) -> dict[str, dict[str, float]]:
    """A crawl by two regions; what was measured of each site."""
    settings = build({"allow_private": True, "delay": 0.01, "batch": 4, "region_by": "auto"})
    frontier = await create_fleet(server.url, "job", settings)
    linker = Linker(settings, frontier.secret, RecentKeys())
    await frontier.add([linker.seed(url) for url in web.seeds])
    await frontier.steer("paused")
    far = await relay(web.plan.port)
    seen: dict[str, RegionContext] = {}
    async with asyncio.TaskGroup() as tasks:
        for region in ("eu", "us"):
            tasks.create_task(member(server.url, folder, region, seen))
        while len(seen) < 2 or not all(places.live for places in seen.values()):
            await asyncio.sleep(0.02)
        for places in seen.values():
            # Their first look was at the start; the next one comes when this is over.
            places.live = frozenset(seen)
        await frontier.steer("running")
    output = {name: await frontier.site(name) for name in {entry.site for entry in web.log()}}
    await frontier.aclose()
    far.close()
    return {name: (site or {})["memo"]["connect"] for name, site in output.items()}


def run_apart(folder: Path) -> None:
    """The whole scenario, in a network namespace of its own."""
    with (
        late_link(),
        RedisServer() as server,
        SimWeb(sites=SITES, pages_per_site=PAGES, page_bytes=1500, names=True, latency_seconds=THOUGHT_SECONDS) as web,
    ):
        measured = asyncio.run(asyncio.wait_for(crawl(server, web, folder), 50))
        assert not web.judge().missed
        regions: dict[str, list[str]] = {}
        for entry in web.log():
            regions.setdefault(entry.site, []).append(entry.agent.rpartition(" ")[2])
    for name, seconds in measured.items():
        near = "eu" if int(name[1]) % 2 == 0 else "us"
        assert seconds[near] < 0.05, (name, seconds)
        assert all(value >= 2 * WAY_SECONDS for region, value in seconds.items() if region != near), (name, seconds)
        came = regions[name]
        # Robots.txt and the first page tell that it is far; one that is near does not go and look elsewhere.
        assert came.count(near) >= len(came) - 2, (name, came)
        assert came[0] != near or set(came) == {near}, (name, came)


def test_a_site_moves_to_where_connecting_takes_the_least_and_slow_servers_stay(tmp_path: Path) -> None:
    apart = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    probe = [*apart, sys.executable, __file__, "probe"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no network namespace with a device of our own here: distances are not checked")
    done = subprocess.run(
        [*apart, sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=90, check=False
    )
    assert not done.returncode, done.stderr[-3000:]


def test_what_connecting_takes_is_known_of_open_connections_and_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none is open, or the system does not tell, the time to the headers counts."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(THOUGHT_SECONDS)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(answer, NEAR, 0)
        downloader = HttpDownloader(build({"allow_private": True}), SystemClock())
        url = f"http://{NEAR}:{server.sockets[0].getsockname()[1]}/"
        response = await downloader.fetch(Request(url=url, key=1))
        assert response.latency >= THOUGHT_SECONDS
        measured = RoundTrips(SystemClock()).seconds(response.address, otherwise=9.0)
        assert measured is not None
        assert 0 < measured < THOUGHT_SECONDS
        await downloader.aclose()
        server.close()

    asyncio.run(scenario())
    clock = SteppedClock()
    looks = []

    def slow_look() -> dict[str, float]:
        looks.append(clock.now)
        clock.now += 0.02
        return {"192.0.2.1": 0.1}

    monkeypatch.setattr(regions, "_round_trips", slow_look)
    output = RoundTrips(clock)
    assert output.seconds("", otherwise=0.3) == 0.3, "behind a proxy"
    assert not looks
    while (other := output.seconds("192.0.2.2", otherwise=0.3)) is not None:
        assert other == 0.3
    assert len(looks) == 3
    assert output.seconds("192.0.2.1", otherwise=0.3) == 0.1
    for _ in range(1000):
        clock.now += 0.1
        output.seconds("192.0.2.2", otherwise=0.3)
    assert len(looks) < 30


def test_a_decision_waits_for_a_page_that_measures_the_distance() -> None:
    class Later(RoundTrips):
        answers: list[float | None] = [None, 0.2]

        def seconds(self, address: str, *, otherwise: float) -> float | None:
            return self.answers.pop(0)

    batch = tuple(Request(url=f"http://x.org/{number}", key=number + 1) for number in range(4))
    lease = Lease(site="x.org", lane=0, token=7, requests=batch, ttl=60.0, delay=1.0)
    placing = RegionChooser(lease, RegionContext("eu", 60.0, frozenset({"eu", "us"}), Later(SystemClock())))
    notes = []
    for _ in range(4):
        placing.saw(0.5, "192.0.2.1")
        notes.append(placing.after_page())
    assert [note is None for note in notes] == [True, True, True, False]
    assert notes[3] is not None
    assert notes[3].region == "us"
    assert (notes[3].memo or {})["connect"] == {"eu": 0.2}


class SteppedClock(SystemClock):
    """Stands still until it is moved."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        with late_link():
            sys.exit()
    run_apart(Path(sys.argv[1]))
