"""Continuous crawls of a changing web in virtual time, verified by the web server's log."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossamer.extract.spider import Spider
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.lab.virtual_time import LoopClock, run
from gossamer.lab.virtual_web import DAY, WEEK, ChangingHit, ChangingWeb
from gossamer.middleware import Fetch
from gossamer.model import Request, Response
from gossamer.settings import Settings

SLACK = 600.0
"""Seconds by which a visit may be late: the site's delay, once for each page before it, and the commit."""


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    random.seed(1)


class Week12:
    """A continuous crawl in virtual time; `web` and `summary` are there when it is over."""

    web: ChangingWeb
    summary: RunSummary
    also: Sequence[Callable[[Fetch], Fetch]] = ()
    """Middleware before the web."""

    def __init__(self, folder: Path | None, *, sites: int = 2, pages: int = 10, **web: Any) -> None:
        self.folder = folder
        self._sites, self._pages = sites, pages
        self._web = {"days_per_change": lambda page: 20.0, **web}

    def run(self, **settings: Any) -> Week12:
        """Run it for 12 weeks, or as long as `max_seconds` says."""
        values: dict[str, Any] = {
            "recrawl": "table",
            "max_seconds": 12 * WEEK - DAY,
            "lease_seconds": DAY,
            "commit_seconds": 1.0,
            "robots_seconds": 400 * DAY,
            **settings,
        }
        run(self._crawl(Settings(**values)))
        return self

    async def _crawl(self, settings: Settings) -> None:
        clock = LoopClock()
        self.web = ChangingWeb(clock, sites=self._sites, pages=self._pages, **self._web)
        spider = Spider()
        spider.fetch_middleware = [*self.also, self.web.middleware]
        self.summary = await LocalRun(self.folder, settings, self.web.seeds, spider=spider, clock=clock).run()

    def weeks(self, path: str) -> list[float]:
        """When a page of the first site was visited, in whole weeks; each visit must be on time."""
        times = self.web.times(f"http://s0.test{path}")
        assert all(0 <= at % WEEK <= SLACK for at in times), times
        return [at // WEEK for at in times]


def dead(*paths: str, status: int = 404, until: float = 1e12) -> Callable[[str, float], int | None]:
    """Answers of pages that are out of order until some time."""
    return lambda path, at: status if path in paths and at < until else None


def test_visits_follow_the_interval_table() -> None:
    crawl = Week12(None, answers=dead("/p3", until=5 * WEEK)).run()
    assert crawl.weeks("/p1") == list(range(12))
    assert crawl.weeks("/") == list(range(12))
    assert crawl.weeks("/p3") == [0, 2, 6, 7, 8, 9, 10, 11], "two failures, then a success, which resets"
    assert crawl.summary.stopped_by == "seconds"
    assert not crawl.summary.counts.finished


def test_a_page_that_is_gone_is_visited_ever_less_and_dropped() -> None:
    crawl = Week12(None, pages=3, answers=dead("/p1", status=410)).run(max_seconds=60 * WEEK, gone_visits=5)
    assert crawl.weeks("/p1") == [0, 2, 6, 14, 22], "then it is dropped"
    assert crawl.summary.counts.revisits == 2 * 4 - 2


def test_a_page_that_fails_otherwise_is_never_dropped() -> None:
    crawl = Week12(None, pages=3, answers=dead("/p1", status=403)).run(max_seconds=60 * WEEK, gone_visits=2)
    assert crawl.weeks("/p1") == [0, 2, 6, *range(14, 60, 8)]


def test_unchanged_pages_are_not_sent_again_and_lose_no_links(tmp_path: Path) -> None:
    crawl = Week12(tmp_path / "job", days_per_change=lambda page: 1e6).run()
    answers = Counter((hit.url[-3:], hit.status) for hit in crawl.web.hits if "s0" in hit.url)
    assert answers["/p4", 304] == 11
    assert answers["/p4", 200] == 1
    assert answers["/p5", 200] == 12, "without a validator it comes whole"
    assert len(crawl.weeks("/p9")) == 12
    lines = [json.loads(line) for line in (tmp_path / "job" / "pages.jsonl").read_text().splitlines()]
    rows = [row for row in lines if row["url"] == "http://s0.test/p4"]
    assert [row["status"] for row in rows] == [200, *[304] * 11], "one line a visit"
    assert len({row["digest"] for row in rows}) == 1
    assert len(lines) == crawl.summary.counts.stored


def test_adaptive_visits_follow_the_text_and_not_the_markup() -> None:
    days = {0: 1e6, 1: 1e6, 2: 0.5, 3: 0.5}
    crawl = Week12(None, pages=4, days_per_change=lambda page: days[page]).run(recrawl="adaptive")
    for page, changing in ((0, False), (1, False), (2, True), (3, True)):
        times = crawl.web.times(f"http://s0.test/p{page}")
        gaps = [(later - at) / WEEK for at, later in itertools.pairwise(times)]
        factor = 0.8 if changing else 1.4
        assert gaps[:4] == pytest.approx([1, factor, factor**2, factor**3], abs=0.001), page


def test_a_part_of_a_page_is_not_what_the_next_visit_is_compared_with(tmp_path: Path) -> None:
    """The page never changes. Its first and fourth visits get a part, and each next visit requests all of it."""
    visits: Counter[str] = Counter()

    def cutting(fetch: Fetch) -> Fetch:
        async def cut(request: Request) -> Response:
            response = await fetch(request)
            visits[request.url] += 1
            if request.url.endswith("/p4") and visits[request.url] in (1, 4):
                assert response.status == 200 or visits[request.url] == 4
                return msgspec.structs.replace(
                    response, status=200, body=b"<title>a part</title>", cut="max_body_bytes:?", headers=whole
                )
            return response

        return cut

    whole = (("content-type", "text/html"), ("etag", '"part"'))
    crawl = Week12(tmp_path / "job", pages=5, days_per_change=lambda page: 1e6)
    crawl.also = [cutting]
    crawl.run(recrawl="adaptive", max_seconds=30 * WEEK)
    answers = [hit.status for hit in crawl.web.hits if hit.url == "http://s0.test/p4"]
    assert answers[:3] == [200, 200, 304], "after a part it is asked for as a whole"
    assert answers[4] == 200
    times = crawl.web.times("http://s0.test/p4")
    gaps = [(later - at) / WEEK for at, later in itertools.pairwise(times)]
    # A partial page shows neither a change nor its absence.
    assert gaps[:5] == pytest.approx([1, 1, 1.4, 1.4, 1.4**2], abs=0.001)
    rows = [json.loads(line) for line in (tmp_path / "job/pages.jsonl").open()]
    assert [row.get("cut") for row in rows if row["url"].endswith("s0.test/p4")][:5] == [
        "max_body_bytes:?", None, None, "max_body_bytes:?", None
    ]  # fmt: skip


def mixed(page: int) -> float:
    """Days between two changes: some pages change daily, some in a year."""
    return (1.0, 4.0, 7.0, 14.0, 30.0, 90.0, 365.0)[page % 7]


@pytest.mark.parametrize("recrawl", ["table", "adaptive", "budget=40/d"])
def test_freshness_is_as_predicted(recrawl: str) -> None:
    crawl = Week12(None, sites=8, pages=35, days_per_change=mixed).run(recrawl=recrawl)
    measured = crawl.web.freshness(5 * WEEK, 12 * WEEK - DAY)
    predicted = crawl.summary.counts.freshness
    assert predicted == pytest.approx(measured, rel=0.1)


def test_a_large_budget_is_used_from_the_first_day_and_no_wait_is_too_long() -> None:
    crawl = Week12(None, sites=1, pages=10, days_per_change=mixed).run(
        recrawl="budget=100/d", max_seconds=5 * DAY, revisit_max_seconds=0.5 * DAY
    )
    for page in range(1, 10):
        times = crawl.web.times(f"http://s0.test/p{page}")
        assert len(times) >= 10
        assert all(later - at <= 0.5 * DAY + SLACK for at, later in itertools.pairwise(times))


def test_a_budget_is_kept_and_beats_the_same_number_of_even_visits() -> None:
    """124 pages at 18 visits a day are visited once a week on average: as often as by the table."""
    days = (3.0, 5.0, 500.0, 900.0, 2000.0)
    crawls = [
        Week12(None, sites=4, pages=30, days_per_change=lambda page: days[page % 5]).run(recrawl=recrawl)
        for recrawl in ("table", "budget=18/d")
    ]
    span = (6 * WEEK, 12 * WEEK - DAY)
    even, best = (crawl.web.freshness(*span) for crawl in crawls)
    visits = sum(span[0] <= hit.at < span[1] for hit in crawls[1].web.hits)
    assert visits / ((span[1] - span[0]) / DAY) == pytest.approx(18, rel=0.15)
    assert best > even + 0.03


def test_nothing_is_lost_or_repeated_across_kills(tmp_path: Path) -> None:
    """The files are taken as they are at some moment, which is what kill -9 leaves, and the crawl goes on from them."""
    times: dict[str, list[float]] = {}
    folder, start = tmp_path / "life-0", 0.0
    for life, end in enumerate((3.4 * WEEK, 3.4 * WEEK + 40.0, 7.00002 * WEEK, 12 * WEEK - DAY)):
        copy = tmp_path / f"life-{life + 1}"
        web = run(_live(folder, copy, start, end), start=start)
        for hit in web.hits:
            times.setdefault(hit.url, []).append(hit.at + start)
        folder, start = copy, end
    assert len(times) == 2 * 11
    lines = [json.loads(line)["url"] for line in (folder / "pages.jsonl").read_text().splitlines()]
    for url, found in times.items():
        weeks = [at // WEEK for at in found]
        assert sorted(set(weeks)) == list(range(12)), url
        assert 12 <= len(weeks) <= 13, "only what was under way at a kill is fetched again"
        assert lines.count(url) == 12, "and stored once"


async def _live(folder: Path, copy: Path, start: float, end: float) -> ChangingWeb:
    clock = LoopClock()
    web = ChangingWeb(clock, sites=2, pages=10, days_per_change=lambda page: 20.0)
    spider = Spider()
    spider.fetch_middleware = [web.middleware]
    settings = Settings(
        recrawl="table", lease_seconds=DAY, commit_seconds=1.0, robots_seconds=400 * DAY, max_seconds=end + 60 - start
    )

    hits: list[ChangingHit] = []

    async def kill() -> None:
        await clock.sleep(end - start)
        # Sockets cannot be copied, and are made anew.
        shutil.copytree(folder, copy, ignore=lambda _, names: [name for name in names if "sock" in name])
        hits.extend(web.hits)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill())
        await LocalRun(folder, settings, web.seeds, spider=spider, clock=clock).run()
    web.hits = hits
    return web


def test_a_crawl_without_recrawl_finishes() -> None:
    crawl = Week12(None).run(recrawl="")
    assert crawl.summary.counts.finished
    assert crawl.summary.state == "finished"
    assert len(crawl.web.hits) == 2 * 11


def test_max_pages_counts_visits() -> None:
    crawl = Week12(None).run(max_pages=50)
    assert (crawl.summary.counts.stored, crawl.summary.counts.finished) == (50, True)
    assert len(crawl.web.hits) == 50
