"""API of stored pages, for all file-based sinks: look-up by URL and time, versions, and bodies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from service_process import Served, serving

from gossamer.clock import SystemClock
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.job_folder import FRONTIER, save_settings
from gossamer.model import Exchange, PageRow, Record
from gossamer.settings import Settings
from gossamer.storage.registry import open_sinks

URL = "http://a.example/page?x=1"
NOW = 1_700_000_000.25
STORES = ["jsonl", "jsonl:zstd", "jsonl:gzip", "parquet", "sqlite", "csv", "warc", "jsonl+folder", "folder", "away"]


def visit(number: int, *, url: str = URL, key: int = 7, at: float = 0.0) -> Record:
    row = PageRow(url=url, status=200, title=f"Title {number}", fetched_at=NOW + at, bytes=5, digest=f"{number}")
    exchange = Exchange(version="HTTP/1.1", headers=(("content-type", "text/html"),), wire_bytes=5)
    return Record(key=key, token=number, page=row, body=b"body%d" % number, exchange=exchange)


def stored(folder: Path, sinks: str) -> None:
    """Create a stopped job with three visits of two pages."""
    places = {"folder": f"folder:{folder}-tree", "away": f"warc:{folder}-warcs"}
    names = [places.get(name, name) for name in sinks.split("+")]
    settings = Settings(sink=tuple(names))
    save_settings(folder, settings)

    async def run() -> None:
        await open_sqlite(folder / FRONTIER, settings, clock=SystemClock()).aclose()
        opened = open_sinks(settings, folder, {})
        for sink in opened:
            await sink.write([visit(1), visit(2, url="http://a.example/", key=8)])
            await sink.write([visit(3, at=1000.0)])
            await sink.aclose()

    asyncio.run(run())


def searched(served: Served, job: str, sinks: str) -> None:
    """Search by site, status, time, and prefix, with pagination, newest first; a tree alone has no rows."""
    if sinks == "folder":
        assert "--sink jsonl" in served.get(f"{job}/pages", 409)["hint"]
        return

    def found(**query: Any) -> list[float]:
        times: list[float] = []
        cursor: dict[str, Any] = {}
        while True:
            answer = served.get(f"{job}/pages", limit=1, **query, **cursor)
            times += [round(page["fetched_at"] - NOW, 2) for page in answer["pages"]]
            if answer["next"] is None:
                return times
            cursor = {"cursor": answer["next"]}

    everything = [1000.0, 0.0] if sinks == "sqlite" else [1000.0, 0.0, 0.0]
    assert found() == everything, sinks
    assert found(site="a.example", status=200) == everything, sinks
    assert found(since=NOW + 1) == [1000.0], sinks
    assert found(until=NOW + 1) == everything[1:], sinks
    assert found(prefix=URL) == (everything[:1] if sinks == "sqlite" else [1000.0, 0.0]), sinks
    assert found(site="example") == found(status=404) == [], sinks


def test_pages_are_found_in_every_file_based_sink(tmp_path: Path) -> None:
    for number, sinks in enumerate(STORES):
        stored(tmp_path / "crawls" / f"j{number}", sinks)
    stored(tmp_path / "crawls" / "nowhere", "jsonl")
    (tmp_path / "crawls" / "nowhere" / "pages.jsonl").unlink()
    with serving(tmp_path) as served:
        for number, sinks in enumerate(STORES):
            job = f"/api/jobs/j{number}"
            found = served.get(f"{job}/versions", url=URL)["versions"]
            times = [round(one["fetched_at"] - NOW, 2) for one in found]
            if sinks == "folder":
                # A tree alone knows no more than the body of the last visit.
                assert [one["bytes"] for one in found] == [5]
            else:
                assert times == ([1000.0] if sinks == "sqlite" else [1000.0, 0.0]), sinks
                assert found[0]["title"] == "Title 3", sinks
                nearest = served.get(f"{job}/page", url=URL, at=NOW + 1)
                assert nearest["fetched_at"] == found[-1]["fetched_at"], sinks
            searched(served, job, sinks)
            assert served.get(f"{job}/versions", url="http://a.example/other")["versions"] == []
            served.get(f"{job}/page", 404, url="http://a.example/other")
            if sinks in ("warc", "away", "jsonl+folder", "folder"):
                assert served.get(f"{job}/body", url=URL) == "body3"
                assert served.get(f"{job}/body", url=URL, at=NOW) == ("body3" if "folder" in sinks else "body1")
            else:
                assert "warc" in served.get(f"{job}/body", 409, url=URL)["hint"]
        assert served.get("/api/jobs/nowhere/versions", 409, url=URL)["hint"]
        for name, path in (("at", "page"), ("at", "body"), ("since", "pages")):
            odd = served.get(
                f"/api/jobs/j0/{path}", 400, **({"url": URL} if name == "at" else {}), **{name: "2026-01-31"}
            )
            assert f"{name}: '2026-01-31' is not a time in epoch seconds" in odd["message"]
            assert "date -d" in odd["hint"]
