from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gossamer.storage.request_log import FOLDER, LogTail, RequestLog, SentRequest, dropped_until, logged_requests, parts

MOST_BYTES = 16_000


def leave(folder: Path, worker: str, first: int, count: int, *, most_bytes: int = MOST_BYTES) -> None:
    """Steps with these numbers, in many small writes."""

    async def go() -> None:
        trail = RequestLog(folder, worker, most_bytes=most_bytes)
        for number in range(first, first + count):
            trail.note(SentRequest(url=f"http://a.test/{number:06}", at=float(number)))
            await trail.flush()
        await trail.aclose()

    asyncio.run(go())


def numbers(folder: Path, worker: str) -> list[int]:
    return [int(step.url[-6:]) for name, step in logged_requests(folder, "http://a.test/") if name == worker]


def test_request_log_stays_below_its_limit_and_keeps_the_newest_lines(tmp_path: Path) -> None:
    """Also over several runs of a worker, which continues its last file."""
    for run in range(4):
        leave(tmp_path, "w 1@x", run * 500, 500)
        assert sum(path.stat().st_size for _, path in parts(tmp_path)) <= MOST_BYTES
    kept = numbers(tmp_path, "w 1@x")
    assert kept == list(range(kept[0], 2000)), "in order, without gaps, up to the last one"
    assert len(kept) > 200
    assert dropped_until(tmp_path) > 0


def test_short_request_log_is_one_file_and_loses_nothing(tmp_path: Path) -> None:
    leave(tmp_path, "one", 0, 10)
    leave(tmp_path, "one", 10, 10)
    assert [path.name for _, path in parts(tmp_path)] == ["one.jsonl"]
    assert numbers(tmp_path, "one") == list(range(20))
    assert dropped_until(tmp_path) == 0.0


def test_files_of_old_workers_are_dropped_first(tmp_path: Path) -> None:
    leave(tmp_path, "gone", 0, 20)
    for _, path in parts(tmp_path):
        os.utime(path, (1000.0, 1000.0))
    leave(tmp_path, "here", 0, 400)
    assert not numbers(tmp_path, "gone")
    assert dropped_until(tmp_path) >= 1000.0


def test_a_worker_whose_file_was_dropped_begins_another(tmp_path: Path) -> None:
    async def go() -> None:
        trail = RequestLog(tmp_path, "idle", most_bytes=MOST_BYTES)
        trail.note(SentRequest(url="http://a.test/000001", at=1.0))
        await trail.flush()
        (tmp_path / FOLDER / "idle.jsonl").unlink()
        trail.note(SentRequest(url="http://a.test/000002", at=2.0))
        await trail.aclose()

    asyncio.run(go())
    assert numbers(tmp_path, "idle") == [2]


def test_the_service_reads_on_from_part_to_part(tmp_path: Path) -> None:
    tail, seen = LogTail(tmp_path), []
    for run in range(20):
        leave(tmp_path, "w", run * 50, 50)
        seen += [(sent.worker, int(sent.step.url[-6:])) for sent in tail.read_new()]
    assert seen == [("w", number) for number in range(1000)]
    assert len(parts(tmp_path)) < 20
