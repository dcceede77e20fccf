"""CPU and bytes of an archive: the sink `warc` alone, over pages of the simulated web."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from gossamer.model import Exchange, PageRow, Record
from gossamer.plan.figures import LARGE_BYTES
from gossamer.settings import Settings
from gossamer.sim.pages import PageRenderer
from gossamer.sim.site import WebPlan
from gossamer.storage.registry import open_sinks

_ARCHIVE_BATCH = 64


async def measure_archive(pages: int) -> tuple[float, float]:
    """CPU seconds of a page of 40 kB, and bytes stored for each of its bytes."""
    some = _records(pages)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        sink = open_sinks(Settings(sink=("warc",)), Path(folder), {})[0]
        began = time.process_time()
        for first in range(0, len(some), _ARCHIVE_BATCH):
            await sink.write(some[first : first + _ARCHIVE_BATCH])
        await sink.aclose()
        spent = time.process_time() - began
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*.warc.gz*"))
    return spent / pages, stored / sum(len(record.body) for record in some)


def _records(count: int) -> list[Record]:
    plan = WebPlan(sites=1, pages_per_site=count, page_bytes=LARGE_BYTES)
    web = PageRenderer(plan)
    exchange = Exchange(
        sent=(("user-agent", "Gossamer"), ("accept", "text/html")),
        version="HTTP/2.0",
        address="192.0.2.1",
        headers=(("content-type", "text/html; charset=utf-8"), ("cache-control", "max-age=600")),
        wire_bytes=LARGE_BYTES,
    )
    return [
        Record(
            key=number,
            token=1,
            page=PageRow(url=f"https://site.example/{number}", status=200, fetched_at=1_700_000_000.0 + number),
            body=web.answer(0, plan.path(0, number)).body,
            exchange=exchange,
        )
        for number in range(count)
    ]
