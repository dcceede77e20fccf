"""The conformance suite of sinks: subclass `SinkSuite`, say how to open the sink and how to read it, run pytest."""

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
"""What breaks files, records, statements and tables that take text for more than text."""


_ENDINGS = {
    "close": (0,),
    "kill": (-signal.SIGKILL,),
    "unsaid": (-signal.SIGKILL,),
    "torn": (-signal.SIGXFSZ, -signal.SIGKILL),
}


class Kept(NamedTuple):
    """A visit as it was read back; None for what the sink does not keep."""

    url: str
    title: str | None = None
    body: bytes | None = None
    items: tuple[dict[str, Any], ...] | None = None


class SinkSuite:
    """All that a sink promises.

    class TestMySink(SinkSuite):
        opens = "my_package:MySink"     # as an entry point would name it

        def read(self, folder, urls):
            ...                         # with another tool than the one that wrote
    """

    opens = ""
    """`package.module:name` of what opens the sink: called with an `Opening`, in other processes too."""
    kind = ""
    """What stands before the colon of its name, for who is opened by several."""
    target = ""
    """What stands behind the colon of its name; `{folder}` is the job's folder."""
    fleet = False
    """Opened as in a fleet: without marks. What was written and never acknowledged may then be there too."""
    exact = True
    """Whether the marks are kept to: what they do not cover is gone after a kill. In a fleet nothing is."""
    keeps_visits = True
    """Whether each visit of a page is kept, or only the last one."""
    disk = True
    """Whether it writes to the job's folder, so that a full disk can be shown to it."""
    page_bytes = 8_000
    """Of the pages that are written while the disk fills up and while the writer is killed."""

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        """All visits that are stored in the folder; `urls` are those that may be there, for who cannot list them."""
        raise NotImplementedError

    def check(self, folder: Path) -> None:
        """Fail if other tools find fault with what a start after a kill has left."""

    def strings(self) -> Sequence[str]:
        """Strings that must come back as they were."""
        return HOSTILE

    def test_what_write_returned_for_survives_a_kill(self, tmp_path: Path) -> None:
        """F62. The writer kills itself as soon as `write` has returned; the records are read before anyone opens."""
        marks = self._run(WriterTask(0, 3, ending="kill"), tmp_path)
        assert self._numbers(tmp_path, 40) == list(range(12))
        self._run(WriterTask(12, 1, marks), tmp_path)
        assert self._numbers(tmp_path, 40) == list(range(16))
        self.check(tmp_path)

    def test_kills_at_any_moment_leave_each_record_once(self, tmp_path: Path) -> None:
        """F62. What was acknowledged is there once, after every kill; in an exact sink nothing else is."""
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
        """By key and visit, when what was written did not come to count, or nobody knows whether it did."""

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
        """F60. What does not fit is refused whole, as often as it is tried; and stored once when it fits."""
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
                # What the failed write gave back must not be enough for the next.
                filler = disk / "filler"
                fill(filler)
                for _ in range(2):
                    try:
                        await sink.write(batch)
                    except SinkFull:
                        continue
                    raise AssertionError("a full disk took what it had refused")
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
        """H51, H52, H53. As title, in items, as body, in headers and in the URL."""
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
        """Let another process write; the marks that it came to."""
        done = subprocess.run(
            command(self._order(order), folder), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in _ENDINGS[order.ending], done.stderr
        return self._marks_of(done.stdout.splitlines()[-1]) if done.stdout else order.marks

    @contextmanager
    def _started(self, order: WriterTask, folder: Path) -> Iterator[subprocess.Popen[str]]:
        """Another process that writes, until it is killed at the end."""
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
    """A visit with the string everywhere."""
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
    """A disk of so many bytes; skipped aloud where none can be mounted."""
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
    """Take all the room that a disk has left."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError:
            return
