from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import SinkError, SinkFull
from gossamer.model import PageRow, Record
from gossamer.storage import files
from gossamer.storage.jsonl import JsonlSink

CHILD = """
import asyncio, json, os, resource, signal, sys
from pathlib import Path
from gossamer.errors import SinkError
from gossamer.model import PageRow, Record
from gossamer.storage.jsonl import JsonlSink

def record(number, title="", items=()):
    return Record(key=number, token=1, page=PageRow(url=f"http://x/{number}", title=title), items=tuple(items))

folder = Path(sys.argv[1])
"""


def record(number: int, title: str = "", items: tuple[dict[str, Any], ...] = ()) -> Record:
    return Record(key=number, token=1, page=PageRow(url=f"http://x/{number}", title=title), items=items)


def write(folder: Path, marks: Mapping[str, int], *records: Record) -> dict[str, int]:
    """Open, write once, close; the marks."""

    async def main() -> dict[str, int]:
        sink = JsonlSink(folder, marks)
        try:
            return dict(await sink.write(records))
        finally:
            await sink.aclose()

    return asyncio.run(main())


def numbers(folder: Path) -> list[int]:
    return [int(row["url"].rpartition("/")[2]) for row in rows(folder / "pages.jsonl")]


def rows(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    assert content.endswith(b"\n") or not content
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def in_a_process(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD + code, str(folder)], capture_output=True, text=True, timeout=30, check=False
    )


def test_committed_data_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    real = files.sync

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.add((found.st_ino, found.st_size))
        real(descriptor)

    monkeypatch.setattr(files, "sync", sync)
    marks = write(tmp_path, {}, record(1, items=({"n": 1},)))
    assert {((tmp_path / name).stat().st_ino, size) for name, size in marks.items()} <= synced


def test_marks_are_the_lengths_of_the_files(tmp_path: Path) -> None:
    marks = write(tmp_path, {}, record(1, items=({"a": 1}, {"a": 2})), record(2))
    assert marks == {name: (tmp_path / name).stat().st_size for name in ("pages.jsonl", "items.jsonl")}
    assert numbers(tmp_path) == [1, 2]
    assert rows(tmp_path / "items.jsonl") == [{"a": 1}, {"a": 2}]


def test_writing_goes_on_at_the_marks(tmp_path: Path) -> None:
    marks = write(tmp_path, {}, record(1))
    marks = write(tmp_path, marks, record(2, items=({"b": 1},)))
    assert numbers(tmp_path) == [1, 2]
    assert marks["items.jsonl"] > 0


@pytest.mark.parametrize("tail", [b"x", b"\n", b'{"url":"http://x/9"}\n', b"\0" * 5000, b'{"url":"http://x/9'])
def test_uncommitted_tail_is_truncated(tmp_path: Path, tail: bytes) -> None:
    marks = write(tmp_path, {}, record(1, items=({"a": 1},)))
    for name in marks:
        with (tmp_path / name).open("ab") as file:
            file.write(tail)
    write(tmp_path, marks, record(2))
    assert numbers(tmp_path) == [1, 2]
    assert rows(tmp_path / "items.jsonl") == [{"a": 1}]


def test_output_before_the_first_commit_is_removed(tmp_path: Path) -> None:
    write(tmp_path, {}, record(1, items=({"a": 1},)))
    asyncio.run(JsonlSink(tmp_path, {}).aclose())
    assert [(tmp_path / name).stat().st_size for name in ("pages.jsonl", "items.jsonl")] == [0, 0]


@pytest.mark.parametrize("name", ["pages.jsonl", "items.jsonl"])
@pytest.mark.parametrize("gone", ["part", "all", "file"])
def test_file_shorter_than_its_mark_is_an_error(tmp_path: Path, name: str, gone: str) -> None:
    marks = write(tmp_path, {}, record(1, items=({"a": 1},)))
    path = tmp_path / name
    if gone == "file":
        path.unlink()
    else:
        os.truncate(path, marks[name] - 1 if gone == "part" else 0)
    left = path.stat().st_size if path.exists() else 0
    with pytest.raises(SinkError, match=rf"{name} has {left} bytes, .* {marks[name]} were committed") as caught:
        JsonlSink(tmp_path, marks)
    assert "--job" in caught.value.hint
    assert (path.stat().st_size if path.exists() else 0) == left
    assert not isinstance(caught.value, SinkFull)


def test_rewind_removes_uncommitted_output(tmp_path: Path) -> None:
    async def main() -> None:
        sink = JsonlSink(tmp_path, {})
        first = await sink.write([record(1, items=({"a": 1},))])
        await sink.write([record(2, items=({"a": 2},)), record(3)])
        await sink.rewind(first)
        assert numbers(tmp_path) == [1]
        assert await sink.write([]) == first
        await sink.write([record(4, items=({"a": 4},))])
        await sink.rewind({})
        await sink.write([record(5, items=({"a": 5},))])
        await sink.aclose()

    asyncio.run(main())
    assert numbers(tmp_path) == [5]
    assert rows(tmp_path / "items.jsonl") == [{"a": 5}]


def test_written_records_survive_a_kill(tmp_path: Path) -> None:
    done = in_a_process(
        """
async def main():
    sink = JsonlSink(folder, {})
    for number in range(3):
        marks = await sink.write([record(number, items=[{"n": number}])])
    print(json.dumps(marks), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
""",
        tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    marks = json.loads(done.stdout)
    assert {name: (tmp_path / name).stat().st_size for name in marks} == marks
    assert numbers(tmp_path) == [0, 1, 2]
    assert rows(tmp_path / "items.jsonl") == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """The items exceed the limit, the pages before them do not: both are truncated, and a smaller call succeeds."""
    done = in_a_process(
        """
async def main():
    sink = JsonlSink(folder, {})
    await sink.write([record(1)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        await sink.write([record(2, items=[{"long": "x" * 30_000}])])
    except SinkError as error:
        print(type(error).__name__, error)
    await sink.write([record(3, items=[{"short": 1}])])
    await sink.aclose()
asyncio.run(main())
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "SinkError cannot write output: File too large\n"
    assert numbers(tmp_path) == [1, 3]
    assert rows(tmp_path / "items.jsonl") == [{"short": 1}]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_write_on_a_full_disk_can_be_repeated(small_disk: Path) -> None:
    async def main() -> None:
        sink = JsonlSink(small_disk, {})
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 100_000)
        marks = await sink.write([record(1, items=({"a": 1},))])
        big = [record(2, items=({"long": "x" * 200_000},)), record(3)]
        for _ in range(3):
            with pytest.raises(SinkFull, match="No space left") as caught:
                await sink.write(big)
            assert "disk space" in caught.value.hint
            assert {name: (small_disk / name).stat().st_size for name in marks} == marks
        ballast.unlink()
        await sink.write(big)
        await sink.aclose()
        assert numbers(small_disk) == [1, 2, 3]
        assert [len(item.get("long", "")) for item in rows(small_disk / "items.jsonl")] == [0, 200_000]

    asyncio.run(main())


def test_every_hostile_string_is_one_line_and_comes_back(tmp_path: Path, shared: Path) -> None:
    naughty = json.loads((shared / "suites" / "hostile-strings" / "blns.json").read_text("utf-8"))
    naughty += [
        "\0",
        "a\nb",
        "a\r\nb",
        "\u2028",
        "\u2029",
        "\x85",
        "\x0b\x0c\x1c\x1d\x1e",
        "\ufeff",
        "\U0001f600",
        "\x7f",
    ]
    naughty += ['"},{"', "\\", "\\u0000", "\x1b]0;x\x07"]
    assert len(naughty) > 500
    records = [record(number, text, ({text: text, "number": number},)) for number, text in enumerate(naughty)]
    write(tmp_path, {}, *records)
    assert [row["title"] for row in rows(tmp_path / "pages.jsonl")] == naughty
    assert [item[text] for item, text in zip(rows(tmp_path / "items.jsonl"), naughty, strict=True)] == naughty
    # One control character is left in a file of text, and JSON allows it: DEL.
    assert not set((tmp_path / "pages.jsonl").read_bytes()) & set(range(32)) - {10}
