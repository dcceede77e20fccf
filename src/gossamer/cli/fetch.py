"""The commands `fetch` and `shell`, for a single page."""

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
    connect_seconds fetch_seconds max_body_bytes max_decoded_bytes max_links delay nofollow spider spider_args extract
    browser_path browser_wait browser_wait_seconds browser_scroll browser_loads screenshots
"""


class PageFetcher:
    """Fetches one page at a time as a crawl would: with robots.txt, delay, address guard, and redirects."""

    def __init__(self, spider: Spider, fetch: Fetch, settings: Settings, clock: Clock) -> None:
        self.spider = spider
        self._fetch = fetch
        self._settings = settings
        self._clock = clock
        self._robots = SiteRobots({}, settings, clock)
        self._next_at: dict[str, float] = {}

    async def page(self, url: str, on_response: Callable[[Response], None] = lambda _: None) -> Page:
        """Fetch a page and follow redirects; `on_response` is called with every response."""
        for _ in range(MAX_HOPS + 1):
            request = Request(url, site=urls.host_port(url))
            if self._settings.robots:
                await self._check_robots(url)
            response = await self._fetch_after_delay(request)
            on_response(response)
            target = urls.join(url, response.header("location")) if response.header("location") else None
            if response.status not in REDIRECTS or target is None:
                robot = product_token(self._settings.user_agent)
                settings = self._settings
                return Page(response, request, robot=robot, nofollow=settings.nofollow, max_links=settings.max_links)
            url = target
        raise TooManyRedirects(f"more than {MAX_HOPS} redirects, the last one to {url}")

    async def _check_robots(self, url: str) -> None:
        errors: list[FetchError] = []

        async def fetch_and_record(request: Request) -> Response:
            try:
                return await self._fetch(request)
            except FetchError as error:
                errors.append(error)
                raise

        if self._robots.is_due(url):
            await self._robots.refresh(url, fetch_and_record)
        if self._robots.state(url).kind == "unreachable":
            # An error that prevents fetching robots.txt would prevent fetching the page, too.
            raise (
                errors[-1]
                if errors
                else Disallowed(
                    f"cannot fetch {urls.origin(url)}/robots.txt", hint=advice_for_kind("robots-unreachable")
                )
            )
        if not self._robots.allows(url):
            raise Disallowed(f"robots.txt disallows {url}")

    async def _fetch_after_delay(self, request: Request) -> Response:
        wait = self._next_at.get(request.site, 0.0) - self._clock.monotonic()
        if wait > 0:
            await self._clock.sleep(wait)
        delay = self._settings.for_site(request.site).delay or 0.0
        if self._settings.robots:
            delay = max(delay, self._robots.state(request.url).rules.crawl_delay or 0.0)
        try:
            return await self._fetch(request)
        finally:
            self._next_at[request.site] = self._clock.monotonic() + delay


@asynccontextmanager
async def open_page_fetcher(settings: Settings) -> AsyncIterator[PageFetcher]:
    """A `PageFetcher` with its downloader and spider, which are closed at the end."""
    clock = SystemClock()
    spider = make_spider(settings)
    downloader = open_downloader(settings, clock=clock)
    subresource_robots_of(downloader, settings, clock)
    try:
        chain = middlewares(spider, settings, clock, jar=jar_of(settings, clock))
        innermost: Fetch = downloader.fetch
        async with Lifecycle(spider, spider.pipelines):
            yield PageFetcher(spider, compose(chain, innermost), settings, clock)
    finally:
        await downloader.aclose()


@click.command()
@click.argument("url", metavar="URL")
@click.option("--headers", "mode", flag_value="headers", help="Print only the response headers, to stdout.")
@click.option("--json", "mode", flag_value="json", help="Print response and page metadata as JSON.")
@click.option("--links", "mode", flag_value="links", help="Print the links, one per line.")
@click.option("--text", "mode", flag_value="text", help="Print the visible text.")
@click.option("--markdown", "mode", flag_value="markdown", help="Print the main content as Markdown.")
@click.option("--whole", is_flag=True, help="With --markdown: print the whole page, including menus and footers.")
@click.option("--quiet", is_flag=True, help="Print errors only.")
@some_settings(*_FETCHING.split())
def fetch(url: str, mode: str | None, whole: bool, quiet: bool, **options: Any) -> int:
    """Fetch one page as a crawl would.

    Prints the headers to stderr and the body to stdout. With --extract or --spider, prints the items of the page
    instead, one JSON object per line.
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

    def on_response(response: Response) -> None:
        hops.append(response)
        if not quiet:
            for line in _header_lines(response):
                say(line)

    async with open_page_fetcher(settings) as fetcher:
        page = await _page_or_advice(fetcher, url, on_response)
        if mode == "items":
            return await _print_items(fetcher.spider, page, settings)
    # Nothing can be lost from here on: let Ctrl-C end the process at once, also in C code.
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
        say(f"warning: the page was cut: {plain(describe_cut(format_cut(page.cut)))}")
    return Exit.OK if page.status < 400 else Exit.SOME_FAILED


async def _page_or_advice(
    fetcher: PageFetcher, url: str, on_response: Callable[[Response], None] = lambda _: None
) -> Page:
    try:
        return await fetcher.page(url, on_response)
    except FetchError as error:
        error.hint = advice_for_error(error)
        error.args = (plain(f"{error.kind}: {error}"),)
        raise


def _print_main_part(page: Page, *, quiet: bool) -> None:
    _print_lines(page.markdown.split("\n"))
    if page.main_share < MIN_MAIN_SHARE and not quiet:
        say(f"note: the main content is {page.main_share:.0%} of the visible text; print all of it with --whole")


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
        say("hint: the spider found no items on this page; inspect it with --text or --json")
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
    # Cuts are known only after the other fields have been computed.
    return {**found, "cut": format_cut(page.cut)}


def _print_lines(lines: list[str]) -> None:
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    for line in lines:
        put(f"{plain(line, 100_000) if on_terminal else line}\n".encode("utf-8", "replace"))


def _print_body(page: Page) -> None:
    """Print the body unchanged; on a terminal print escaped text, and no binary data."""
    if sys.stdout is None:
        return
    if not sys.stdout.isatty():
        put(page.body)
    elif b"\0" in page.body and not page.is_html:
        say(f"hint: the body is {len(page.body):,} bytes of binary data; redirect the output to a file")
    else:
        for line in page.html.splitlines():
            put(f"{plain(line.expandtabs(), 100_000)}\n".encode())


@click.command()
@click.argument("url", metavar="URL")
@some_settings(*_FETCHING.split())
def shell(url: str, **options: Any) -> int:
    """Open a Python shell on a page.

    The shell has `page`, `fetch(url)`, `spider`, and `settings`. Scripts can be piped in: echo 'print(page.title)' |
    gossamer shell URL
    """
    logs.start()
    settings = read_settings(None, given(options))
    target = _one_url(url)
    with runner() as loop:
        session = open_page_fetcher(settings)
        fetcher = loop.run(session.__aenter__())
        try:
            names: dict[str, Any] = {
                "page": loop.run(_page_or_advice(fetcher, target)),
                "fetch": lambda url: loop.run(_page_or_advice(fetcher, _one_url(url))),
                "spider": fetcher.spider,
                "settings": settings,
            }
            return _explore(names)
        finally:
            loop.run(session.__aexit__(None, None, None))


def _explore(names: dict[str, Any]) -> int:
    if sys.stdin is None or not sys.stdin.isatty():
        # For scripts, Ctrl-C ends the process at once, also in C code; a prompt handles it itself.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        piped = _Piped(names)
        if piped.runsource(sys.stdin.read() if sys.stdin is not None else "", "<stdin>", "exec"):
            say("error: incomplete statement at the end of the script")
            return Exit.ERROR
        return Exit.ERROR if piped.failed else Exit.OK
    say(plain(f"page = {names['page']!r}; also available: fetch(url), spider, settings"))
    if find_spec("IPython") is not None:
        import_module("IPython").start_ipython(argv=["--no-banner"], user_ns=names)
    else:
        with suppress(ImportError):
            _complete_names(names)
        code.interact(banner="", local=names, exitmsg="")
    return Exit.OK


def _complete_names(names: dict[str, Any]) -> None:
    """Complete names and attributes at the prompt with TAB; ImportError without readline."""
    import readline
    import rlcompleter

    readline.set_completer(rlcompleter.Completer(names).complete)
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")


class _Piped(code.InteractiveInterpreter):
    """Runs a whole script; `failed` is whether it raised."""

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
        raise ConfigError("the URL is empty", hint="a URL looks like https://example.com/")
    return found[0]
