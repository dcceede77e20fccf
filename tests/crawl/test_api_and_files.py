"""A spider that posts JSON, follows pagination, and downloads files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rawweb import Asked, RawWeb, reply

from gossamer.api import crawl
from gossamer.extract.page import Page
from gossamer.extract.spider import Spider

FILE = bytes(range(256)) * 1200


class Catalogue(Spider):
    def parse(self, page: Page):  # type: ignore[no-untyped-def]
        yield page.follow("/api?n=0", json={"q": "tea"}, label="list")

    def parse_list(self, page: Page):  # type: ignore[no-untyped-def]
        found = page.json()
        yield from (page.file(href, meta={"name": href}) for href in found["files"])
        if found["next"] is not None:
            yield page.follow(page.with_query(n=found["next"]), json={"q": "tea"}, label="list")


def test_a_spider_posts_turns_pages_and_keeps_files(tmp_path: Path) -> None:
    """Files may be longer than pages, and have a limit of their own (H16, H17)."""

    def api(asked: Asked) -> bytes:
        assert (asked.method, json.loads(asked.body)) == ("POST", {"q": "tea"})
        number = int(asked.target.partition("n=")[2])
        names = {0: ["/a.bin"], 1: ["/b.bin", "/huge.bin"], 2: []}[number]
        return reply(json.dumps({"files": names, "next": number + 1 if number < 2 else None}))

    with RawWeb() as web:
        web.answers = {f"/api?n={number}": api for number in range(3)}
        kind = ("Content-Type: application/octet-stream",)
        web.answers |= {"/": reply("x"), "/a.bin": reply(FILE, headers=kind), "/b.bin": reply(FILE[:-1], headers=kind)}
        web.answers["/huge.bin"] = reply(FILE + b"x")
        web.answers["/page.bin"] = reply(FILE)
        limits: dict[str, Any] = {"max_body_bytes": 1000, "max_decoded_bytes": 1000, "max_file_bytes": len(FILE)}
        places: dict[str, Any] = {"job": str(tmp_path / "job"), "sink": ["jsonl", f"folder:{tmp_path / 'tree'}"]}
        pages = crawl(
            f"http://127.0.0.1:{web.port}/",
            f"http://127.0.0.1:{web.port}/page.bin",
            spider=Catalogue,
            delay=0,
            robots=False,
            allow_private=True,
            tries=1,
            **limits,
            **places,
        )
        statuses = [page.status for page in pages]
    assert len(statuses) == 7
    items = [json.loads(line) for line in (tmp_path / "job" / "items.jsonl").read_text().splitlines()]
    assert sorted((item["name"], item["bytes"]) for item in items) == [("/a.bin", len(FILE)), ("/b.bin", len(FILE) - 1)]
    kept = {path.read_bytes() for path in (tmp_path / "tree" / "htmls").rglob("*") if path.is_file()}
    assert {FILE, FILE[:-1]} <= kept
    rows = [json.loads(line) for line in (tmp_path / "job" / "pages.jsonl").read_text().splitlines()]
    ends = {row["url"].rpartition("/")[2]: row for row in rows}
    assert [name for name, row in ends.items() if row["error"].startswith("too-large")] == ["huge.bin"]
    assert ends["page.bin"]["cut"] == f"max_body_bytes:{len(FILE) - 1000}"
