"""The result of a crawl in Python: seeds that fail, totals, failures, tables, and the progress bar."""

from __future__ import annotations

import asyncio
import io
import pickle
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rawweb import RawWeb, reply

import gossamer
from gossamer.jobs import collected
from gossamer.lab.simweb.process import SimWeb

QUICK: dict[str, Any] = {"delay": 0, "allow_private": True, "backoff_seconds": 0.01, "progress": False}


class Titles(gossamer.Spider):
    def parse(self, page: gossamer.Page) -> Iterator[Any]:
        yield {"title": page.title, "depth": page.depth}
        yield from page.follow_all()


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=2, pages_per_site=10, page_bytes=2000) as web:
        yield web


@pytest.fixture
def site() -> Iterator[RawWeb]:
    with RawWeb() as site:
        yield site


@pytest.fixture
def dead() -> Iterator[str]:
    """A URL whose server refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"


def url(site: RawWeb, path: str = "/") -> str:
    return f"http://127.0.0.1:{site.port}{path}"


def redirect(target: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()


def test_a_crawl_that_fetches_no_seed_raises_and_names_seeds_and_reasons(site: RawWeb, dead: str) -> None:
    seeds = [url(site, "/one"), url(site, "/two"), dead]
    pages = gossamer.crawl(seeds, robots=False, site_failures=1, tries=1, **QUICK)
    with pytest.raises(gossamer.SeedsFailed, match="none of the 3 seeds could be fetched") as error:
        list(pages)
    assert f"{seeds[0]}: http-404: HTTP 404 Not Found" in str(error.value)
    assert f"{dead}: connect: " in str(error.value)
    assert {(one.url, one.kind) for one in error.value.errors} == {
        (seeds[0], "http-404"), (seeds[1], "http-404"), (dead, "connect")
    }  # fmt: skip
    assert "raise_on_failure=False" in error.value.hint
    assert any("raise_on_failure" in note for note in error.value.__notes__), "a traceback shows the hint"
    assert sorted(pages.errors, key=str) == sorted(error.value.errors, key=str)
    assert (pages.summary.state, pages.summary.fetched, pages.summary.failed) == ("finished", 0, 3)


def test_seeds_that_were_not_tried_are_not_counted(site: RawWeb) -> None:
    seeds = [url(site, f"/{number}") for number in range(20)]
    with pytest.raises(gossamer.SeedsFailed, match=r"none of the 7 seeds that were tried") as error:
        list(gossamer.crawl(seeds, max_pages=7, **QUICK))
    assert "... and 2 more" in str(error.value)
    assert len(error.value.errors) == 7


def test_an_option_keeps_a_crawl_without_pages_from_raising(site: RawWeb) -> None:
    pages = gossamer.crawl(url(site), raise_on_failure=False, **QUICK)
    assert list(pages) == []
    assert [(one.url, one.kind, one.status) for one in pages.errors] == [(url(site), "http-404", 404)]


def test_the_reason_is_that_of_the_seed_also_without_a_request_to_it(site: RawWeb, dead: str) -> None:
    """robots.txt may disallow it or be unreachable, and its redirect may lead nowhere."""
    site.answers["/robots.txt"] = reply("User-agent: *\nDisallow: /private")
    site.answers["/moved"] = redirect("/gone")
    for path, kind in (("/private", "robots"), ("/moved", "http-404")):
        with pytest.raises(gossamer.SeedsFailed, match=f"{path}: {kind}: ") as error:
            list(gossamer.crawl(url(site, path), **QUICK))
        assert [(one.url, one.kind) for one in error.value.errors] == [(url(site, path), kind)]
    assert f"redirected to {url(site, '/gone')}: HTTP 404" in str(error.value)
    pages = gossamer.crawl(dead, site_failures=1, raise_on_failure=False, **QUICK)
    assert list(pages) == []
    assert [(one.url, one.kind) for one in pages.errors] == [(dead, "robots-unreachable")]
    with pytest.raises(gossamer.SeedsFailed, match="robots-unreachable"):
        list(gossamer.crawl(dead, max_seconds=0.5, **{**QUICK, "backoff_seconds": 60}))


def test_one_seed_that_can_be_fetched_is_enough(site: RawWeb) -> None:
    site.answers["/"] = reply("<title>Shop</title>")
    site.answers["/moved"] = redirect("/")
    pages = gossamer.crawl(url(site, "/none"), url(site, "/moved"), **QUICK)
    assert [page.title for page in pages] == ["Shop"]
    assert [(one.url, one.kind) for one in pages.errors] == [(url(site, "/none"), "http-404")]


def test_a_spider_that_raises_on_every_seed_is_reported(site: RawWeb) -> None:
    class Broken(gossamer.Spider):
        def parse(self, page: gossamer.Page) -> Any:
            raise ValueError("no price")

    site.answers["/"] = reply("x")
    with pytest.raises(gossamer.SeedsFailed, match="spider: ValueError: no price"):
        list(gossamer.crawl(url(site), spider=Broken, **QUICK))


def test_asyncio_and_a_thread_raise_the_same_error(site: RawWeb) -> None:
    async def crawl() -> None:
        async for _ in gossamer.crawl(url(site), **QUICK):
            pass

    with pytest.raises(gossamer.SeedsFailed, match="http-404"):
        asyncio.run(crawl())
    found: list[BaseException] = []

    def work() -> None:
        try:
            gossamer.crawl(url(site), **QUICK).run()
        except gossamer.SeedsFailed as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert len(found) == 1


def test_a_failed_job_raises_again_and_a_resumed_one_does_not(site: RawWeb, web: SimWeb, tmp_path: Path) -> None:
    failed, done = str(tmp_path / "failed"), str(tmp_path / "done")
    with pytest.raises(gossamer.SeedsFailed, match="http-404"):
        list(gossamer.crawl(url(site), job=failed, **QUICK))
    with pytest.raises(gossamer.SeedsFailed, match="in an earlier run") as error:
        list(gossamer.crawl(url(site), job=failed, **QUICK))
    assert "another name" in error.value.hint
    assert len(list(gossamer.crawl(*web.seeds, job=done, **QUICK))) == 20
    again = gossamer.crawl(*web.seeds, job=done, **QUICK)
    assert list(again) == []
    assert len(again.to_pandas()) == 20, "the pages of all runs"
    assert list(gossamer.crawl(url(site), job=done, **QUICK)) == [], "other seeds of the job were fetched"


def test_summary_and_repr_show_how_far_the_crawl_is(web: SimWeb) -> None:
    pages = gossamer.crawl(*web.seeds, spider=Titles, **QUICK)
    assert (pages.summary.state, pages.summary.pages, pages.summary.seconds) == ("not started", 0, 0.0)
    assert repr(pages) == f"<gossamer.Pages of {web.seeds[0]} and 1 more: not started, 0 pages>"
    for number, _ in enumerate(pages):
        if number == 15:
            assert pages.summary.state == "running"
    found = pages.summary
    assert (found.state, found.pages, found.fetched, found.failed, found.items) == ("finished", 20, 20, 0, 20)
    assert found.codes == {200: 20}
    assert found.queued == 0
    assert found.bytes > 20 * 1000
    assert found.seconds == pages.summary.seconds > 0, "the clock has stopped"
    assert repr(pages) == f"<gossamer.Pages of {web.seeds[0]} and 1 more: finished, 20 pages>"
    left = gossamer.crawl(*web.seeds, batch=1, **QUICK)
    for _ in left:
        break
    assert left.summary.state == "stopped"
    with pytest.raises(gossamer.GossamerError, match="this crawl has run already"):
        list(left)


def test_tables_run_the_crawl_and_may_be_read_again(web: SimWeb) -> None:
    pages = gossamer.crawl(*web.seeds, spider=Titles, **QUICK)
    frame = pages.to_pandas()
    assert (len(frame), frame.status.unique().tolist(), pages.summary.state) == (20, [200], "finished")
    items = pages.to_pandas(what="items")
    assert sorted(items.title) == sorted(frame.title)
    assert list(items.columns) == ["title", "depth"]
    assert str(pages.to_arrow().schema.field("fetched_at").type) == "timestamp[us, tz=UTC]"
    assert pages.to_arrow("items").num_rows == len(list(pages.items())) == len(list(pages.results())) == 20
    with pytest.raises(gossamer.ConfigError, match="'links'") as error:
        pages.to_pandas(what="links")  # type: ignore[arg-type]
    assert 'what="items"' in error.value.hint


def test_a_missing_package_is_reported_before_the_crawl(web: SimWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = gossamer.crawl(*web.seeds, **QUICK)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(gossamer.ConfigError, match="needs pandas"):
        pages.to_pandas()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(gossamer.ConfigError, match="needs pyarrow"):
        pages.to_arrow()
    assert pages.summary.state == "not started"


def test_one_spider_object_may_run_several_crawls() -> None:
    """In a notebook, the spider is made in one cell, and the cell of the crawl is run again."""
    spider = Titles()
    with SimWeb(sites=1, pages_per_site=80, page_bytes=2000) as large:
        for _ in range(2):
            assert len(list(gossamer.crawl(*large.seeds, spider=spider, **QUICK))) == 80
    assert list(spider.parse_middleware) == []


def test_tables_have_redirects_and_failures_and_what_was_fetched_before_leaving(site: RawWeb, web: SimWeb) -> None:
    site.answers |= {
        "/": reply("<a href=/moved>a</a><a href=/none>b</a>"),
        "/moved": redirect("/end"),
        "/end": reply("e"),
    }
    pages = gossamer.crawl(url(site), **QUICK)
    assert sorted(pages.to_pandas().status) == [200, 200, 302, 404]
    assert (pages.summary.pages, pages.summary.fetched, pages.summary.failed) == (4, 2, 1)
    left = gossamer.crawl(*web.seeds, batch=1, commit_seconds=0, **QUICK)
    for number, _ in enumerate(left):
        if number == 4:
            break
    assert 4 <= len(left.to_pandas()) == left.summary.pages < 20


def test_a_job_has_the_tables_of_its_crawl(web: SimWeb, tmp_path: Path) -> None:
    pages = gossamer.crawl(*web.seeds, spider=Titles, job=str(tmp_path / "job"), **QUICK)
    frame, items = pages.to_pandas(), pages.to_pandas("items")
    assert pages.summary.job == str(tmp_path / "job")
    with gossamer.open_job(str(tmp_path / "job")) as job:
        assert job.to_pandas().equals(frame)
        assert job.to_pandas("items").equals(items)
        assert job.to_arrow().num_rows == job.to_arrow(what="items").num_rows == 20

    async def read() -> tuple[int, int]:
        async with gossamer.open_job(str(tmp_path / "job")) as job:
            return len(await job.to_pandas()), len(await job.to_arrow("items"))

    assert asyncio.run(read()) == (20, 20)


def test_everything_works_inside_a_running_event_loop(web: SimWeb) -> None:
    """As in a notebook, whose cells run in a loop."""

    async def cell() -> tuple[int, int]:
        pages = gossamer.crawl(*web.seeds, **QUICK)
        awaited = gossamer.crawl(*web.seeds, **QUICK)
        count = len([page async for page in awaited])
        in_thread = gossamer.crawl(*web.seeds, **QUICK)
        assert len(await asyncio.to_thread(in_thread.to_pandas)) == 20
        return len(pages.to_pandas()), count + len(awaited.to_pandas())

    assert asyncio.run(cell()) == (20, 40)


def test_a_long_crawl_keeps_its_pages_on_disk(web: SimWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "_MEMORY_BYTES", 1000)
    monkeypatch.setattr(collected, "_READ_BYTES", 500)
    pages = gossamer.crawl(*web.seeds, **QUICK)
    during = [len(list(pages.results())) for _ in pages]
    assert during == sorted(during)
    assert len(pages.to_pandas()) == 20


def test_pages_that_cannot_be_kept_do_not_stop_the_crawl(web: SimWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda _: Full())
    pages = gossamer.crawl(*web.seeds, **QUICK)
    assert len(list(pages)) == 20
    with pytest.raises(gossamer.ConfigError, match="No space left") as error:
        pages.to_pandas()
    assert "job=" in error.value.hint


def test_a_notebook_shows_summary_and_failures_escaped(site: RawWeb) -> None:
    site.answers["/"] = reply("<a href='/&lt;b&gt;'>x</a>")
    pages = gossamer.crawl(url(site), **QUICK)
    assert "not started" in pages._repr_html_()
    pages.run()
    shown = pages._repr_html_()
    assert "finished" in shown
    assert "http-404" in shown
    assert "<b>/" not in shown.replace("<b>Crawl", "")
    assert "200: 1, 404: 1" in shown


def test_seeds_failed_can_be_pickled() -> None:
    error = gossamer.SeedsFailed("x", hint="y", errors=[gossamer.FailedPage("u", "k", "r")])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.hint, copy.errors) == ("x", "y", error.errors)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_shown_on_a_terminal_only_unless_wanted(web: SimWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, progress, expected in (
        (Terminal(), None, True),
        (Terminal(), False, False),
        (io.StringIO(), None, False),
        (io.StringIO(), True, True),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", plain := io.StringIO())
        for page in gossamer.crawl(*web.seeds, **{**QUICK, "progress": progress}, max_pages=15):
            print(page.status)
        assert ("15/15 pages" in stream.getvalue()) is expected
        assert plain.getvalue().split() == ["200"] * 15, "redirected output is not captured"


def test_a_notebook_shows_a_bar_in_its_cell(web: SimWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, int]] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append((html, threading.get_ident()))

    def display(html: str, *, display_id: bool) -> Handle:
        assert display_id
        shown.append((html, threading.get_ident()))
        return Handle()

    shell = type("ZMQInteractiveShell", (), {})()
    root, part = ModuleType("IPython"), ModuleType("IPython.display")
    vars(root).update(get_ipython=lambda: shell, display=part)
    vars(part).update(HTML=lambda text: text, display=display)
    monkeypatch.setitem(sys.modules, "IPython", root)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    pages = gossamer.crawl(*web.seeds, **{**QUICK, "progress": None}, max_pages=15)
    assert len(pages.to_pandas()) == 15
    assert "<progress value=15 max=15>" in shown[-1][0]
    assert {thread for _, thread in shown} == {threading.get_ident()}, "drawn by the thread of the cell"

    async def cell() -> int:
        return len([page async for page in gossamer.crawl(*web.seeds, **{**QUICK, "progress": None})])

    assert asyncio.run(cell()) == 20
    assert "20 pages" in shown[-1][0]


def test_a_bar_says_why_nothing_is_fetched(dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    settings = {**QUICK, "progress": None, "backoff_seconds": 60}
    with pytest.raises(gossamer.SeedsFailed):
        list(gossamer.crawl(dead, max_seconds=0.8, **settings))
    assert f"for {dead[7:-1]} (robots-unreachable)" in stream.getvalue()
