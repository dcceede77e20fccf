"""A process that writes to a sink until it is killed: part of the conformance suite for sinks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from gossamer.model import Exchange, PageRow, Record
from gossamer.settings import Settings
from gossamer.storage.base import Opening, Opens, Sink
from gossamer.storage.segments import SegmentSink

BATCH = 4


class WriterTask(NamedTuple):
    """Task of a writer: the number of batches of four records; it prints the marks after each batch."""

    first: int = 0
    batches: int = 0
    marks: Mapping[str, int] | None = None
    size: int = 200
    opens: str = ""
    kind: str = ""
    target: str = ""
    ending: str = "close"
    """How it ends. `close`: normally; `kill`: killed right after the last `write`; `unsaid`: killed after one more
    unacknowledged write; `torn`: killed during one more write."""


def command(order: WriterTask, folder: Path) -> list[str]:
    """The command line of a writer."""
    return [sys.executable, "-m", "gossamer.testing.sink_writer", json.dumps(order._asdict()), str(folder)]


def opened(order: WriterTask, folder: Path) -> Sink:
    """Open the sink of a task."""
    module, _, name = order.opens.partition(":")
    opens: Opens = getattr(import_module(module), name)
    target = order.target.replace("{folder}", str(folder))
    worker = "" if order.marks is not None else "one"
    settings = Settings(archive_bytes=150_000)
    return opens(
        Opening(kind=order.kind, target=target, folder=folder, settings=settings, marks=order.marks, worker=worker)
    )


def open_segments(opening: Opening) -> SegmentSink:
    """The records that a worker of a fleet writes."""
    return SegmentSink(opening.folder, opening.worker)


def visit(
    number: int, *, size: int = 200, token: int = 5, title: str = "", fetched_at: float = 1_700_000_000.0
) -> Record:
    """A deterministic visit of page `number`, with an incompressible body of about `size` bytes."""
    body = f"<title>{number}</title>".encode() + random.Random(number).randbytes(size)
    url = f"http://site.example/page/{number:05}"
    return Record(
        key=number + 1,
        token=token,
        page=PageRow(url=url, status=200, title=title or f"Page {number}", fetched_at=fetched_at + number, bytes=size),
        items=({"number": number, "name": "é"},),
        body=body[:size] if size else b"",
        found=("http://site.example/",),
        exchange=Exchange(
            sent=(("user-agent", "Gossamer"),),
            version="HTTP/1.1",
            address="192.0.2.1",
            headers=(("content-type", "text/html; charset=utf-8"), ("content-encoding", "gzip")),
            wire_bytes=size // 2,
        ),
    )


async def write(order: WriterTask, folder: Path) -> None:
    """Run a task."""
    sink = opened(order, folder)
    marks = dict(order.marks or {})
    for batch in range(order.batches):
        first = order.first + batch * BATCH
        marks.update(await sink.write([visit(first + one, size=order.size) for one in range(BATCH)]))
        print(json.dumps(marks), flush=True)
    if order.ending == "torn":
        _die_in_the_middle(folder)
    if order.ending in ("unsaid", "torn"):
        await sink.write([visit(order.first + order.batches * BATCH + one, size=order.size) for one in range(BATCH)])
    if order.ending != "close":
        os.kill(os.getpid(), signal.SIGKILL)
    await sink.aclose()


def _die_in_the_middle(folder: Path) -> None:
    """From now on, a large write is done in part, and then kills the process."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    largest = 0
    for path in Path("/proc/self/fd").glob("*"):
        # Another thread may have closed the file meanwhile.
        with suppress(FileNotFoundError):
            if path.resolve().is_relative_to(folder.resolve()):
                largest = max(largest, path.stat().st_size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 300, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


if __name__ == "__main__":
    asyncio.run(write(WriterTask(**json.loads(sys.argv[1])), Path(sys.argv[2])))
