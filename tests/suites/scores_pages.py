"""Real pages, strings that break things, and archives of others."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import re
import tempfile
from pathlib import Path

from score import Score, tally

from gossamer.extract.page import Page
from gossamer.model import PageRow, Record, Request, Response
from gossamer.storage.csv import CsvSink
from gossamer.storage.jsonl import JsonlSink
from gossamer.storage.warc.index import scan

SUITES = Path(__file__).parents[2].parent / "shared" / "suites"
READS = ("pages-article-benchmark", "hostile-strings", "warc-warcio", "warc-fastwarc")
MIN_MAIN_SHARE = 0.95
_LEFT_OUT = "the truth leaves out words that stand in the middle of the text"
ARTICLES = {
    "http://note100yen.com/en-180816.html": _LEFT_OUT,
    "http://jeongdongtheater.com/blog/2018/10/15/palace-tale-jang-noksu-beauty-korea-revealed-2018-welcome-daehak-ro-"
    "festival-actual-scene/": _LEFT_OUT,
}
RECORDS = {
    **{"block-sized-records.warc.gz": 3, "clueweb-quirk.warc.gz": 30, "warcfile.warc.gz": 50, "clipped.warc.gz": 0},
    **{"example.warc.gz": 6, "example.arc.gz": 2, "post-test.warc.gz": 6, "example-resource.warc.gz": 3},
    **{"example-space-in-target-uri.warc.gz": 2, "example-wget-bad-target-uri.warc.gz": 6},
    # Broken: what is whole is read, and then no more.
    **{"example-wrong-chunks.warc.gz": 3, "example-bad-non-chunked.warc.gz": 1, "example-bad.warc.gz.bad": 1},
}


def scores() -> list[Score]:
    """One score per suite."""
    return [articles(), strings(), archives("warc-warcio"), archives("warc-fastwarc")]


def articles() -> Score:
    """The text of a page has the words of its article, four in a row, in their order; and it has links."""
    folder = SUITES / "pages-article-benchmark"
    results = {}
    for name, truth in json.loads((folder / "ground-truth.json").read_text("utf-8")).items():
        body = gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes())
        wanted, found = _fours(truth["articleBody"]), page(body, truth["url"])
        share = len(wanted & _fours(found.text)) / max(1, len(wanted))
        results[truth["url"]] = share >= MIN_MAIN_SHARE and bool(found.links(nofollow=False))
    return tally("pages-article-benchmark", results, ARTICLES)


def strings() -> Score:
    """Each string as a title and in an item comes back from JSON lines and from CSV, in one record."""
    texts = json.loads((SUITES / "hostile-strings" / "blns.json").read_text("utf-8"))
    records = [
        Record(key=number, token=1, page=PageRow(url=f"http://x/{number}", title=text), items=({"text": text},))
        for number, text in enumerate(texts)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(_write(folder, records))
        titles = [json.loads(line)["title"] for line in (folder / "pages.jsonl").read_bytes().splitlines()]
        items = [json.loads(line)["text"] for line in (folder / "items.jsonl").read_bytes().splitlines()]
        with (folder / "pages.csv").open(newline="", encoding="utf-8") as file:
            cells = [row["title"].removeprefix("'") for row in csv.DictReader(file)]
    same = len(titles) == len(items) == len(cells) == len(texts)
    return tally(
        "hostile-strings",
        {
            f"{number} {text!r:.40}": same and titles[number] == items[number] == cells[number] == text
            for number, text in enumerate(texts)
        },
    )


async def _write(folder: Path, records: list[Record]) -> None:
    for sink in (JsonlSink(folder, {}), CsvSink(folder, {})):
        await sink.write(records)
        await sink.aclose()


def archives(suite: str) -> Score:
    """As many whole records as there are; in what is not compressed by the record, none; and nothing raises."""
    files = [path for path in sorted((SUITES / suite).iterdir()) if ".warc" in path.name or ".arc" in path.name]
    return tally(suite, {path.name: len(list(scan(path))) == RECORDS.get(path.name, 0) for path in files})


def page(body: bytes, url: str) -> Page:
    headers = (("content-type", "text/html"),)
    return Page(Response(url=url, status=200, headers=headers, body=body), Request(url=url))


def _fours(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], words[3:], strict=False))
