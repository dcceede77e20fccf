"""Links sent to the frontier: once per lease, and again after a restart of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from processes import crawl

from gossamer.engine.commit import FleetStore, Result
from gossamer.engine.links import Linker, RecentKeys
from gossamer.engine.run import Engine
from gossamer.extract.spider import Spider
from gossamer.frontier.embedded.frontier import open_memory
from gossamer.jobs.worker import build_worker
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.virtual_time import LoopClock, run
from gossamer.model import Receipt, Request, Response, SiteNote
from gossamer.settings import Settings

SECRET = b"s" * 16
SEEDS, TARGETS = 6, 30
# Longer than it takes to fetch all of a lease: nothing is acknowledged before its end.
SETTINGS = Settings(delay=1.0, robots=False, commit_seconds=60.0, lease_seconds=600.0)


class Watched(FleetStore):
    """A store that keeps what came."""

    def __init__(self, frontier: object) -> None:
        super().__init__(frontier, [])  # type: ignore[arg-type]
        self.results: list[Result] = []

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        self.results += results
        return await super().commit(results, notes)


def play(after_page: Callable[[int, Engine], None] = lambda number, engine: None) -> list[int]:
    """How many links came with each of the first pages of a site, all of which link to the same others."""

    async def scene() -> list[int]:
        clock, spider, fetches = LoopClock(), Spider(), 0
        frontier = open_memory(SETTINGS, clock=clock, secret=SECRET)
        linker = Linker(SETTINGS, SECRET, RecentKeys())
        await frontier.add([linker.seed(f"http://a.test/seed/{number}") for number in range(SEEDS)])
        store = Watched(frontier)

        async def fetch(request: Request) -> Response:
            nonlocal fetches
            fetches += 1
            after_page(fetches, engine)
            body = "".join(f'<a href="/page/{number}">on</a>' for number in range(TARGETS))
            return Response(
                url=request.url,
                status=200,
                headers=(("content-type", "text/html"),),
                body=body.encode(),
                fetched_at=clock.epoch(),
                headers_at=clock.monotonic(),
            )

        spider.fetch_middleware = [lambda _: fetch]
        async with build_worker(
            frontier, store, settings=SETTINGS, secret=SECRET, clock=clock, spider=spider
        ) as engine:
            assert await engine.run() == "finished"
        assert (await frontier.counts()).done == SEEDS + TARGETS
        return [len(result.outcome.links) for result in store.results[:SEEDS]]

    return run(scene())


def test_a_link_is_sent_once_per_lease() -> None:
    assert play() == [TARGETS] + [0] * (SEEDS - 1)


def test_links_are_sent_again_after_a_store_restart() -> None:
    """A store that was unavailable may have lost the links it was sent."""

    def after_page(number: int, engine: Engine) -> None:
        if number == 4:
            engine._forget()

    assert play(after_page) == [TARGETS, 0, 0, TARGETS, 0, 0]


def test_workers_that_send_links_once_miss_no_page(tmp_path: Path) -> None:
    with SimWeb(sites=3, pages_per_site=120, page_bytes=2000) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--workers", "3", "--batch", "64", timeout=100)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
        assert set(fetched(web.log()).values()) == {1}
