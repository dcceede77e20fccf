"""Sitemaps in whole crawls: discovery, robots rules, limits, and safety under kills."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from processes import crawl, kill_tree, rows, start, stored, until
from rawweb import Asked, RawWeb, page, redirect, reply

from gossamer.clock import SystemClock
from gossamer.engine.commit import AddedRequests, Committer, Result
from gossamer.extract.spider import Spider
from gossamer.frontier.embedded.frontier import open_memory
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.lab.simweb.log import cut_short, gaps
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.virtual_time import LoopClock, run
from gossamer.lab.virtual_web import DAY, WEEK, ChangingWeb
from gossamer.model import Outcome, Receipt, Request, Response, SiteNote
from gossamer.settings import Settings, build


def urlset(*urls: str, lastmod: str = "") -> bytes:
    when = f"<lastmod>{lastmod}</lastmod>" if lastmod else ""
    return f"<urlset>{''.join(f'<url><loc>{url}</loc>{when}</url>' for url in urls)}</urlset>".encode()


def index(*urls: str) -> bytes:
    return f"<sitemapindex>{''.join(f'<sitemap><loc>{url}</loc></sitemap>' for url in urls)}</sitemapindex>".encode()


def robots(*sitemaps: str, rules: str = "") -> bytes:
    return reply("".join(f"Sitemap: {url}\n" for url in sitemaps) + rules)


def go(web: RawWeb, *hosts: str, folder: Path | None = None, **settings: Any) -> RunSummary:
    """Crawl the first pages of some hosts of a web, with sitemaps."""
    values = {"sitemaps": True, "delay": 0.0, "allow_private": True, "resolve": ("*.test=127.0.0.1",), "tries": 1}
    seeds = [f"http://{host}:{web.port}/" for host in hosts or ("a.test",)]
    return asyncio.run(LocalRun(folder, build({**values, **settings}), seeds).run())


def asked(web: RawWeb) -> list[str]:
    """What was asked for, robots.txt aside, as host/path without the port."""
    return [f"{one.headers['host'].split(':')[0]}{one.target}" for one in web.log if one.target != "/robots.txt"]


@pytest.fixture
def web() -> Any:
    with RawWeb() as running:
        yield running


def test_pages_of_sitemaps_are_crawled_and_the_files_are_not_stored(web: RawWeb, tmp_path: Path) -> None:
    base = f"http://a.test:{web.port}"
    web.answers = {
        "/robots.txt": robots(f"{base}/index.xml", f"{base}/feed"),
        "/": page("/linked"),
        "/linked": page(),
        "/index.xml": reply(index(f"{base}/1.xml.gz", f"{base}/2.txt", f"{base}/moved.xml")),
        "/1.xml.gz": reply(
            gzip.compress(urlset(f"{base}/one", f"{base}/linked")), headers=["Content-Encoding: identity"]
        ),
        "/2.txt": reply(f"{base}/two\n{base}/picture.png\n"),
        "/moved.xml": redirect("/3.xml.gz"),
        "/3.xml.gz": reply(urlset(f"{base}/three")),
        "/feed": reply(f"<rss><channel><item><link>{base}/four</link></item></channel></rss>"),
        **{f"/{name}": page() for name in ("one", "two", "three", "four")},
    }
    summary = go(web, folder=tmp_path / "job")
    assert sorted(web.targets()) == sorted([*web.answers.keys() - {"/robots.txt"}]), "each once, and nothing else"
    lines = rows(tmp_path / "job" / "pages.jsonl")
    assert {line["url"].removeprefix(base) for line in lines} == {"/", "/linked", "/one", "/two", "/three", "/four"}
    by_url = {line["url"].removeprefix(base): line for line in lines}
    assert (by_url["/one"]["referrer"], by_url["/one"]["depth"]) == (f"{base}/1.xml.gz", 1)
    assert summary.counts.stored == 6
    assert (summary.stats.sitemaps, summary.stats.listed) == (6, 6)
    assert summary.counts.finished
    assert summary.stats.failures == 0


def test_a_path_in_a_sitemap_line_is_one_of_the_same_origin(web: RawWeb) -> None:
    web.answers = {"/robots.txt": robots("/deep/s.xml"), "/": page(), "/one": page()}
    web.answers["/deep/s.xml"] = reply(urlset(f"http://a.test:{web.port}/one"))
    go(web)
    assert sorted(asked(web)) == ["a.test/", "a.test/deep/s.xml", "a.test/one"]


def test_without_a_sitemap_in_robots_txt_the_default_location_is_tried(web: RawWeb, tmp_path: Path) -> None:
    web.answers = {"/": page(), "/one": page()}
    web.answers[f"b.test:{web.port}/sitemap.xml"] = reply(urlset(f"http://b.test:{web.port}/one"))
    summary = go(web, "a.test", "b.test", folder=tmp_path / "job")
    other = "a.test/sitemap_index.xml"
    assert sorted(asked(web)) == ["a.test/", "a.test/sitemap.xml", other, "b.test/", "b.test/one", "b.test/sitemap.xml"]
    assert (summary.stats.failures, summary.counts.failed) == (0, 0), "a sitemap that is not there is no failure"
    assert (summary.stats.sitemaps, summary.refused, dict(summary.stats.by_status["skipped"])) == (1, {}, {})


@pytest.mark.parametrize("usual", [None, reply("<!doctype html><p>no such page"), redirect("/nowhere")])
def test_the_sitemap_index_is_tried_if_the_default_sitemap_is_missing(web: RawWeb, usual: bytes | None) -> None:
    web.answers = {"/": page(), "/one": page()}
    if usual:
        web.answers["/sitemap.xml"] = usual
    web.answers["/sitemap_index.xml"] = reply(index(f"http://a.test:{web.port}/s.xml"))
    web.answers["/s.xml"] = reply(urlset(f"http://a.test:{web.port}/one"))
    summary = go(web)
    assert {"a.test/one", "a.test/sitemap_index.xml"} <= set(asked(web))
    assert len(asked(web)) == len(set(asked(web)))
    assert (summary.stats.sitemaps, summary.refused, summary.counts.failed) == (
        2 + (usual == redirect("/nowhere")),
        {},
        0,
    )


def test_without_the_option_no_sitemap_is_asked_for(web: RawWeb) -> None:
    web.answers = {"/robots.txt": robots(f"http://a.test:{web.port}/s.xml"), "/": page()}
    go(web, sitemaps=False)
    assert asked(web) == ["a.test/"]


def test_robots_rules_hold_for_sitemaps_and_for_what_they_list(web: RawWeb) -> None:
    base = f"http://a.test:{web.port}"
    rules = "User-agent: *\nDisallow: /private\n"
    web.answers = {
        "/robots.txt": robots(f"{base}/private.xml", f"{base}/s.xml", rules=rules),
        "/": page(),
        "/s.xml": reply(urlset(f"{base}/private/x", f"{base}/open")),
        "/open": page(),
    }
    go(web)
    assert sorted(asked(web)) == ["a.test/", "a.test/open", "a.test/s.xml"]
    web.log.clear()
    go(web, robots=False)
    assert sorted(asked(web)) == ["a.test/", "a.test/open", "a.test/private.xml", "a.test/private/x", "a.test/s.xml"]


def test_limits_count_pages_and_not_sitemaps(web: RawWeb) -> None:
    base = f"http://a.test:{web.port}"
    web.answers = {
        "/robots.txt": robots(*(f"{base}/{number}.xml" for number in range(5))),
        "/": page(),
        **{f"/{number}.xml": reply(urlset(*(f"{base}/p{number}{page}" for page in range(5)))) for number in range(5)},
        **{f"/p{number}{page}": reply("x") for number in range(5) for page in range(5)},
    }
    summary = go(web, max_pages=8)
    assert summary.counts.stored == 8
    web.log.clear()
    go(web, max_depth=0)
    assert asked(web) == ["a.test/"], "what sitemaps list is one link away"


def test_h37_a_sitemap_speaks_for_its_host_and_for_those_that_name_it(web: RawWeb) -> None:
    """H37: locs on other hosts. c.test names the sitemap of a.test, b.test does not."""
    a, b, c = (f"http://{host}.test:{web.port}" for host in "abc")
    web.answers = {
        f"a.test:{web.port}/robots.txt": robots(f"{a}/s.xml"),
        f"c.test:{web.port}/robots.txt": robots(f"{a}/s.xml"),
        "/": page(),
        f"a.test:{web.port}/s.xml": reply(urlset(f"{a}/1", f"{b}/2", f"{c}/3", f"http://www.a.test:{web.port}/4")),
        **{f"/{number}": page() for number in range(1, 5)},
    }
    summary = go(web, "a.test", "b.test", scope="any", max_sitemaps=5)
    assert sorted(url for url in asked(web) if "sitemap" not in url) == [
        *("a.test/", "a.test/1", "a.test/s.xml", "b.test/", "www.a.test/4"),
    ]
    assert summary.refused["sitemap-host"] == 2
    web.log.clear()
    go(web, "a.test", "c.test", scope="any")
    assert {"a.test/1", "c.test/3"} <= set(asked(web))
    assert "b.test/2" not in asked(web)


def test_h37_nested_sitemap_indexes_end(web: RawWeb) -> None:
    """H37: an index of itself, and indexes of indexes without end."""
    base = f"http://a.test:{web.port}"

    def deeper(one: Asked) -> bytes:
        level = int(one.target[7:-4])
        return reply(index(f"{base}/index-{level + 1}.xml", f"{base}/index-{level}.xml"))

    web.answers = {"/robots.txt": robots(f"{base}/index-0.xml"), "/": page()}
    web.answers |= {f"/index-{level}.xml": deeper for level in range(25)}
    summary = go(web)
    assert sorted(asked(web)) == ["a.test/", *(f"a.test/index-{level}.xml" for level in range(4))]
    assert summary.counts.finished
    many = [f"{base}/x{number}.xml" for number in range(50)]
    web.answers["/index-0.xml"] = reply(index(*many))
    web.log.clear()
    summary = go(web, max_sitemaps=7)
    assert len(asked(web)) == 2 + 7
    assert summary.refused["sitemap-files"] == 43
    web.answers["/robots.txt"] = robots(f"{base}/index-0.xml", f"{base}/index-1.xml")
    web.answers["/index-0.xml"], web.answers["/index-1.xml"] = reply(index(*many[:5])), reply(index(*many[5:10]))
    web.log.clear()
    go(web, max_sitemaps=7)
    assert len(asked(web)) == 3 + 7, "over all indexes"


def test_h36_a_compressed_bomb_fetches_nothing_and_delays_no_other(web: RawWeb) -> None:
    """H36: entities, external DTDs, and XInclude cause no request, and the valid entry still counts."""
    base = f"http://a.test:{web.port}"
    laughs = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    hostile = (
        f'<!DOCTYPE urlset SYSTEM "{base}/x.dtd" [<!ENTITY e0 "ha"><!ENTITY f SYSTEM "{base}/canary">{laughs}]>'
        f'<urlset xmlns:xi="http://www.w3.org/2001/XInclude"><url><loc>{base}/&e11;</loc></url>'
        f"<url><loc>&f;</loc></url><xi:include href='{base}/canary'/><url><loc>{base}/good</loc></url></urlset>"
    )
    web.answers = {"/robots.txt": robots(f"{base}/s.xml"), "/": page(), "/good": page(), "/s.xml": reply(hostile)}
    summary = go(web)
    assert sorted(asked(web)) == ["a.test/", "a.test/good", "a.test/s.xml"]
    assert summary.refused["sitemap-broken"] == 3


def test_sixty_thousand_urls_in_one_file_are_cut_at_fifty_thousand(web: RawWeb) -> None:
    base = f"http://a.test:{web.port}"
    body = urlset(*(f"{base}/page/{number}?{'x' * 150}" for number in range(60_000)))
    assert len(body) > 10 * 1024 * 1024, "more than a page may have"
    web.answers = {"/robots.txt": robots(f"{base}/s.xml"), "/": page(), "/s.xml": reply(body)}
    summary = go(web, max_pages=2)
    assert summary.counts.known == 50_000 + 2
    assert summary.stats.listed == 50_000


def test_h11_a_sitemap_at_a_private_address_is_not_fetched(web: RawWeb) -> None:
    """H11: a Sitemap line that points at a metadata service is refused like any other request."""
    web.answers = {"/robots.txt": robots("http://169.254.169.254/sitemap.xml"), "/": page()}
    summary = go(web)
    assert asked(web) == ["a.test/"]
    assert summary.counts.finished


def test_a_kill_in_the_middle_of_the_sitemaps_loses_no_page_and_repeats_none(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    options = ("--delay", "0.02", "--sitemaps", "--lease-seconds", "5", "--commit-seconds", "0")
    with SimWeb(sites=2, pages_per_site=15, kinds=("robots-sitemap",), page_bytes=2000, latency_seconds=0.02) as web:
        deaths: list[float] = []
        for wanted in ("index", "pages"):
            process = start(folder, web, *options)
            until(lambda name=f"/sitemap-{wanted}": name in " ".join(entry.url for entry in web.log()))  # type: ignore[misc]
            os.kill(process.pid, signal.SIGKILL)
            deaths.append(time.time())
            kill_tree(process)
        done = crawl(folder, web, *options)
        assert done.returncode == 0, done.stderr
        assert "sitemaps" in done.stderr
        verdict = web.judge(sitemaps=True)
        assert not verdict.missed
        assert min(gaps(cut_short(web.log(), deaths)).values()) >= 0.02
        expected = web.plan.reachable(sitemaps=True)
    assert set(stored(folder).values()) == {1}
    assert set(stored(folder)) == expected


Says = Callable[[ChangingWeb, str, float], float]


class Recorder:
    """A real frontier, and in which order it was called."""

    def __init__(self) -> None:
        self._frontier = open_memory(Settings(), clock=SystemClock(), secret=b"0" * 16)
        self.calls: list[str] = []

    async def add(self, requests: Sequence[Request]) -> int:
        self.calls.append(f"add {len(requests)}")
        return await self._frontier.add(requests)

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        self.calls.append("commit")
        return await self._frontier.complete([result.outcome for result in results], notes=notes)


def test_pages_of_a_sitemap_are_added_before_its_outcome() -> None:
    """Otherwise a kill between the two would lose the pages."""

    async def put() -> list[str]:
        recorder: Any = Recorder()
        committer = Committer(recorder, recorder, clock=SystemClock(), every=0.0, committed=lambda results, run: None)
        outcome = Outcome(site="a.test", lane=0, token=1, key=1, status="skipped")
        await committer.put(AddedRequests([Request("http://a.test/2", 2, "a.test")]))
        await committer.put(Result(outcome))
        await committer.finish()
        await committer.run()
        found: list[str] = recorder.calls
        return found

    assert asyncio.run(put()) == ["add 1", "commit"]


@pytest.mark.parametrize("forgets", [False, True])
def test_sitemap_pages_that_a_store_may_have_lost_are_added_again(forgets: bool) -> None:
    """It is added before the sitemap is settled, so a store can forget the one and keep the other."""

    class InAnotherLife(Recorder):
        async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
            receipt = await super().commit(results, notes)
            return msgspec.structs.replace(receipt, run=2 if forgets else 1)

    async def put() -> list[str]:
        recorder: Any = InAnotherLife()
        committer = Committer(recorder, recorder, clock=SystemClock(), every=0.0, committed=lambda results, run: None)
        committer.run_of_store = 1
        other, outcome = (
            Outcome(site="a.test", lane=0, token=token, key=key, status="skipped") for token, key in ((9, 9), (1, 1))
        )
        running = asyncio.create_task(committer.run())
        # In the meantime others commit, and prove nothing.
        listed = AddedRequests([Request("http://a.test/2", 2, "a.test")], 1, 1)
        entries: list[Result | AddedRequests] = [listed, Result(other), Result(outcome)]
        for number, entry in enumerate(entries, 1):
            await committer.put(entry)
            while len(recorder.calls) < number:
                await asyncio.sleep(0)
        await committer.finish()
        await running
        found: list[str] = recorder.calls
        return found

    again = ["add 1"] if forgets else []
    assert asyncio.run(put()) == ["add 1", "commit", "commit", *again]


class Listing(ChangingWeb):
    """A changing web with a sitemap; `says` returns when a page has changed, as the sitemap claims."""

    def __init__(self, clock: LoopClock, *, says: Says, **web: Any) -> None:
        super().__init__(clock, **web)
        self._says = says
        self._zero = clock.epoch()
        self.readings: list[float] = []

    async def fetch(self, request: Request) -> Response:
        if not request.url.endswith("/sitemap.xml"):
            return await super().fetch(request)
        self.readings.append(self.now)
        listed = "".join(
            f"<url><loc>{url}</loc><lastmod>{_written(self._zero + self._says(self, url, self.now))}</lastmod></url>"
            for url in self.changes
        )
        return self._response(request, 200, (), f"<urlset>{listed}</urlset>".encode())


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def weeks(says: Says, *, days_per_change: Callable[[int], float], folder: Path | None = None) -> Listing:
    """Six weeks of a continuous crawl of 20 pages by the table; `says` gets the web, a URL, and the time."""

    async def go_by() -> Listing:
        clock = LoopClock()
        web = Listing(clock, says=says, sites=1, pages=20, days_per_change=days_per_change)
        spider = Spider()
        spider.fetch_middleware = [web.middleware]
        values = {"recrawl": "table", "max_seconds": 6 * WEEK - DAY, "lease_seconds": DAY, "commit_seconds": 1.0}
        settings = build({**values, "sitemaps": True, "robots_seconds": 400 * DAY})
        await LocalRun(folder, settings, web.seeds, spider=spider, clock=clock).run()
        return web

    found: Listing = run(go_by())
    return found


def truth(web: ChangingWeb, url: str, now: float) -> float:
    """When a page has last changed."""
    return max((at for at in web.changes[url] if at <= now), default=-WEEK)


def test_a_page_that_its_sitemap_says_has_changed_is_visited_the_next_day(tmp_path: Path) -> None:
    changed = 2.3 * WEEK

    def says(web: ChangingWeb, url: str, now: float) -> float:
        if url.endswith("/p7"):
            return truth(web, url, now)
        return changed if url.endswith("/p4") and now >= changed else -WEEK

    web = weeks(says, days_per_change=lambda page: 0.4 if page == 7 else 20.0, folder=tmp_path / "job")
    assert [round(at / DAY) for at in web.times("http://s0.test/p4")][:4] == [0, 7, 14, 17]
    assert [round(at / WEEK) for at in web.times("http://s0.test/p5")] == [0, 1, 2, 3, 4, 5]
    assert len(web.times("http://s0.test/p7")) > 30, "the sitemap is read daily, and so is what changes daily"
    lines = [json.loads(line)["url"] for line in (tmp_path / "job" / "pages.jsonl").read_text().splitlines()]
    assert not any("sitemap" in url for url in lines)
    assert lines.count("http://s0.test/p4") == len(web.times("http://s0.test/p4"))


@pytest.mark.parametrize("claim", ["now", "tomorrow", "never"])
def test_wrong_sitemap_dates_cause_no_more_visits_than_the_table(claim: str) -> None:
    """Pages that never change, whose sitemap says that all have: soon it is believed no more."""
    ahead = {"now": -1.0, "tomorrow": 20 * DAY, "never": -1e9}[claim]
    web = weeks(lambda _, url, now: now + ahead, days_per_change=lambda page: 1e6)
    visits = [sum(week * WEEK <= hit.at < (week + 1) * WEEK for hit in web.hits) for week in range(1, 5)]
    if claim == "now":
        assert max(visits) <= 21 * 1.5, visits
        assert len(web.hits) <= 1.5 * 6 * 21 + 20, "and those who were believed at first came once more"
    else:
        assert visits == [21] * 4


def test_correct_sitemap_dates_keep_copies_fresher() -> None:
    silent = weeks(lambda web, url, now: -WEEK, days_per_change=lambda page: 10.0)
    honest = weeks(truth, days_per_change=lambda page: 10.0)
    without, fresh = (web.freshness(WEEK, 6 * WEEK - DAY) for web in (silent, honest))
    assert fresh > without + 0.1
