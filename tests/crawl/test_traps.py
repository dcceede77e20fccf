"""Crawler traps: endless parts of a site are bounded, and everything else is crawled."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from processes import crawl

from gossamer import urls
from gossamer.engine import near_duplicates, traps
from gossamer.engine.links import Linker, RecentKeys
from gossamer.extract.spider import Spider
from gossamer.inspect.rules import path_ruling
from gossamer.jobs.local_run import LocalRun
from gossamer.lab.simweb.features import trap_answer
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.virtual_time import LoopClock, run
from gossamer.model import Request, Response
from gossamer.settings import Settings

SECRET = b"0123456789abcdef"


def test_a_trap_site_takes_little_from_forty_good_ones(tmp_path: Path) -> None:
    """An endless calendar, session ids, soft 404s, and filters next to 40 good sites, and good pages on that site."""
    kinds = ("calendar+sessions+soft404+facets", *["plain"] * 40)
    with SimWeb(sites=41, pages_per_site=25, kinds=kinds, page_bytes=3000) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", timeout=100)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
        counts = fetched(web.log())
        trapped = sum(count for url, count in counts.items() if web.plan.is_trap(url))
        assert 0 < trapped < 0.15 * sum(counts.values())
    assert "asleep" in done.stderr


@pytest.mark.parametrize(
    ("trap", "most"), [("calendar", 40), ("sessions", 40), ("soft404", 40), ("deep", 60), ("facets", 20)]
)
def test_each_kind_of_trap_ends(tmp_path: Path, trap: str, most: int) -> None:
    """H41."""
    with SimWeb(sites=1, pages_per_site=40, kinds=(trap,), page_bytes=3000) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--alike-pages", "15", timeout=60)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
        assert sum(web.plan.is_trap(url) for url in fetched(web.log())) <= most


def test_a_prefix_budget_is_kept_and_the_rest_is_crawled(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=30, kinds=("calendar+sessions",), page_bytes=3000) as web:
        options = ("--delay", "0", "--prefix-budget", "40", "--alike-pages", "0", "--batch", "7")
        done = crawl(tmp_path / "job", web, *options, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
        inside = Counter(urls.host_port(url) + traps.prefix_of(urls.path_query(url)) for url in fetched(web.log()))
    assert sorted(inside.values())[-4:] == [40] * 4


class OneSite:
    """A site in virtual time that writes down what it was asked for."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.asked: list[str] = []

    def middleware(self, _: Any) -> Any:
        async def fetch(request: Request) -> Response:
            path = urls.path_query(request.url)
            self.asked.append(path)
            return Response(
                url=request.url,
                status=404 if path == "/robots.txt" else 200,
                headers=(("content-type", "text/html"),),
                body=self._body(path),
                fetched_at=self._clock.epoch(),
                headers_at=self._clock.monotonic(),
            )

        return fetch

    def _body(self, path: str) -> bytes:
        raise NotImplementedError


class Endless(OneSite):
    """One site in virtual time: /shelf/1 links to /shelf/2 and so on without end, each page next to a good one."""

    def __init__(self, clock: LoopClock, *, copies: bool) -> None:
        super().__init__(clock)
        self._copies = copies

    def _body(self, path: str) -> bytes:
        number = int(path.rpartition("/")[2] or 0) if path != "/robots.txt" else 0
        if path.startswith("/good/"):
            return f"<title>Good {chr(97 + number)}</title><p>{chr(97 + number) * 9} alone".encode()
        word = "same" if self._copies else " ".join(chr(97 + (number + turn) % 26) * 4 for turn in range(9))
        good = f'<a href="/good/{number % 26}">a good page</a>'
        return f'<title>Shelf</title><p>{word} {number}</p><a href="/shelf/{number + 1}">on</a>{good}'.encode()


async def _stroll(folder: Path | None, clock: LoopClock, *, copies: bool, **settings: Any) -> tuple[Endless, Any]:
    web, spider = Endless(clock, copies=copies), Spider()
    spider.fetch_middleware = [web.middleware]
    values = {"alike_pages": 10, "max_pages": 200, **settings}
    done = await LocalRun(folder, Settings(**values), ["http://a.test/"], spider=spider, clock=clock).run()
    return web, done


def test_a_path_of_near_duplicates_is_paused_with_evidence(tmp_path: Path) -> None:
    """H44."""
    web, done = run(_stroll(tmp_path / "job", LoopClock(), copies=True))
    shelves = [path for path in web.asked if path.startswith("/shelf/")]
    assert 10 <= len(shelves) <= 13
    assert done.counts.finished
    assert {path for path in web.asked if path.startswith("/good/")} >= {f"/good/{number}" for number in range(10)}

    async def look() -> Any:
        from gossamer.frontier.embedded.sqlite import open_sqlite

        frontier = open_sqlite(tmp_path / "job" / "frontier.db", Settings(), clock=LoopClock())
        found = await frontier.lookup("http://a.test/shelf/3")
        await frontier.aclose()
        return found

    found = asyncio.run(look())
    evidence = found["site_state"]["memo"]["paths.0"]["/shelf/"]
    assert evidence["example"].startswith("http://a.test/shelf/")
    assert evidence["asleep_until"] > LoopClock()._epoch + 29 * 86_400
    assert len(json.dumps(found["site_state"]["memo"])) < 2000


class Filters(OneSite):
    """One site in virtual time: filters without end; if they are `fruitful`, each page leads to a good one too."""

    def __init__(self, clock: LoopClock, *, fruitful: bool) -> None:
        super().__init__(clock)
        self._fruitful = fruitful

    def _body(self, path: str) -> bytes:
        trapped = trap_answer(0, 0, path, frozenset({"facets"}))
        if trapped is not None:
            good = f'<a href="/good/{zlib.crc32(path.encode())}">more</a>' if self._fruitful else ""
            return trapped.body.replace(b"</h1>", b"</h1>" + good.encode())
        pages = "".join(f'<a href="/list?page={number}">on</a>' for number in range(40))
        return f'<title>List</title><a href="/facets">Filter</a>{pages}'.encode()


async def _filtered(folder: Path | None, clock: LoopClock, *, fruitful: bool, **settings: Any) -> Filters:
    web, spider = Filters(clock, fruitful=fruitful), Spider()
    spider.fetch_middleware = [web.middleware]
    values = {"alike_pages": 15, "max_pages": 300, **settings}
    await LocalRun(folder, Settings(**values), ["http://a.test/"], spider=spider, clock=clock).run()
    return web


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "random"])
def test_endless_query_filters_are_paused_with_evidence(tmp_path: Path, strategy: str) -> None:
    """H41: each set of filters is a path prefix of its own, and their pages differ in what they list."""
    web = run(_filtered(tmp_path / "job", LoopClock(), fruitful=False, strategy=strategy))
    found = Counter(path.partition("?")[0] for path in web.asked)
    assert 15 <= found["/facets"] <= 60
    assert found["/list"] == 40, "pages that a parameter counts are no filters"

    async def look() -> Any:
        from gossamer.frontier.embedded.sqlite import open_sqlite

        frontier = open_sqlite(tmp_path / "job" / "frontier.db", Settings(), clock=LoopClock())
        known = await frontier.lookup("http://a.test/facets")
        await frontier.aclose()
        assert known is not None
        return known["site_state"]["memo"]

    memo, asleep = asyncio.run(look()), "http://a.test/facets?size=xl&page=9&order=up&view=list&colour=red"
    now = LoopClock()._epoch + 3600
    said = path_ruling(asleep, memo, Settings(alike_pages=15), now=now)
    assert said is not None
    assert said.evidence is not None
    assert (said.rule, said.evidence["copies"]) == ("asleep", 15)
    assert said.evidence["since"].startswith("http://a.test/facets?")
    assert path_ruling("http://a.test/list?page=99", memo, Settings(), now=now) is None
    assert path_ruling(asleep, memo, Settings(), now=now + 31 * 86_400) is None
    assert len(json.dumps(memo)) < 4000


def test_filters_that_lead_to_new_pages_are_not_paused() -> None:
    web = run(_filtered(None, LoopClock(), fruitful=True))
    assert len(web.asked) == 300 + 1
    assert sum(path.startswith("/facets?") for path in web.asked) > 100


def _after_queries(queries: Iterable[str], places: dict[str, Any], path: str = "/index.php") -> dict[str, Any]:
    for query in queries:
        target, rules = f"{path}?{query}", Settings(alike_pages=6)
        known: dict[str, Any] = {"simhash": 7, "leads_on": True, "leads_away": False, "now": 1.0}
        after = traps.after_combination(places, f"http://a.test{target}", target, settings=rules, **known)
        places = places if after is None else after
    return places


def test_only_queries_with_the_common_features_are_paused() -> None:
    rows = [f"do=events&{more}" for more in ("y=1", "y=1&m=2", "m=2&y=1", "y=2&m=3", "d=1&y=2", "y=4&d=1")]
    memo = {"queries.0": _after_queries(rows, {})}
    asleep = {
        target
        for target in ("do=events&y=9", "y=9&do=events&x=1", "do=events", "do=news&y=9", "id=7")
        if traps.combination_evidence(memo, f"/index.php?{target}", now=2.0)
    }
    assert asleep == {"do=events&y=9", "y=9&do=events&x=1"}
    assert traps.combination_evidence(memo, "/other.php?do=events&y=9", now=2.0) is None
    # The same parameters once more: then their values do not matter.
    other = [row.replace("events", "tags") for row in rows]
    both = {"queries.0": _after_queries(other, memo["queries.0"])}
    assert traps.combination_evidence(both, "/index.php?do=news&y=9", now=2.0)
    assert traps.combination_evidence(both, "/index.php?id=7", now=2.0) is None


def test_pagination_is_not_paused_and_adds_nothing_to_the_memo() -> None:
    places = _after_queries((f"page={number}" for number in range(50)), {})
    assert not traps.combination_evidence({"queries.0": places}, "/index.php?page=51", now=2.0)
    assert _after_queries((f"page={number}" for number in range(50, 99)), places) == places
    for number in range(99):
        places = _after_queries(("x=1",), places, f"/{number}.php")
    assert len(places) <= 16


def test_a_path_of_different_pages_is_not_paused() -> None:
    web, done = run(_stroll(None, LoopClock(), copies=False))
    assert len(web.asked) == 200 + 1
    assert done.counts.skipped == 0


def test_a_paused_path_resumes_in_a_continuous_crawl() -> None:
    """What was skipped comes again with the failures' times; by then the path has slept enough, and is looked at."""
    week = 7 * 86_400.0
    settings = {
        "recrawl": "table", "max_pages": None, "sleep_seconds": week, "lease_seconds": 86_400.0,
        "max_seconds": 5 * week, "commit_seconds": 1.0, "robots_seconds": 100 * week,
    }  # fmt: skip
    web, _ = run(_stroll(None, LoopClock(), copies=True, **settings))
    assert len({path for path in web.asked if path.startswith("/shelf/")}) > 13


@pytest.mark.parametrize(
    ("target", "prefix"),
    [
        ("/", "/"),
        ("/page", "/"),
        ("/calendar/2024/1", "/calendar/"),
        ("/en/calendar/2024/1", "/en/calendar/"),
        ("/a/b/c/d/e", "/a/b/c/"),
        ("/shop/0?sid=f00", "/shop/?sid"),
        ("/list?b=1&a=2&a=3", "/?a&b"),
        ("/s/3f2a/page", "/s/"),
        ("?", "/"),
    ],
)
def test_the_prefix_of_a_path(target: str, prefix: str) -> None:
    assert traps.prefix_of(target) == prefix


@pytest.mark.parametrize(
    ("target", "far"),
    [
        ("/calendar/2026/1", False),
        ("/calendar/2028/12/31", False),
        ("/calendar/2029/1", True),
        ("/events?month=2031-05", True),
        ("/events?month=2025-05", False),
        ("/events?year=2040&month=3", True),
        ("/events?month=3&year=2040", True),
        ("/1851/09/18/archives.html", True),
        ("/1951/09/18/archives.html", False),
        ("/part/2999", False),
        ("/part/2999/77", False),
        ("/id/20991231", False),
        ("/a-2099-01-title", True),
    ],
)
def test_dates_far_away_are_not_followed(target: str, far: bool) -> None:
    assert traps.has_far_date(target, year=2026, settings=Settings()) is far


def test_a_calendar_is_left_at_its_edge() -> None:
    linker = Linker(Settings(), SECRET, RecentKeys())
    page = Request("http://a.test/calendar/2028/12", site="a.test")
    links = ("http://a.test/calendar/2028/11", "http://a.test/calendar/2029/1")
    assert [link.url for link in linker.follow(page, links, year=2026)] == [links[0]]
    assert linker.refused == {"calendar": 1}


def test_many_paths_are_bounded_and_paused_ones_are_kept() -> None:
    settings = Settings(alike_pages=3)
    paths: dict[str, Any] = {}
    for number in range(200):
        prefix = f"/{chr(97 + number % 26) * (1 + number // 26)}/"
        for turn in range(3 if number == 5 else 2):
            found = traps.after_page(
                paths, f"http://a.test{prefix}{turn}", prefix, simhash=7, leads_on=True, now=1.0, settings=settings
            )
            assert found is not None
            paths = found
    assert len(paths) <= 32
    assert traps.sleeping({"paths.0": paths}, "/f/", now=2.0)


def test_simhash_sees_small_differences_and_not_numbers() -> None:
    text = "the quick brown fox jumps over lazy dogs while seven wizards brew"
    one = near_duplicates.simhash(f"{text} on 12 May")
    assert one == near_duplicates.simhash(f"{text} on 31 May")
    other = near_duplicates.simhash("an altogether different page about bread and butter in the old mill by the river")
    assert one is not None
    assert other is not None
    assert not near_duplicates.are_near(one, other)
    assert near_duplicates.simhash("2024 12 31") is None
    assert near_duplicates.simhash("word " * 100_000) is not None


def test_simhashes_of_random_pages_are_far_apart() -> None:
    from gossamer.lab.simweb.words import paragraphs

    texts = [b" ".join(paragraphs(seed, 4)).decode() for seed in range(40)]
    hashes = [near_duplicates.simhash(text) for text in texts]
    near = sum(
        near_duplicates.are_near(one, other)
        for place, one in enumerate(hashes)
        for other in hashes[place + 1 :]
        if one is not None and other is not None
    )
    assert near == 0
