"""The command `try`: crawls a few pages in memory and tells what a long crawl would do."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from collections.abc import Awaitable, Callable
from itertools import islice
from statistics import median
from typing import Any

import click
import msgspec

from gossamer import job_folder, logs, urls
from gossamer.cli import trial_report
from gossamer.cli.exits import Exit
from gossamer.cli.figures import many
from gossamer.cli.guide import Sectioned
from gossamer.cli.options import as_arguments, given, settings_options
from gossamer.cli.screen import Screen, ScreenLine, has_screen
from gossamer.cli.start import read_settings, refuse_windows, run
from gossamer.cli.suggest import SelectorSurvey, options
from gossamer.cli.terminal import put, say
from gossamer.clock import SystemClock
from gossamer.engine.links import Scope
from gossamer.engine.parsing import make_spider
from gossamer.engine.robots import Gate
from gossamer.errors import ConnectFailed, advice_for_kind
from gossamer.extract.page import Page
from gossamer.extract.spider import Spider
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.jobs.signals import leaving
from gossamer.logs import plain
from gossamer.middleware import Fetch
from gossamer.model import Request, Response
from gossamer.settings import Settings, introduces_itself

PAGES = 20
_KEPT_BYTES = 1 << 20
_EXAMPLES = 3
_RULES_SHOWN = 12
_PATIENCE_SECONDS = 5.0

Parse = Callable[[Page], Awaitable[list[Any]]]


class Observer:
    """Sits in both rings of a crawl and takes notes; what passes is not changed."""

    def __init__(self, spider: Spider, settings: Settings) -> None:
        self.spider = spider
        self.survey = SelectorSurvey()
        self.answers: dict[str, Response] = {}
        """Small answers by URL, to read robots.txt from."""
        self.latencies: list[float] = []
        self.sizes: list[int] = []
        self.found: dict[str, tuple[str, int]] = {}
        """Links -> the page and depth at which each was first found."""
        self.new_per_page: list[int] = []
        self.items: list[Any] = []
        self._settings = settings
        self._scope = Scope(settings)
        spider.fetch_middleware = [*spider.fetch_middleware, self._around_fetch]
        spider.parse_middleware = [self._around_parse, *spider.parse_middleware]

    def _around_fetch(self, fetch: Fetch) -> Fetch:
        async def fetch_and_note(request: Request) -> Response:
            response = await fetch(request)
            self.latencies.append(response.latency)
            if len(response.body) <= _KEPT_BYTES:
                self.answers[request.url] = response
            return response

        return fetch_and_note

    def _around_parse(self, parse: Parse) -> Parse:
        async def parse_and_note(page: Page) -> list[Any]:
            found = await parse(page)
            self._note(page, found)
            return found

        return parse_and_note

    def _note(self, page: Page, yielded: list[Any]) -> None:
        self.sizes.append(len(page.body))
        self.survey.read(page)
        made = [thing.url for thing in yielded if isinstance(thing, Request)]
        self.items += [thing for thing in yielded if thing is not None and not isinstance(thing, Request)][:_EXAMPLES]
        settings = self._settings
        links = page.links(settings.links, nofollow=settings.nofollow, max_links=settings.max_links)
        new = 0
        for url in (*made, *(links if self.spider.follows_links else ())):
            if url not in self.found:
                self.found[url] = (page.url, page.depth + 1)
                new += self._scope.refuse(url, page.url, page.depth + 1) is None
        self.new_per_page.append(new)

    def refusal(self, url: str) -> str | None:
        """Why a link that was found is not followed."""
        return self._scope.refuse(url, *self.found[url])

    async def recorded(self, request: Request) -> Response:
        """An answer that passed by, once more."""
        if request.url not in self.answers:
            raise ConnectFailed("nothing was recorded")
        return self.answers[request.url]


@click.command("try", cls=Sectioned)
@click.argument("url", metavar="URL")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@settings_options
def trial(url: str, as_json: bool, **settings: Any) -> int:
    """Look at 20 pages before a long crawl: scope, robots, delay, selectors, and an estimate.

    Takes the options of `gossamer crawl`; nothing is kept.
    """
    logs.start(quiet=True)
    refuse_windows()
    chosen = given(settings)
    built = read_settings(None, chosen)
    limit = min(PAGES, built.max_pages or PAGES)
    built = _brief(built, limit)
    seeds = job_folder.read_seeds([url])
    observer = Observer(make_spider(built), built)
    summary = run(_observe(LocalRun(None, built, seeds, spider=observer.spider), limit))
    report = run(findings(seeds[0], observer, summary, built, chosen))
    if as_json:
        put(f"{json.dumps(report)}\n".encode())
    else:
        put("".join(f"{line}\n" for line in trial_report.lines(report)).encode())
    return Exit.INTERRUPTED if summary.stopped_by == "SIGINT" else Exit.OK if report["good_pages"] else Exit.SOME_FAILED


def _brief(settings: Settings, limit: int) -> Settings:
    """Settings for a look: few pages, in this process, and with little patience."""
    most_seconds = limit * (settings.delay + _PATIENCE_SECONDS) + 30
    return msgspec.structs.replace(
        settings,
        max_pages=limit,
        max_seconds=min(most_seconds, settings.max_seconds or most_seconds),
        workers=1,
        parse_processes=0,
        recrawl="",
        tries=min(settings.tries, 2),
        site_failures=min(settings.site_failures, 2),
        backoff_seconds=min(settings.backoff_seconds, 1.0),
    )


async def _observe(crawl: LocalRun, limit: int) -> RunSummary:
    def stop(number: int) -> None:
        crawl.stop(signal.Signals(number).name)

    watching = asyncio.create_task(_watch(crawl, limit))
    try:
        async with leaving(stop, interrupt=crawl.interrupt, settings=crawl.settings):
            return await crawl.run()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(crawl: LocalRun, limit: int) -> None:
    if not has_screen():
        say(f"looking at up to {many(limit, 'page')}, {crawl.settings.delay:g} s apart")
        return
    with Screen() as screen:
        while True:
            latest = crawl.stats.latest[-1].url if crawl.stats.latest else "robots.txt first"
            line = plain(f"looking: {crawl.stats.pages} of {limit} pages  {latest}", screen.size()[0] - 1)
            screen.draw([ScreenLine(line, len(line))])
            await asyncio.sleep(0.25)


async def findings(
    seed: str, observer: Observer, summary: RunSummary, settings: Settings, chosen: dict[str, Any]
) -> dict[str, Any]:
    """All that was learned, as plain values."""
    stats = summary.stats
    gate, robots = await _robots(seed, observer, settings)
    followed: list[str] = []
    refused: dict[str, list[str]] = {}
    for url in observer.found:
        reason = observer.refusal(url)
        if reason is None and settings.robots and not gate.is_due(url) and not gate.allows(url):
            reason = "robots"
        if reason is None:
            followed.append(url)
        else:
            refused.setdefault(reason, []).append(url)
    suggestions = observer.survey.suggestions()
    delay = max([settings.delay, *(entry["crawl_delay"] or 0.0 for entry in robots)])
    failed = stats.by_status["failed"] + stats.by_status["retry"]
    return {
        "url": seed,
        "pages": stats.pages,
        "good_pages": stats.pages - stats.failures,
        "codes": {str(code): count for code, count in sorted(stats.codes.items())},
        "failed": dict(failed),
        "skipped": dict(stats.by_status["skipped"]),
        "advice": [text for kind in failed + stats.by_status["skipped"] if (text := advice_for_kind(kind))],
        "scope": {
            "setting": settings.scope,
            "followed": len(followed),
            "examples": followed[:_EXAMPLES],
            "refused": {
                reason: {"links": len(found), "examples": found[:_EXAMPLES]} for reason, found in refused.items()
            },
        },
        "robots": robots if settings.robots else None,
        "delay": delay,
        "latency": _spread(observer.latencies),
        "bytes": _spread(observer.sizes),
        "cut": {**stats.cut.plain(), "words": stats.cut.words()},
        "items": {"found": stats.items, "examples": [msgspec.to_builtins(item) for item in observer.items[:_EXAMPLES]]},
        "selectors": [suggestion._asdict() for suggestion in suggestions],
        "estimate": estimate(observer, len(followed), delay, summary),
        "command": _command(seed, chosen, options(suggestions), settings),
        "has_contact": introduces_itself(settings),
    }


async def _robots(seed: str, observer: Observer, settings: Settings) -> tuple[Gate, list[dict[str, Any]]]:
    """The rules of every origin that was asked, read from the answers once more."""
    gate = Gate({}, settings, SystemClock())
    if not settings.robots:
        return gate, []
    origins = dict.fromkeys([urls.origin(seed)])
    origins.update(dict.fromkeys(urls.origin(url) for url in observer.answers if urls.path_query(url) == "/robots.txt"))
    entries = []
    for origin in origins:
        robots = await gate.refresh(f"{origin}/", observer.recorded)
        entries.append(
            {
                "origin": origin,
                "kind": robots.kind,
                "rules": [
                    ["allow" if allow else "disallow", pattern]
                    for pattern, allow in islice(robots.rules.lines(), _RULES_SHOWN)
                ],
                "rule_count": robots.rules.count,
                "crawl_delay": robots.rules.crawl_delay,
                "sitemaps": list(robots.rules.sitemaps[:10]),
            }
        )
    return gate, entries


def estimate(observer: Observer, followed: int, delay: float, summary: RunSummary) -> dict[str, Any]:
    """How large the crawl may get. With less than one new link a page it ends; with more, only a floor is known."""
    seen = summary.stats.pages
    queued = summary.counts.queued + summary.counts.delayed
    later = observer.new_per_page[len(observer.new_per_page) // 2 :]
    growth = sum(later) / len(later) if later else 0.0
    # Each queued page brings `growth` further ones, and each of those again: a geometric series, if it converges.
    pages = seen + queued / (1 - growth) if growth < 0.95 else float(seen + queued)
    seconds = pages * (delay + (median(observer.latencies) if observer.latencies else 0.0))
    mean_bytes = sum(observer.sizes) / len(observer.sizes) if observer.sizes else 0.0
    return {
        "known_urls": max(seen + queued, followed),
        "queued": queued,
        "new_links_per_page": round(growth, 2),
        "bounded": growth < 0.95,
        "pages": round(pages),
        "seconds": round(seconds),
        "bytes": round(pages * mean_bytes),
    }


def _spread(values: list[Any]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": round(median(values), 4), "largest": round(max(values), 4)}


def _command(seed: str, chosen: dict[str, Any], extract: dict[str, str], settings: Settings) -> str:
    values = dict(chosen)
    if not settings.extract and not settings.spider and extract:
        values["extract"] = extract
    return shlex.join(["gossamer", "crawl", seed, *as_arguments(values)])
