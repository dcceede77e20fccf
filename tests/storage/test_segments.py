from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gossamer.errors import SinkError, SinkFull
from gossamer.jobs.results_folder import is_results, mark
from gossamer.model import PageRow, Record
from gossamer.settings import Settings
from gossamer.storage import files
from gossamer.storage.segments import SegmentSink, current_records


def record(key: int, token: int, title: str = "", status: int = 200) -> Record:
    page = PageRow(url=f"http://a.example/{key}", status=status, title=title)
    return Record(key=key, token=token, page=page, items=({"n": token},) if status != 304 else ())


def write(folder: Path, worker: str, *records: Record) -> None:
    async def run() -> None:
        sink = SegmentSink(folder, worker)
        for each in records:
            await sink.write([each])
        await sink.aclose()

    asyncio.run(run())


def test_record_with_the_highest_token_is_current(tmp_path: Path) -> None:
    write(tmp_path, "one", record(1, 10), record(2, 11), record(3, 12))
    write(tmp_path, "two", record(2, 9, "late"), record(1, 20, "again"))
    found = {each.key: each for each in current_records(tmp_path)}
    assert {key: each.token for key, each in found.items()} == {1: 20, 2: 11, 3: 12}
    assert (found[1].page.title, found[1].items) == ("again", ({"n": 20},))


def test_304_keeps_the_page_and_its_items(tmp_path: Path) -> None:
    write(tmp_path, "one", record(1, 30, status=304), record(2, 5, "old"), record(2, 6, status=304))
    write(
        tmp_path, "two", record(1, 10, "old"), record(1, 20, "new"), record(2, 7, status=404), record(3, 1, status=304)
    )
    found = {each.key: (each.page.title, each.page.status, each.items) for each in current_records(tmp_path)}
    assert found == {1: ("new", 200, ({"n": 20},)), 2: ("", 404, ({"n": 7},)), 3: ("", 304, ())}
    assert len(list(current_records(tmp_path, all_visits=True))) == 7


def test_records_written_during_a_read_are_skipped(tmp_path: Path) -> None:
    async def run() -> None:
        first, second = SegmentSink(tmp_path, "one"), SegmentSink(tmp_path, "two")
        await first.write([record(1, 10), record(2, 11)])
        await second.write([record(3, 12), record(4, 13)])
        reading = current_records(tmp_path)
        found = [next(reading)]
        await first.write([record(5, 14), record(3, 15)])
        found += reading
        assert [(each.key, each.token) for each in found] == [(1, 10), (2, 11), (3, 12), (4, 13)]
        assert {each.key: each.token for each in current_records(tmp_path)} == {1: 10, 2: 11, 3: 15, 4: 13, 5: 14}
        await first.aclose()
        await second.aclose()

    asyncio.run(run())


def test_returned_write_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.add((found.st_ino, found.st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path, "one", record(1, 10))
    (path,) = (tmp_path / "segments").iterdir()
    assert (path.stat().st_ino, path.stat().st_size) in synced


def test_partial_write_is_truncated_before_a_shorter_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.write_at

    def half(descriptor: int, data: bytes, offset: int) -> None:
        real(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "full")

    async def run() -> None:
        sink = SegmentSink(tmp_path, "one")
        monkeypatch.setattr(files, "write_at", half)
        with pytest.raises(SinkFull):
            await sink.write([record(1, 10, "long" * 1000)])
        monkeypatch.setattr(files, "write_at", real)
        await sink.write([record(2, 11)])
        await sink.aclose()

    asyncio.run(run())
    assert [each.key for each in current_records(tmp_path)] == [2]
    (path,) = (tmp_path / "segments").iterdir()
    assert path.read_bytes().endswith(b"\n")


def test_repeated_commit_leaves_one_record(tmp_path: Path) -> None:
    write(tmp_path, "one", record(1, 10, "first"), record(1, 10, "second"))
    assert [each.page.title for each in current_records(tmp_path)] == ["first"]


def test_every_start_creates_a_file(tmp_path: Path) -> None:
    for token in (5, 6, 7):
        write(tmp_path, "one", record(token, token))
    assert len(list((tmp_path / "segments").iterdir())) == 3
    assert sorted(each.key for each in current_records(tmp_path)) == [5, 6, 7]


def test_incomplete_line_of_a_dead_worker_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, "one", record(1, 10), record(2, 11))
    (path,) = (tmp_path / "segments").iterdir()
    whole = path.read_bytes()
    for cut in range(len(whole.splitlines(True)[0]), len(whole)):
        path.write_bytes(whole[:cut])
        assert [each.key for each in current_records(tmp_path)] == [1]


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EROFS, errno.ENOTCONN, errno.ENOSPC])
def test_f49_temporary_folder_fault_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The handle that was bad is not used again, but for a disk that was full: it is as good as before."""

    def torn(descriptor: int, data: bytes, offset: int) -> None:
        os.pwrite(descriptor, data[: len(data) // 2], offset)
        raise OSError(code, os.strerror(code))

    async def run() -> None:
        sink = SegmentSink(tmp_path, "one")
        await sink.write([record(1, 10)])
        with monkeypatch.context() as patch:
            patch.setattr("gossamer.storage.files.write_at", torn)
            for _ in range(3):
                with pytest.raises(SinkFull):
                    await sink.write([record(2, 11)])
        await sink.write([record(2, 11)])
        await sink.aclose()

    asyncio.run(run())
    assert [each.key for each in current_records(tmp_path)] == [1, 2]
    assert len(list((tmp_path / "segments").iterdir())) == (1 if code == errno.ENOSPC else 2)


def test_f49_no_segment_is_created_in_an_unmounted_folder(tmp_path: Path) -> None:
    async def run() -> None:
        sink = SegmentSink(tmp_path / "mount", "one")
        sink._close()
        (tmp_path / "mount").rename(tmp_path / "away")
        (tmp_path / "mount").mkdir()
        with pytest.raises(SinkFull, match="No such file"):
            await sink.write([record(1, 10)])
        (tmp_path / "mount").rmdir()
        (tmp_path / "away").rename(tmp_path / "mount")
        await sink.write([record(1, 10)])
        await sink.aclose()

    asyncio.run(run())
    assert [each.key for each in current_records(tmp_path / "mount")] == [1]


def test_no_segment_is_created_in_an_empty_mount_point(tmp_path: Path) -> None:
    """The marker distinguishes it from the job's folder, also where it has a folder of segments."""
    settings = Settings(results_id=mark(tmp_path / "mount", "shop"))

    async def run() -> None:
        mount = tmp_path / "mount"
        sink = SegmentSink(mount, "one", is_there=lambda: is_results(mount, settings))
        await sink.write([record(1, 10)])
        sink._close()
        mount.rename(tmp_path / "away")
        (mount / "segments").mkdir(parents=True)
        with pytest.raises(SinkFull, match="no longer the job's results folder"):
            await sink.write([record(2, 11)])
        assert not list((mount / "segments").iterdir())
        (mount / "segments").rmdir()
        mount.rmdir()
        (tmp_path / "away").rename(mount)
        await sink.write([record(2, 11)])
        await sink.aclose()

    asyncio.run(run())
    assert [each.key for each in current_records(tmp_path / "mount")] == [1, 2]


def test_nothing_is_written_to_a_file_that_was_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        sink = SegmentSink(tmp_path, "one")
        await sink.write([record(1, 10)])
        (tmp_path / "segments" / "one-0.jsonl").unlink()
        await sink.write([record(2, 11)])
        await sink.aclose()

    asyncio.run(run())
    assert [each.key for each in current_records(tmp_path)] == [2]


def test_first_marker_wins(tmp_path: Path) -> None:
    """Two machines that mark one folder at the same time have the same id."""
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: mark(tmp_path / "shared", "shop"), range(32)))
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["results.id"]


def test_invalid_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, "one", record(1, 10))
    (path,) = (tmp_path / "segments").iterdir()
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(SinkError, match=r"one-0\.jsonl, line 2"):
        list(current_records(tmp_path))


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a b\n*", "é"])
def test_worker_name_cannot_escape_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "job"
    write(folder, name, record(1, 10))
    assert len(list((folder / "segments").iterdir())) == 1
    assert list(tmp_path.iterdir()) == [folder]
    assert len(list(current_records(folder))) == 1
