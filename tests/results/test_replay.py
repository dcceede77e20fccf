from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Exchange, PageRow, Record
from gossamer.storage.warc.records import read_records
from gossamer.storage.warc.sink import WarcSink

SPIDER = """
import os
from dataclasses import dataclass
from gossamer import Spider

@dataclass
class Product:
    name: str
    price: float

def half(item):
    return None if item["name"] == "drop" else item

class Shop(Spider):
    item_types = Product
    pipelines = [half]

    def parse(self, page):
        if "raise" in page.url:
            raise ValueError("no")
        if "die" in page.url:
            os._exit(9)
        print("a line that must not hurt")
        yield page.follow("/next")
        yield {"name": page.css("h1::text").get(), "price": page.css("b::text").get()}

    def parse_detail(self, page):
        yield {"name": f"detail {page.meta['number']} {page.depth}", "price": 1}
"""


def store(job: Path, records: Sequence[Record]) -> None:
    async def run() -> None:
        sink = WarcSink(job / "archive", None, prefix="job", max_bytes=40_000, home=job)
        for record in records:
            await sink.write([record])
        await sink.aclose()

    asyncio.run(run())


def page(number: int, path: str = "", *, price: str = "1.5", name: str = "", **more: Any) -> Record:
    body = f"<h1>{name or number}</h1><b>{price}</b>{os.urandom(2000).hex()}".encode()
    exchange = Exchange(version="HTTP/1.1", headers=(("content-type", "text/html"),), wire_bytes=len(body))
    row = PageRow(url=f"http://shop.example/{path or number}", status=200, fetched_at=1.7e9 + number, depth=2)
    return Record(key=number, token=1, page=row, body=body, exchange=exchange, **more)


def replay(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", "replay", "--json", *map(str, arguments)], capture_output=True, check=False
    )
    assert done.returncode == code, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"error": done.stderr.decode()}
    return found


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_replay_gives_the_crawls_output_without_requests(tmp_path: Path) -> None:
    """The same spider, the same lines; the web is gone by then."""
    (tmp_path / "spider.py").write_text(
        "from gossamer import Spider\n"
        "class Shop(Spider):\n"
        "    follows_links = True\n"
        "    def parse(self, page):\n"
        "        for item in page.css('div.item'):\n"
        "            yield {'url': page.url, 'name': item.css('.name::text').get()}\n"
    )
    job, out = tmp_path / "job", tmp_path / "out"
    with SimWeb(sites=2, pages_per_site=8) as web:
        command = [sys.executable, "-m", "gossamer", "crawl", *web.seeds, "--job", str(job), "--no-robots", "--quiet"]
        options = ["--delay", "0", "--allow-private", "--spider", str(tmp_path / "spider.py")]
        subprocess.run([*command, *options, "--dedupe", "--sink", "jsonl", "--sink", "warc"], check=True, timeout=60)
    found = replay(job, "--out", out)
    for name in ("pages.jsonl", "items.jsonl"):
        assert sorted((out / name).read_bytes().splitlines()) == sorted((job / name).read_bytes().splitlines())
    assert found["pages"] == 16
    assert found["items"] == len(lines(job / "items.jsonl")) > 16


def test_output_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """Faults of the spider are counted with their page: exceptions, crashes, invalid items."""
    (tmp_path / "spider.py").write_text(SPIDER)
    records = [page(number) for number in range(1, 60)]
    records[3] = page(4, "raise")
    records[7] = page(8, "die")
    records[9] = page(10, price="much")
    records[11] = page(12, name="drop")
    records[13] = page(14, label="detail", meta={"number": 14})
    store(tmp_path / "job", records)
    assert len(list((tmp_path / "job" / "archive").glob("*.warc.gz"))) > 3
    outputs = []
    for processes in (1, 3):
        out = tmp_path / f"out{processes}"
        found = replay(
            tmp_path / "job", "--out", out, "--spider", tmp_path / "spider.py", "--processes", processes, code=3
        )
        outputs.append([(out / name).read_bytes() for name in ("pages.jsonl", "items.jsonl", "items-rejected.jsonl")])
    assert outputs[0] == outputs[1]
    assert (found["pages"], found["items"], found["rejected"], found["dropped"]) == (59, 55, 1, 1)
    assert found["requests"] == 56
    assert sorted(found["failures"]) == [
        ["http://shop.example/die", "the spider's process died on this page"],
        ["http://shop.example/raise", "ValueError: no (spider.py:20)"],
    ]
    assert [row["url"] for row in lines(out / "pages.jsonl")] == [record.page.url for record in records]
    assert {"name": "detail 14 2", "price": 1.0} in lines(out / "items.jsonl")
    (rejected,) = lines(out / "items-rejected.jsonl")
    assert (rejected["url"], rejected["type"], rejected["field"]) == ("http://shop.example/10", "Product", "price")
    assert rejected["item"] == {"name": "10", "price": "much"}


def test_broken_record_is_counted_and_the_crawl_is_unchanged(tmp_path: Path) -> None:
    job = tmp_path / "job"
    store(job, [page(number) for number in range(1, 5)])
    (path,) = (job / "archive").glob("*.warc.gz")
    place = [record.offset for record in read_records(path) if record.kind == "response"][1]
    data = bytearray(path.read_bytes())
    data[place + 20 : place + 40] = bytes(20)
    path.write_bytes(data)
    found = replay(path, "--extract", "name=h1::text", "--out", tmp_path / "out", code=3)
    assert (found["pages"], found["unread"]) == (3, 1)
    assert f"byte {place}" in found["faults"][0]
    (job / "job.toml").write_text("")
    assert "folder of a crawl" in replay(job, "--out", job, code=2)["error"]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "job.toml").write_text("")
    assert "--sink warc" in replay(tmp_path / "bare", code=2)["error"]
