"""pages.jsonl and items.jsonl of a fleet's job, gathered from the segments of its workers."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from gossamer.clock import SystemClock
from gossamer.sink.jsonl import JsonlSink
from gossamer.sink.segments import FOLDER, gather

_GATHERED = f"{FOLDER}-gathered-"
_LITTER_SECONDS = 86_400.0


async def export(folder: Path) -> int:
    """Make pages.jsonl and items.jsonl of the segments in a folder, one record per page; how many."""
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    # Two machines may do this at the same time.
    target = Path(tempfile.mkdtemp(prefix=_GATHERED, dir=folder))
    target.chmod(0o755)
    sink = JsonlSink(target, {})
    count = 0
    try:
        some = []
        for record in gather(folder):
            some.append(record)
            count += 1
            if len(some) >= 1000:
                await sink.write(some)
                some = []
        await sink.write(some)
    finally:
        await sink.aclose()
    for path in target.iterdir():
        path.replace(folder / path.name)
    target.rmdir()
    return count


def _sweep(folder: Path) -> None:
    """Take away what those left who were killed while they gathered."""
    for path in folder.glob(f"{_GATHERED}*"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < SystemClock().epoch() - _LITTER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
