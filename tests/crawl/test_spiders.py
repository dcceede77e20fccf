"""Spiders in whole crawls: all forms of handlers, labels, and invalid results."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import command, environment, rows, stored
from rawweb import RawWeb, page, reply

FORMS = """
import asyncio
import gossamer

class Forms(gossamer.Spider):
    def parse(self, page):
        return [page.follow(f"/{form}", label=form) for form in ("list", "generator", "async", "coroutine", "none")] + [
            page.follow("/lost", label="lost"), page.follow("/meta", label="meta", meta={"price": 1.5, "tags": ["a"]})
        ]

    def parse_list(self, page):
        return [{"form": "list", "title": page.title}, None]

    def parse_generator(self, page):
        yield {"form": "generator", "title": page.title}
        yield page.follow("/further", label="async")

    async def parse_async(self, page):
        await asyncio.sleep(0)
        yield {"form": "async", "title": page.title}
        await asyncio.sleep(0)
        yield page.follow("/last", label="list")

    async def parse_coroutine(self, page):
        await asyncio.sleep(0)
        return ({"form": "coroutine", "title": page.title} for _ in range(2))

    def parse_none(self, page):
        pass

    def parse_meta(self, page):
        yield {"form": "meta", **page.meta, "referrer": page.referrer.rpartition("/")[2]}
"""
WAYS = {"in the worker": (), "in processes": ("--parse-processes", "2"), "in two workers": ("--workers", "2")}
every_way = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


def run(tmp_path: Path, web: RawWeb, spider: str, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Crawl with a spider; the exit code, and the rows of pages.jsonl by path, each there once."""
    (tmp_path / "spider.py").write_text(spider)
    lines = command(tmp_path / "job", [web.url()], "--delay", "0", "--no-robots", "--quiet", "--tries", "1")
    done = subprocess.run(
        [*lines, "--spider", str(tmp_path / "spider.py"), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert set(stored(tmp_path / "job").values()) == {1}, done.stderr
    return done.returncode, {
        row["url"].removeprefix(web.url("")): row for row in rows(tmp_path / "job" / "pages.jsonl")
    }


@every_way
def test_handlers_of_every_form_are_run_by_their_label(tmp_path: Path, options: tuple[str, ...]) -> None:
    with RawWeb() as web:
        for path in (
            "/",
            "/list",
            "/generator",
            "/async",
            "/coroutine",
            "/none",
            "/lost",
            "/further",
            "/last",
            "/meta",
        ):
            web.answers[path] = page(title=path)
        code, found = run(tmp_path, web, FORMS, *options)
    items = rows(tmp_path / "job" / "items.jsonl")
    assert sorted(item.get("title", "") + " " + item["form"] for item in items) == [
        " meta",
        "/async async",
        "/coroutine coroutine",
        "/coroutine coroutine",
        "/further async",
        "/generator generator",
        "/last list",
        "/list list",
    ]
    assert [item for item in items if item["form"] == "meta"] == [
        {"form": "meta", "price": 1.5, "tags": ["a"], "referrer": ""}
    ]
    assert code == 3
    assert {path: row["error"] for path, row in found.items() if row["error"]} == {
        "/lost": "spider: spider Forms has no handler for label 'lost'"
        " (add a method parse_lost(self, page), or remove the label)"
    }
    assert len(web.log) == len(found) == 10


WRONG = """
import json
import gossamer

class Wrong(gossamer.Spider):
    def parse(self, page):
        name = page.url.rpartition("/")[2]
        yield {"item of": name}
        yield page.follow(f"/after/{name}", label="after")
        yield from getattr(self, name or "start")(page)

    def parse_after(self, page): pass
    def start(self, page): return page.follow_all()
    def fine(self, page): return ()

    def url_relative(self, page): yield gossamer.Request("/relative")
    def url_scheme(self, page): yield gossamer.Request("ftp://x/")
    def url_none(self, page): yield gossamer.Request(None)
    def meta_function(self, page): yield page.follow("/x", meta={"f": lambda: 1})
    def meta_half(self, page): yield page.follow("/x", meta={"f": "\\ud800"})
    def meta_huge(self, page): yield page.follow("/x", meta={"f": 2**80})
    def meta_list(self, page): yield page.follow("/x", meta=[1])
    def label_half(self, page): yield page.follow("/x", label="\\ud800")
    def label_number(self, page): yield page.follow("/x", label=5)
    def header_half(self, page): yield page.follow("/x", headers={"a": "\\ud800"})
    def header_number(self, page): yield page.follow("/x", headers={"a": 5})
    def body_text(self, page): yield page.follow("/x", method="POST", body="text")
    def priority_huge(self, page): yield page.follow("/x", priority=2**80)
    def priority_large(self, page): yield page.follow("/x", priority=2**40)
    def priority_real(self, page): yield page.follow("/x", priority=0.5)
    def item_half(self, page): yield {"title": json.loads('"\\\\udfff"')}
    def item_huge(self, page): yield {"n": 2**80}
    def item_object(self, page): yield {"page": page}
    def item_number(self, page): yield 5
    def item_link(self, page): yield "/link"
    def error_half(self, page): raise ValueError("\\ud800")
    def error_lines(self, page): raise ValueError("one\\ntwo")
    def error_exit(self, page): raise SystemError("x")
    def no_iterable(self, page): return 5
"""


@every_way
def test_whatever_a_spider_yields_costs_only_its_page(tmp_path: Path, options: tuple[str, ...]) -> None:
    methods = [line.split("(")[0].removeprefix("    def ") for line in WRONG.splitlines() if "    def " in line]
    names = [name for name in methods if name not in ("parse", "parse_after", "start", "fine")]
    wrong = {f"/{name}" for name in names}
    assert len(wrong) == 24
    with RawWeb() as web:
        web.answers["/"] = page(*wrong, "/fine")
        for path in (*wrong, "/fine", "/after/", "/after/fine"):
            web.answers[path] = page(title="t")
        code, found = run(tmp_path, web, WRONG, *options)
    assert code == 3
    assert {path for path, row in found.items() if row["error"]} == wrong
    assert {path for path, row in found.items() if row["error"].startswith("spider: ")} == wrong
    assert {found[path]["title"] for path in wrong} == {"t"}
    assert "yield page.follow(link)" in found["/item_link"]["error"]
    # Neither the items nor the links of a page whose handler failed are kept.
    assert sorted(item["item of"] for item in rows(tmp_path / "job" / "items.jsonl")) == ["", "fine"]
    assert sorted(web.targets()) == sorted(["/", "/fine", "/after/", "/after/fine", *wrong])


def test_halves_of_characters_in_a_page_are_replaced(tmp_path: Path) -> None:
    """H39."""
    pages = {
        "/bytes": reply(b"<title>a\xed\xa0\x80b</title><a href='/linked\xed\xa0\x80'>x</a>"),
        "/reference": reply("<title>a&#xD800;b</title>"),
        "/utf16": reply("<title>a\ud800b</title>".encode("utf-16-le", "surrogatepass")).replace(b"utf-8", b"utf-16le"),
    }
    with RawWeb() as web:
        web.answers.update(pages)
        web.answers["/"] = page(*pages)
        spider = "import gossamer\n\nclass All(gossamer.Spider):\n    follows_links = True\n"
        code, found = run(tmp_path, web, spider, "--text")
    assert code == 3  # the page that is linked from /bytes is not there
    assert {found[path]["title"].replace("\ufffd", "") for path in pages} == {"ab"}
    assert all("\ufffd" in found[path]["title"] for path in pages)
    assert set(found) == {"/", *pages, "/linked%EF%BF%BD%EF%BF%BD%EF%BF%BD"}
    assert [row["error"] for row in found.values() if row["error"]] == []


def test_a_feed_as_a_seed_leads_to_its_entries(tmp_path: Path) -> None:
    items = "".join(f"<item><title>{n}</title><link>/{n}</link></item>" for n in range(3))
    with RawWeb() as web:
        feed = f'<?xml version="1.0"?><rss version="2.0"><channel><link>/home</link>{items}</channel></rss>'.encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(feed)}\r\nContent-Type: application/rss+xml\r\n\r\n"
        web.answers["/"] = head.encode() + feed
        web.answers |= {f"/{n}": page(title=str(n)) for n in range(3)}
        lines = command(tmp_path / "job", [web.url()], "--delay", "0", "--no-robots", "--quiet")
        done = subprocess.run(lines, capture_output=True, text=True, timeout=60, check=False, env=environment())
        found = {row["url"].removeprefix(web.url("")): row for row in rows(tmp_path / "job" / "pages.jsonl")}
    assert (done.returncode, sorted(found)) == (0, ["/", "/0", "/1", "/2"])
    assert found["/"]["links"] == 3
