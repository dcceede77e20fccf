"""Commands on a single page: fetch and shell."""

from __future__ import annotations

import code
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click
import msgspec

from gossamer import job_folder, logs, urls
from gossamer.cli.console import Exit, put, say
from gossamer.cli.options import given, some_settings
from gossamer.cli.runner import read_settings, run, runner
from gossamer.clock import Clock, SystemClock
from gossamer.cut import describe_cut, format_cut
from gossamer.download import open_downloader
from gossamer.engine.budget import Guard, Interrupted
from gossamer.engine.lifecycle import Lifecycle
from gossamer.engine.parsing import SpiderRunner, make_spider
from gossamer.engine.robots import SiteRobots
from gossamer.engine.robots_txt import product_token
from gossamer.engine.verdict import MAX_HOPS
from gossamer.errors import ConfigError, Disallowed, FetchError, TooManyRedirects, advice_for_error, advice_for_kind
from gossamer.extract.page import Page
from gossamer.extract.spider import Spider
from gossamer.extract.text import MIN_MAIN_SHARE
from gossamer.jobs.signals import leaving
from gossamer.jobs.worker import jar_of, middlewares, subresource_robots_of
from gossamer.logs import plain
from gossamer.middleware import Fetch, compose
from gossamer.model import REDIRECTS, Request, Response
from gossamer.settings import Settings

_FETCHING = """
    user_agent headers robots allow_private resolve nameservers ca_file client_cert bad_tls tls_min partial
    proxy proxy_rotation sessions secrets cookies cookie_jar cache downloader
    connect_seconds fetch_seconds max_body_bytes max_decoded_bytes max_links delay nofollow spider extract
    browser_path browser_wait browser_wait_seconds browser_scroll browser_loads screenshots
"""


class PageFetcher:
    """Fetches one page at a time, with the guard, the rules and the delay of a crawl, and follows redirects."""

    def __init__(self, spider: Spider, fetch: Fetch, settings: Settings, clock: Clock) -> None:
        self.spider = spider
        self._fetch = fetch
        self._settings = settings
        self._clock = clock
        self._gate = SiteRobots({}, settings, clock)
        self._next_at: dict[str, float] = {}

    async def page(self, url: str, told: Callable[[Response], None] = lambda _: None) -> Page:
        """The page at the end of the redirects; `told` sees every answer on the way."""
        for _ in range(MAX_HOPS + 1):
            request = Request(url, site=urls.host_port(url))
            if self._settings.robots:
                await self._ask_robots(url)
            response = await self._fetch_in_turn(request)
            told(response)
            target = urls.join(url, response.header("location")) if response.header("location") else None
            if response.status not in REDIRECTS or target is None:
                robot = product_token(self._settings.user_agent)
                settings = self._settings
                return Page(response, request, robot=robot, nofollow=settings.nofollow, max_links=settings.max_links)
            url = target
        raise TooManyRedirects(f"more than {MAX_HOPS} redirects, the last one to {url}")

    async def _ask_robots(self, url: str) -> None:
        met: list[FetchError] = []

        async def fetch_and_note(request: Request) -> Response:
            try:
                return await self._fetch(request)
            except FetchError as error:
                met.append(error)
                raise

        if self._gate.is_due(url):
            await self._gate.refresh(url, fetch_and_note)
        if self._gate.state(url).kind == "unreachable":
            # What stands in the way of robots.txt stands in the way of the page too.
            raise (
                met[-1]
                if met
                else Disallowed(
                    f"the robots.txt of {urls.origin(url)} cannot be had", hint=advice_for_kind("robots-unreachable")
                )
            )
        if not self._gate.allows(url):
            raise Disallowed(f"robots.txt does not allow {url}")

    async def _fetch_in_turn(self, request: Request) -> Response:
        wait = self._next_at.get(request.site, 0.0) - self._clock.monotonic()
        if wait > 0:
            await self._clock.sleep(wait)
        delay = self._settings.for_site(request.site).delay or 0.0
        if self._settings.robots:
            delay = max(delay, self._gate.state(request.url).rules.crawl_delay or 0.0)
        try:
            return await self._fetch(request)
        finally:
            self._next_at[request.site] = self._clock.monotonic() + delay


@asynccontextmanager
async def looking(settings: Settings) -> AsyncIterator[PageFetcher]:
    """A `PageFetcher` with everything it needs, which is closed again at the end."""
    clock = SystemClock()
    spider = make_spider(settings)
    downloader = open_downloader(settings, clock=clock)
    subresource_robots_of(downloader, settings, clock)
    try:
        ring = middlewares(spider, settings, clock, jar=jar_of(settings, clock))
        innermost: Fetch = downloader.fetch
        async with Lifecycle(spider, spider.pipelines):
            yield PageFetcher(spider, compose(ring, innermost), settings, clock)
    finally:
        await downloader.aclose()


@click.command()
@click.argument("url", metavar="URL")
@click.option("--headers", "mode", flag_value="headers", help="Print only the headers, to stdout.")
@click.option("--json", "mode", flag_value="json", help="Print what is known of the page as JSON.")
@click.option("--links", "mode", flag_value="links", help="Print the links, one a line.")
@click.option("--text", "mode", flag_value="text", help="Print the text that a reader sees.")
@click.option("--markdown", "mode", flag_value="markdown", help="Print the main part of the page as Markdown.")
@click.option("--whole", is_flag=True, help="With --markdown: print all of the page, with menus and the like.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@some_settings(*_FETCHING.split())
def fetch(url: str, mode: str | None, whole: bool, quiet: bool, **options: Any) -> int:
    """Fetch one page as a crawl would: headers to stderr, the body to stdout.

    With --extract or --spider the items of the page are printed instead, one JSON object a line.
    """
    logs.start(quiet=quiet)
    chosen = given(options)
    settings = read_settings(None, chosen)
    if mode is None and ("extract" in chosen or "spider" in chosen):
        mode = "items"
    if whole and mode in {None, "markdown"}:
        mode = "whole"
    target = _one_url(url)
    return run(_fetch(target, mode, settings, quiet=quiet or mode == "headers"))


async def _fetch(url: str, mode: str | None, settings: Settings, *, quiet: bool) -> int:
    hops: list[Response] = []

    def told(response: Response) -> None:
        hops.append(response)
        if not quiet:
            for line in _header_lines(response):
                say(line)

    async with looking(settings) as look:
        page = await _page_or_advice(look, url, told)
        if mode == "items":
            return await _print_items(look.spider, page, settings)
    # From here on there is nothing to lose, and neither C code nor a spider is to hold off Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if mode == "headers":
        _print_lines([line for hop in hops for line in (*_header_lines(hop), "")][:-1])
    elif mode == "json":
        _print_lines([json.dumps(_as_json(page, hops), ensure_ascii=False)])
    elif mode == "links":
        _print_lines(page.links(nofollow=settings.nofollow))
    elif mode == "text":
        _print_lines(page.text.split("\n"))
    elif mode == "markdown":
        _print_main_part(page, quiet=quiet)
    elif mode == "whole":
        _print_lines(page.to_markdown(main=False).split("\n"))
    else:
        _print_body(page)
    if page.cut and not quiet:
        say(f"warning: only a part of the page: {plain(describe_cut(format_cut(page.cut)))}")
    return Exit.OK if page.status < 400 else Exit.SOME_FAILED


async def _page_or_advice(look: PageFetcher, url: str, told: Callable[[Response], None] = lambda _: None) -> Page:
    try:
        return await look.page(url, told)
    except FetchError as error:
        error.hint = advice_for_error(error)
        error.args = (plain(f"{error.kind}: {error}"),)
        raise


def _print_main_part(page: Page, *, quiet: bool) -> None:
    _print_lines(page.markdown.split("\n"))
    if page.main_share < MIN_MAIN_SHARE and not quiet:
        say(f"note: the main part is {page.main_share:.0%} of the visible text; --whole prints all of it")


async def _print_items(spider: Spider, page: Page, settings: Settings) -> int:
    guard = Guard()
    try:
        async with leaving(lambda _: guard.hurry(), interrupt=guard.stop, settings=settings):
            found = await SpiderRunner(spider, settings, guard=guard).extract(page.request, page.response)
    except Interrupted:
        return Exit.INTERRUPTED
    _print_lines([msgspec.json.encode(item).decode() for item in found.items])
    for one in found.rejected:
        say(f"rejected: {plain(one.type)} {plain(one.field)}: {plain(one.error, 300)}")
    if found.error:
        say(f"error: {found.kind}: {plain(found.error)}")
        return Exit.ERROR
    if not found.items and not found.rejected:
        say("hint: no item was found on this page; --text and --json show what is on it")
    return Exit.OK


def _header_lines(response: Response) -> list[str]:
    headers = [f"{name}: {value}" for name, value in response.headers]
    status = f"{response.http_version or 'HTTP'} {response.status} {response.url}"
    figures = f"({response.address or 'by proxy'}, {response.elapsed:.3f} s, {len(response.body):,} bytes)"
    return [plain(line, 8000) for line in (f"{status} {figures}", *headers)]


def _as_json(page: Page, hops: list[Response]) -> dict[str, Any]:
    response = page.response
    found = {
        "url": page.url,
        "status": page.status,
        "http_version": response.http_version,
        "address": response.address,
        "headers": [list(pair) for pair in page.headers],
        "latency": round(response.latency, 4),
        "elapsed": round(response.elapsed, 4),
        "bytes": len(response.body),
        "wire_bytes": response.wire_bytes,
        "redirects": [hop.url for hop in hops[:-1]],
        "mime_type": page.mime_type,
        "encoding": page.encoding if page.is_html else None,
        "title": page.title,
        "robots": str(page.robots),
        "canonical": page.canonical,
        "alternates": page.alternates,
        "links": page.links(),
    }
    # What was cut is known when all has been read.
    return {**found, "cut": format_cut(page.cut)}


def _print_lines(lines: list[str]) -> None:
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    for line in lines:
        put(f"{plain(line, 100_000) if on_terminal else line}\n".encode("utf-8", "replace"))


def _print_body(page: Page) -> None:
    """The body as it is; on a terminal as text that cannot command it, and nothing of what is not text."""
    if sys.stdout is None:
        return
    if not sys.stdout.isatty():
        put(page.body)
    elif b"\0" in page.body and not page.is_html:
        say(f"hint: {len(page.body):,} bytes that are not text; redirect them into a file")
    else:
        for line in page.html.splitlines():
            put(f"{plain(line.expandtabs(), 100_000)}\n".encode())


@click.command()
@click.argument("url", metavar="URL")
@some_settings(*_FETCHING.split())
def shell(url: str, **options: Any) -> int:
    """Explore a page in Python: `page`, `fetch(url)` and `spider` are there.

    Commands can be piped in: echo 'print(page.title)' | gossamer shell URL
    """
    logs.start()
    settings = read_settings(None, given(options))
    target = _one_url(url)
    with runner() as loop:
        session = looking(settings)
        look = loop.run(session.__aenter__())
        try:
            names: dict[str, Any] = {
                "page": loop.run(_page_or_advice(look, target)),
                "fetch": lambda url: loop.run(_page_or_advice(look, _one_url(url))),
                "spider": look.spider,
                "settings": settings,
            }
            return _explore(names)
        finally:
            loop.run(session.__aexit__(None, None, None))


def _explore(names: dict[str, Any]) -> int:
    if sys.stdin is None or not sys.stdin.isatty():
        # Not even C code is to hold off Ctrl-C; at a prompt it has to leave the shell as it is.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        piped = _Piped(names)
        if piped.runsource(sys.stdin.read() if sys.stdin is not None else "", "<stdin>", "exec"):
            say("error: the script ends in the middle of a statement")
            return Exit.ERROR
        return Exit.ERROR if piped.failed else Exit.OK
    say(plain(f"page is {names['page']!r}; fetch(url) gets another one; spider and settings are there too"))
    if find_spec("IPython") is not None:
        import_module("IPython").start_ipython(argv=["--no-banner"], user_ns=names)
    else:
        with suppress(ImportError):
            import_module("readline")
        code.interact(banner="", local=names, exitmsg="")
    return Exit.OK


class _Piped(code.InteractiveInterpreter):
    """Runs a whole script, and remembers whether it failed."""

    failed = False

    def showtraceback(self) -> None:
        self.failed = True
        super().showtraceback()

    def showsyntaxerror(self, filename: str | None = None, **more: Any) -> None:
        self.failed = True
        super().showsyntaxerror(filename, **more)


def _one_url(text: str) -> str:
    found = job_folder.read_seeds([text])
    if not found:
        raise ConfigError("an empty URL", hint="a URL looks like https://example.com/")
    return found[0]
