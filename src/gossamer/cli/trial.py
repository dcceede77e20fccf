"""The command `try`: crawls a few pages in memory and reports scope, robots.txt, selectors, and an estimate."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import click
import msgspec
from turbohtml import Element, Node, Text

from gossamer import job_folder, logs, urls
from gossamer.cli import console
from gossamer.cli.console import Exit, many, put, say
from gossamer.cli.live_view import Screen, ScreenLine, has_screen
from gossamer.cli.options import Sectioned, as_arguments, given, settings_options
from gossamer.cli.runner import read_settings, refuse_windows, run
from gossamer.cli.summary import REFUSED
from gossamer.clock import SystemClock
from gossamer.engine.parsing import make_spider
from gossamer.engine.robots import SiteRobots
from gossamer.engine.scope import Scope
from gossamer.errors import ConnectFailed, advice_for_kind
from gossamer.extract.page import Page
from gossamer.extract.spider import Spider
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.jobs.signals import leaving
from gossamer.logs import plain
from gossamer.middleware import Fetch
from gossamer.model import Request, Response
from gossamer.settings import Settings, introduces_itself

_KINDS = {
    "rules": "has rules",
    "allow": "does not exist, so all pages are allowed",
    "unreachable": "could not be fetched, so no page may be",
}


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report as lines for the terminal. The last line is a command to paste, which is never cut."""
    parts = (_pages, _robots_lines, _scope, _selectors, _estimate)
    found = [plain(line, 400) for part in parts for line in part(report)]
    return [*found, plain(f"next: {report['command']}", 100_000)] if report["good_pages"] else found


def _pages(report: Mapping[str, Any]) -> Iterator[str]:
    codes = ", ".join(f"{code}: {count}" for code, count in report["codes"].items())
    yield f"pages     {report['pages']} fetched" + (f" ({codes})" if codes else "")
    if report["latency"]:
        middle, largest = (1000 * report["latency"][name] for name in ("median", "largest"))
        yield f"answers   after {middle:,.0f} ms (median), {largest:,.0f} ms at most"
    if report["bytes"]:
        middle, largest = (report["bytes"][name] for name in ("median", "largest"))
        yield f"sizes     {console.size(middle)} (median), {console.size(largest)} at most"
    if report["cut"]["pages"]:
        yield f"cut       {console.many(report['cut']['pages'], 'page')}: {report['cut']['words']}"
    for kind, count in console.most(report["failed"], 5):
        yield f"failed    {count} {kind}"
    for kind, count in console.most(report["skipped"], 5):
        yield f"skipped   {count} {kind}"
    for text in dict.fromkeys(report["advice"]):
        yield f"          {text}"
    if report["items"]["found"]:
        yield f"items     {report['items']['found']}, such as {report['items']['examples'][0]}"


def _robots_lines(report: Mapping[str, Any]) -> Iterator[str]:
    if report["robots"] is None:
        yield "robots    ignored (--no-robots)"
        return
    for entry in report["robots"]:
        yield f"robots    {entry['origin']}/robots.txt {_KINDS[entry['kind']]}"
        for verb, pattern in entry["rules"] if entry["kind"] == "rules" else ():
            yield f"          {verb} {pattern}"
        if entry["rule_count"] > len(entry["rules"]):
            yield f"          and {entry['rule_count'] - len(entry['rules'])} more rules"
        for sitemap in entry["sitemaps"][:3]:
            yield f"          sitemap {sitemap}"
        if entry["crawl_delay"] is not None:
            yield f"          crawl-delay {entry['crawl_delay']:g} s"
    yield f"delay     {report['delay']:g} s between two requests to a site"


def _scope(report: Mapping[str, Any]) -> Iterator[str]:
    scope = report["scope"]
    yield f"follows   {console.many(scope['followed'], 'link')} (--scope {scope['setting']})"
    for url in scope["examples"]:
        yield f"          {url}"
    for reason, found in sorted(scope["refused"].items(), key=lambda pair: -pair[1]["links"]):
        yield f"refuses   {console.many(found['links'], 'link')}: {REFUSED.get(reason, reason)}"
        for url in found["examples"][:2]:
            yield f"          {url}"


def _selectors(report: Mapping[str, Any]) -> Iterator[str]:
    if report["selectors"]:
        yield "suggested selectors, with samples:"
    for found in report["selectors"]:
        yield f"  --extract {found['name']}='{found['selector']}'"
        yield f"      {' | '.join(sample[:50] for sample in found['samples'])}"


def _estimate(report: Mapping[str, Any]) -> Iterator[str]:
    guess = report["estimate"]
    if not report["good_pages"]:
        yield "hint: no page was fetched, so there is no estimate; see the site's response with `gossamer fetch URL`"
        return
    about = "about" if guess["bounded"] else "at least"
    if guess["queued"] == 0:
        about = "all"
    yield (
        f"estimate  {about} {console.many(guess['pages'], 'page')}, {console.span(guess['seconds'])}, "
        f"{console.size(guess['bytes'])}"
    )
    if guess["queued"] and not guess["bounded"]:
        yield (
            f"          pages still add {guess['new_links_per_page']:g} new links each, so the total is unknown: "
            "limit it with --max-pages"
        )
    if not report["has_contact"]:
        yield "hint: identify your crawler: --user-agent 'NAME/1.0 (+https://your.site; you@your.site)'"


_WHOLE_PAGE = {
    "title": "title::text",
    "heading": "h1::text",
    "description": "meta[name=description]::attr(content)",
    "published": "time::attr(datetime)",
}
_BY_TAG = {"h1": "heading", "h2": "heading", "h3": "heading", "h4": "heading", "time": "date", "a": "link_text"}
_CLASS = re.compile(r"[A-Za-z][A-Za-z_-]{1,30}")
_STATES = """
    active current first last odd even open hidden visible selected clearfix row col container wrapper left right
"""
_BOILERPLATE = frozenset(("nav", "header", "footer", "head", "script", "style", "form"))
_MOST_ELEMENTS = 5000
_MOST_INSIDE = 60
_MOST_CONTAINERS = 3
_MOST_FIELDS = 4
_SAMPLES = 3


class Suggestion(NamedTuple):
    """A suggested selector for a field, with sample values."""

    name: str
    selector: str
    pages: int
    samples: tuple[str, ...]


class SelectorSurvey:
    """Finds selectors for fields that repeat across pages; keeps only counts and a few samples."""

    def __init__(self) -> None:
        self._pages = 0
        self._whole: dict[str, _Seen] = defaultdict(_Seen)
        self._containers: Counter[str] = Counter()
        self._fields: dict[str, dict[str, _Seen]] = defaultdict(lambda: defaultdict(_Seen))

    def read(self, page: Page) -> None:
        """Count the candidate fields of a page."""
        if not page.is_html:
            return
        self._pages += 1
        for selector in _WHOLE_PAGE.values():
            self._whole[selector].add(page.css(selector).getall()[:1])
        for container, members in _repeated(page).items():
            self._containers[container] += len(members)
            fields: dict[str, list[str]] = defaultdict(list)
            for member in members[:50]:
                for field, value in _texts(member).items():
                    fields[field].append(value)
            for field, values in fields.items():
                self._fields[container][field].add(values)

    def suggestions(self) -> list[Suggestion]:
        """The best candidates: fields that most pages have once, then the fields of repeated elements."""
        found = [
            Suggestion(name, selector, seen.pages, tuple(seen.samples))
            for name, selector in _WHOLE_PAGE.items()
            if (seen := self._whole[selector]).pages * 2 > self._pages
        ]
        taken = {suggestion.name for suggestion in found}
        for container in self._best():
            for field, seen in self._full_fields(container)[:_MOST_FIELDS]:
                name = _free_name(field, taken)
                found.append(Suggestion(name, f"{container} {field}::text", seen.pages, tuple(seen.samples)))
        return found

    def _best(self) -> list[str]:
        """Containers with several fields; of two with the same samples, the more frequent one."""
        worth = {
            container: count * len(fields)
            for container, count in self._containers.items()
            if len(fields := self._full_fields(container)) > 1
        }
        best: list[str] = []
        covered: set[str] = set()
        for container in sorted(worth, key=lambda name: (-worth[name], name)):
            samples = {sample for _, seen in self._full_fields(container) for sample in seen.samples}
            if not samples <= covered:
                best.append(container)
                covered |= samples
        return best[:_MOST_CONTAINERS]

    def _full_fields(self, container: str) -> list[tuple[str, _Seen]]:
        least = 0.6 * self._containers[container]
        full = [(field, seen) for field, seen in self._fields[container].items() if seen.values >= least]
        return sorted(full, key=lambda pair: (-pair[1].values, pair[0]))


class _Seen:
    """Pages and values in which a selector matched, with samples."""

    def __init__(self) -> None:
        self.pages = 0
        self.values = 0
        self.samples: list[str] = []

    def add(self, values: list[str]) -> None:
        kept = [text for value in values if (text := " ".join(value.split()))]
        self.pages += bool(kept)
        self.values += len(kept)
        for text in kept:
            if len(self.samples) < _SAMPLES and text[:200] not in self.samples:
                self.samples.append(text[:200])


def _repeated(page: Page) -> dict[str, list[Element]]:
    """Elements that share parent, tag, and class with a sibling, by `tag.class`, outside of boilerplate."""
    groups: dict[tuple[Node, str], list[Element]] = defaultdict(list)
    for node in page.tree.select("[class]")[:_MOST_ELEMENTS]:
        parent = node.parent
        if parent is None or node.tag in _BOILERPLATE:
            continue
        for name in _classes(node)[:2]:
            groups[parent, f"{node.tag}.{name}"].append(node)
    found: dict[str, list[Element]] = defaultdict(list)
    for (_, container), members in groups.items():
        if len(members) > 1 and not _in_boilerplate(members[0]):
            found[container] += members
    return found


def _texts(node: Element) -> dict[str, str]:
    """The texts inside an element by a short selector: the class if there is one, else a semantic tag."""
    found: dict[str, str] = {}
    for inner in node.select("*")[:_MOST_INSIDE]:
        text = "".join(child.data for child in inner if isinstance(child, Text)).strip()
        if not text:
            continue
        names = _classes(inner)
        if names:
            found.setdefault(f"{inner.tag}.{names[0]}", text)
        elif inner.tag in _BY_TAG:
            found.setdefault(inner.tag, text)
    return found


def _classes(node: Element) -> list[str]:
    names = (node.attr("class") or "").split()
    return [name for name in names if _CLASS.fullmatch(name) and name.lower() not in _STATES.split()]


def _in_boilerplate(node: Element) -> bool:
    return any(isinstance(around, Element) and around.tag in _BOILERPLATE for around in node.ancestors)


def _free_name(field: str, taken: set[str]) -> str:
    tag, dot, kind = field.partition(".")
    name = re.sub(r"\W+", "_", kind if dot else _BY_TAG.get(tag, tag)).strip("_").lower() or tag
    number = 2
    free = name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    taken.add(free)
    return free


def options(suggestions: Iterable[Suggestion]) -> dict[str, str]:
    """Suggestions as the setting `extract`."""
    return {suggestion.name: suggestion.selector for suggestion in suggestions}


PAGES = 20
_KEPT_BYTES = 1 << 20
_EXAMPLES = 3
_RULES_SHOWN = 12
_PATIENCE_SECONDS = 5.0

Parse = Callable[[Page], Awaitable[list[Any]]]


class Observer:
    """Fetch and parse middleware that records latencies, sizes, links, and items, and changes nothing."""

    def __init__(self, spider: Spider, settings: Settings) -> None:
        self.spider = spider
        self.survey = SelectorSurvey()
        self.answers: dict[str, Response] = {}
        """Small responses by URL, robots.txt among them."""
        self.latencies: list[float] = []
        self.sizes: list[int] = []
        self.found: dict[str, tuple[str, int]] = {}
        """Link -> the page and depth at which it was first found."""
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
            self._record(page, found)
            return found

        return parse_and_note

    def _record(self, page: Page, yielded: list[Any]) -> None:
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
        """Why a link is not followed; None if it is."""
        return self._scope.refuse(url, *self.found[url])

    async def recorded(self, request: Request) -> Response:
        """Fetch a URL from the recorded responses."""
        if request.url not in self.answers:
            raise ConnectFailed("nothing was recorded")
        return self.answers[request.url]


@click.command("try", cls=Sectioned)
@click.argument("url", metavar="URL")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@settings_options
def trial(url: str, as_json: bool, **settings: Any) -> int:
    """Crawl 20 pages and report scope, robots.txt, delay, selectors, and an estimate of the whole crawl.

    Takes the options of `gossamer crawl` and stores nothing.
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
        put("".join(f"{line}\n" for line in lines(report)).encode())
    return Exit.INTERRUPTED if summary.stopped_by == "SIGINT" else Exit.OK if report["good_pages"] else Exit.SOME_FAILED


def _brief(settings: Settings, limit: int) -> Settings:
    """Settings for a trial: few pages, in this process, with short timeouts and few retries."""
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
        say(f"fetching up to {many(limit, 'page')}, {crawl.settings.delay:g} s apart")
        return
    with Screen() as screen:
        while True:
            latest = crawl.stats.latest[-1].url if crawl.stats.latest else "robots.txt first"
            line = plain(f"fetching: {crawl.stats.pages} of {limit} pages  {latest}", screen.size()[0] - 1)
            screen.draw([ScreenLine(line, len(line))])
            await asyncio.sleep(0.25)


async def findings(
    seed: str, observer: Observer, summary: RunSummary, settings: Settings, chosen: dict[str, Any]
) -> dict[str, Any]:
    """The report as plain values."""
    stats = summary.stats
    checker, robots = await _robots(seed, observer, settings)
    followed: list[str] = []
    refused: dict[str, list[str]] = {}
    for url in observer.found:
        reason = observer.refusal(url)
        if reason is None and settings.robots and not checker.is_due(url) and not checker.allows(url):
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


async def _robots(seed: str, observer: Observer, settings: Settings) -> tuple[SiteRobots, list[dict[str, Any]]]:
    """The robots.txt rules of every origin that was fetched, parsed again from the recorded responses."""
    checker = SiteRobots({}, settings, SystemClock())
    if not settings.robots:
        return checker, []
    origins = dict.fromkeys([urls.origin(seed)])
    origins.update(dict.fromkeys(urls.origin(url) for url in observer.answers if urls.path_query(url) == "/robots.txt"))
    entries = []
    for origin in origins:
        robots = await checker.refresh(f"{origin}/", observer.recorded)
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
    return checker, entries


def estimate(observer: Observer, followed: int, delay: float, summary: RunSummary) -> dict[str, Any]:
    """Estimate the size of the crawl: a sum with fewer than one new link per page, otherwise only a minimum."""
    seen = summary.stats.pages
    queued = summary.counts.queued + summary.counts.delayed
    later = observer.new_per_page[len(observer.new_per_page) // 2 :]
    growth = sum(later) / len(later) if later else 0.0
    # Each queued page adds `growth` pages, and each of those again: a geometric series.
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
