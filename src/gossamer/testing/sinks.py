"""Conformance suite for sinks: subclass `SinkSuite`, define how to open and read your sink, and run pytest."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import SkipTest

from gossamer.errors import SinkFull
from gossamer.model import Exchange, PageRow, Record
from gossamer.storage.base import Sink
from gossamer.testing.sink_writer import WriterTask, command, opened, visit

__all__ = ["HOSTILE", "Kept", "SinkSuite", "small_disk", "visit"]
HOSTILE = (
    "\0",
    "a\0b",
    "a\nb",
    "a\r\nb",
    "\r\nWARC/1.1\r\nWARC-Type: response\r\nContent-Length: 0\r\n\r\n\r\n\r\n",
    "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e",
    "\ufeff\U0001f600\x7f",
    '"},{"',
    "\\",
    "\\u0000",
    "\\N",
    "\x1b]0;x\x07",
    "' OR 1=1 --",
    "'); DROP TABLE pages; --",
    "%s %(x)s {} {0} :x ?",
    '=HYPERLINK("http://evil.example")',
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "a,b;c\td",
    '"',
    '""',
    " ",
    "",
)
"""Strings that break files, records, SQL statements, and tables that do not treat text as data."""


_ENDINGS = {
    "close": (0,),
    "kill": (-signal.SIGKILL,),
    "unsaid": (-signal.SIGKILL,),
    "torn": (-signal.SIGXFSZ, -signal.SIGKILL),
}


class Kept(NamedTuple):
    """A visit as read back; None for fields that the sink does not store."""

    url: str
    title: str | None = None
    body: bytes | None = None
    items: tuple[dict[str, Any], ...] | None = None


class SinkSuite:
    """All promises of a sink.

    class TestMySink(SinkSuite):
        opens = "my_package:MySink"     # as in an entry point

        def read(self, folder, urls):
            ...                         # with another tool than the sink itself
    """

    opens = ""
    """`package.module:name` of the callable that opens the sink; called with an `Opening`, also in other processes."""
    kind = ""
    """The part of the sink's name before the colon, if the callable opens several formats."""
    target = ""
    """The part of the sink's name after the colon; `{folder}` is the job's folder."""
    fleet = False
    """Whether it is opened as in a fleet, without marks; unacknowledged writes may then be present too."""
    exact = True
    """Whether everything beyond the marks is gone after a kill; never in a fleet."""
    keeps_visits = True
    """Whether every visit of a page is stored, or only the last one."""
    disk = True
    """Whether it writes to the job's folder, so that a full disk can be tested."""
    page_bytes = 8_000
    """Size of the pages in the tests of a full disk and of a killed writer."""

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        """All stored visits in the folder; `urls` are the possible ones, for sinks that cannot list them."""
        raise NotImplementedError

    def check(self, folder: Path) -> None:
        """Fail if other tools reject the files after a kill and a restart."""

    def strings(self) -> Sequence[str]:
        """Strings that must come back unchanged."""
        return HOSTILE

    def test_what_write_returned_for_survives_a_kill(self, tmp_path: Path) -> None:
        """F62. The writer kills itself right after `write`; the records are read before the sink is opened again."""
        marks = self._run(WriterTask(0, 3, ending="kill"), tmp_path)
        assert self._numbers(tmp_path, 40) == list(range(12))
        self._run(WriterTask(12, 1, marks), tmp_path)
        assert self._numbers(tmp_path, 40) == list(range(16))
        self.check(tmp_path)

    def test_kills_at_any_moment_leave_each_record_once(self, tmp_path: Path) -> None:
        """F62. After every kill, acknowledged records are present once; an exact sink has no others."""
        acknowledged, marks = 0, self._no_marks()
        with self._started(WriterTask(0, 10_000, marks, size=self.page_bytes), tmp_path) as process:
            for _ in range(5):
                assert process.stdout is not None
                marks, acknowledged = self._marks_of(process.stdout.readline()), acknowledged + 4
        for ending, batches in (("unsaid", 1), ("torn", 6), ("torn", 1), ("unsaid", 3)):
            marks = self._run(WriterTask(acknowledged, batches, marks, size=self.page_bytes, ending=ending), tmp_path)
            acknowledged += 4 * batches
        self._run(WriterTask(marks=marks), tmp_path)
        stored = self._numbers(tmp_path, 4000)
        assert not [number for number, count in Counter(stored).items() if count > 1]
        assert set(range(acknowledged)) <= set(stored)
        if self.exact:
            assert len(stored) == acknowledged
        self.check(tmp_path)

    def test_a_call_that_is_repeated_is_stored_once(self, tmp_path: Path) -> None:
        """By key and visit, if written records were not committed, or if that is unknown."""

        async def run() -> None:
            sink = self._open(tmp_path)
            before = dict(await sink.write([visit(0)]))
            await sink.write([visit(1), visit(2)])
            await sink.rewind(before)
            await sink.write([visit(1), visit(2)])
            await sink.write([])
            await sink.aclose()

        asyncio.run(run())
        assert self._numbers(tmp_path, 3) == [0, 1, 2]
        self.check(tmp_path)

    def test_a_later_visit_is_kept_too_or_takes_the_place(self, tmp_path: Path) -> None:
        async def run() -> None:
            sink = self._open(tmp_path)
            await sink.write([visit(0), visit(1)])
            await sink.write([visit(0, token=9, fetched_at=1_800_000_000.0, title="later")])
            await sink.aclose()

        asyncio.run(run())
        stored = self._stored(tmp_path, 2)
        assert [kept.url for kept in stored] == [
            visit(number).page.url for number in ([0] * self.keeps_visits + [0, 1])
        ]
        assert any(kept.title in (None, "later") for kept in stored)

    def test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room(self, tmp_path: Path) -> None:
        """F60. A batch that does not fit is rejected as a whole, every time, and stored once when it fits."""
        if not self.disk:
            raise SkipTest("this sink does not write to the job's folder")
        with small_disk(tmp_path / "disk", 3_000_000) as disk:
            folder = disk / "job"
            folder.mkdir()

            async def run() -> list[Record]:
                sink, number, ballast = self._open(folder), 0, disk / "ballast"
                marks: dict[str, int] = {}
                ballast.write_bytes(b"x" * 2_700_000)
                while True:
                    batch = [visit(number + one, size=self.page_bytes) for one in range(4)]
                    try:
                        marks.update(await sink.write(batch))
                    except SinkFull:
                        break
                    number += 4
                assert number
                # The space freed by the failed write must not suffice for the next one.
                filler = disk / "filler"
                fill(filler)
                for _ in range(2):
                    try:
                        await sink.write(batch)
                    except SinkFull:
                        continue
                    raise AssertionError("a full disk accepted a batch that it had rejected")
                filler.unlink()
                if self.exact:
                    assert self._numbers(folder, number + 4) == list(range(number))
                    await sink.rewind(marks)
                assert set(range(number)) <= set(self._numbers(folder, number + 4))
                ballast.unlink()
                await sink.write(batch)
                await sink.aclose()
                return [visit(one) for one in range(number + 4)]

            expected = [record.page.url for record in asyncio.run(run())]
            assert [kept.url for kept in self._stored(folder, len(expected))] == sorted(expected)
            self.check(folder)

    def test_every_hostile_string_comes_back(self, tmp_path: Path) -> None:
        """H51, H52, H53. In the title, items, body, headers, and URL."""
        strings = self.strings()
        records = [hostile(number, text) for number, text in enumerate(strings)]

        async def run() -> None:
            sink = self._open(tmp_path)
            for start in range(0, len(records), 100):
                await sink.write(records[start : start + 100])
            await sink.aclose()

        asyncio.run(run())
        stored = {kept.url: kept for kept in self.read(tmp_path, [record.page.url for record in records])}
        assert len(stored) == len(records)
        for record in records:
            kept = stored[record.page.url]
            assert kept.title in (None, record.page.title)
            assert kept.body in (None, record.body)
            assert kept.items in (None, record.items)
        self.check(tmp_path)

    def _open(self, folder: Path) -> Sink:
        return opened(self._order(WriterTask()), folder)

    def _order(self, order: WriterTask) -> WriterTask:
        marks = None if self.fleet else order.marks or {}
        return order._replace(opens=self.opens, kind=self.kind, target=self.target, marks=marks)

    def _no_marks(self) -> Mapping[str, int] | None:
        return None if self.fleet else {}

    def _marks_of(self, line: str) -> Mapping[str, int] | None:
        return None if self.fleet else json.loads(line)

    def _run(self, order: WriterTask, folder: Path) -> Mapping[str, int] | None:
        """Run a writer process, and return its last marks."""
        done = subprocess.run(
            command(self._order(order), folder), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in _ENDINGS[order.ending], done.stderr
        return self._marks_of(done.stdout.splitlines()[-1]) if done.stdout else order.marks

    @contextmanager
    def _started(self, order: WriterTask, folder: Path) -> Iterator[subprocess.Popen[str]]:
        """Run a writer process that is killed at the end."""
        with subprocess.Popen(
            command(self._order(order), folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _stored(self, folder: Path, most: int) -> list[Kept]:
        return sorted(self.read(folder, [visit(number).page.url for number in range(most)]), key=lambda kept: kept.url)

    def _numbers(self, folder: Path, most: int) -> list[int]:
        found = []
        for kept in self._stored(folder, most):
            number = int(kept.url.rpartition("/")[2])
            expected = visit(number, size=len(kept.body or b""))
            assert kept.body in (None, expected.body), "not whole"
            assert kept.title in (None, expected.page.title)
            assert kept.items in (None, expected.items)
            found.append(number)
        return found


def hostile(number: int, text: str) -> Record:
    """A visit with the string in all fields."""
    url = f"http://hostile.example/{number}/{text}".encode("utf-8", "replace").decode()
    return Record(
        key=number,
        token=1,
        page=PageRow(url=url, status=200, title=text, fetched_at=1_700_000_000.0, referrer=url, digest="x"),
        items=({text: text, "number": number},),
        body=text.encode("utf-8", "replace"),
        found=(url,),
        exchange=Exchange(
            sent=(("x-hostile", text),),
            version="HTTP/1.1",
            address="192.0.2.1",
            headers=(("content-type", text), ("x-hostile", text), (text, "x")),
            wire_bytes=len(text.encode("utf-8", "replace")),
        ),
    )


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """Mount a disk of this size; skips the test if that is not possible."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise SkipTest("mounting a small disk needs root")
    place.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        raise SkipTest(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    """Fill the free space of a disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError:
            return
