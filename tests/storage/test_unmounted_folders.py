"""Archives and tables that a fleet's worker writes to a folder that is unmounted for a while (F49)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import SinkError, SinkFull
from gossamer.settings import Settings
from gossamer.storage import parquet_files as files
from gossamer.storage.registry import fleet_sinks, open_sinks
from gossamer.testing.sink_writer import visit

FOLDERS = {"warc": "archive", "parquet": "parquet"}


def torn(code: int) -> Any:
    """A write that gets half-way, on a handle that stays bad."""

    def write_at(descriptor: int, data: bytes, offset: int) -> None:
        os.pwrite(descriptor, data[: len(data) // 2], offset)
        raise OSError(code, os.strerror(code))

    return write_at


def bad_cut(descriptor: int, size: int) -> None:
    raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))


def kept(sink: str, folder: Path) -> list[int]:
    """The numbers of the visits that are there for readers, once for each time."""
    if sink == "parquet":
        return sorted(record.key - 1 for record in files.read(folder / "parquet"))
    lines = [line for path in (folder / "archive").glob("*.cdxj") for line in path.read_text().splitlines()]
    return sorted(int(json.loads(line.split(" ", 2)[2])["url"].rpartition("/")[2]) for line in lines)


@pytest.mark.parametrize("sink", FOLDERS)
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EROFS, errno.ENOTCONN, errno.ENOSPC])
def test_f49_temporary_folder_fault_loses_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, code: int
) -> None:
    async def run() -> None:
        (one,) = fleet_sinks(Settings(sink=(sink,)), tmp_path, "one")
        await one.write([visit(0)])
        with monkeypatch.context() as patch:
            patch.setattr("gossamer.storage.files.write_at", torn(code))
            if code != errno.ENOSPC:
                patch.setattr("os.ftruncate", bad_cut)
            for _ in range(3):
                with pytest.raises(SinkFull):
                    await one.write([visit(1)])
        await one.write([visit(1)])
        await one.write([visit(2)])
        await one.aclose()

    asyncio.run(run())
    assert kept(sink, tmp_path) == [0, 1, 2]
    assert not [path for path in (tmp_path / FOLDERS[sink]).iterdir() if path.suffix in (".open", files.LOG)]


@pytest.mark.parametrize("sink", FOLDERS)
def test_f49_nothing_is_created_in_an_unmounted_folder(tmp_path: Path, sink: str) -> None:
    mount, away = tmp_path / "mount", tmp_path / "away"

    async def run() -> None:
        (one,) = fleet_sinks(Settings(sink=(sink,)), mount, "one")
        if sink == "warc":
            # Open files stay open, as on Linux, but their names are gone.
            await one.write([visit(0)])
        mount.rename(away)
        mount.mkdir()
        with pytest.raises(SinkFull, match="No such file"):
            await one.write([visit(1)])
        assert not list(mount.iterdir())
        mount.rmdir()
        away.rename(mount)
        await one.write([visit(1)])
        await one.aclose()

    asyncio.run(run())
    assert kept(sink, mount) == ([0, 1] if sink == "warc" else [1])


@pytest.mark.parametrize("sink", FOLDERS)
def test_f49_a_crawl_of_one_machine_stops_where_its_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    async def run() -> None:
        (one,) = open_sinks(Settings(sink=(sink,)), tmp_path, {})
        await one.write([visit(0)])
        with monkeypatch.context() as patch:
            patch.setattr("gossamer.storage.files.write_at", torn(errno.EIO))
            patch.setattr("os.ftruncate", bad_cut)
            with pytest.raises(SinkError) as found:
                await one.write([visit(1)])
        assert not isinstance(found.value, SinkFull)

    asyncio.run(run())
