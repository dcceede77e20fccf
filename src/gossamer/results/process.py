"""A child process of a replay: receives tasks, runs the spider over stored pages, and sends back lines."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gossamer import settings as configuration
from gossamer.engine.budget import Guard, Interrupted, hung
from gossamer.engine.lifecycle import Lifecycle, leave_on_signal
from gossamer.engine.parsing import Extracted, SpiderRunner, died, make_spider, row_of, too_costly
from gossamer.engine.supervision import die_with, leave_signals_to_parent
from gossamer.errors import ArchiveError, GossamerError
from gossamer.model import PageRow
from gossamer.settings import Settings
from gossamer.storage.base import StoredPage
from gossamer.storage.reader import Stored
from gossamer.storage.warc.reader import ReadPart


class Setup(msgspec.Struct, frozen=True):
    """The first message to a process."""

    settings: dict[str, Any]
    warcs: list[str]
    trees: list[tuple[str, str]]
    index_folder: str
    """Folder with the generated indexes."""
    where: list[str] = []
    """Filter conditions for pages."""


class ReplayTask(msgspec.Struct, frozen=True):
    """One part of the stored pages to process."""

    part: ReadPart
    careful: bool = False
    """Whether to announce each page before the spider gets it, because a process crashed on one."""
    fatal: list[int] = []
    """Places of pages on which processes crashed."""
    costly: list[int] = []
    """Places of pages on which processes were killed, because they exceeded their time limit."""


class At(msgspec.Struct, tag="at", frozen=True):
    """Announces the next page."""

    offset: int
    url: str


class Closing(msgspec.Struct, tag="closing", frozen=True):
    """No page is being processed; the spider is being closed."""


class Left(msgspec.Struct, tag="left", frozen=True):
    """The last message: the spider is closed, or the error on opening or closing it."""

    error: str = ""
    hint: str = ""


class Done(msgspec.Struct, tag="done", frozen=True, kw_only=True):
    """The result of a part: lines of the output files, and counts."""

    pages: bytes = b""
    items: bytes = b""
    rejected: bytes = b""
    page_count: int = 0
    item_count: int = 0
    rejected_count: int = 0
    dropped_count: int = 0
    request_count: int = 0
    failed_count: int = 0
    unread_count: int = 0
    body_bytes: int = 0
    failures: list[tuple[str, str]] = []
    """Examples of pages that failed, with the error."""
    unread: list[str] = []
    """Examples of records that cannot be read."""
    fields: dict[str, int] = {}
    """Rejected items by invalid field."""


_EXAMPLES = 20
Message = At | Done | Closing | Left
Send = Callable[[Message], None]
Meets = Callable[[PageRow], bool]


_encode = msgspec.msgpack.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into


class ReplayCounts:
    """Collects the output and the counts of a part."""

    def __init__(self) -> None:
        self._pages, self._items, self._rejected = bytearray(), bytearray(), bytearray()
        self._counts: Counter[str] = Counter()
        self._failures: list[tuple[str, str]] = []
        self._unread: list[str] = []
        self._fields: dict[str, int] = {}

    async def run(self, page: StoredPage, extractor: SpiderRunner) -> None:
        request, response = page.request, page.response
        found = await extractor.extract(request, response, known=page.row, hard=True)
        row = row_of(request, response, found)
        _line(self._pages, row)
        for item in found.items:
            _line(self._items, item)
        for one in found.rejected:
            _line(self._rejected, one)
            self._fields[one.field or one.error[:40]] = self._fields.get(one.field or one.error[:40], 0) + 1
        counts = self._counts
        counts["page_count"] += 1
        counts["body_bytes"] += len(page.body)
        counts["item_count"] += len(found.items)
        counts["request_count"] += len(found.requests)
        if found.rejected or found.dropped:
            counts["rejected_count"] += len(found.rejected)
            counts["dropped_count"] += found.dropped
        if found.error:
            self._failed(page.url, found.error)

    def gave_up(self, page: StoredPage, found: Extracted) -> None:
        """Record a page that is not retried."""
        _line(self._pages, msgspec.structs.replace(page.row or _bare(page), error=f"{found.kind}: {found.error}"))
        self._counts.update(page_count=1, body_bytes=len(page.body))
        self._failed(page.url, found.error)

    def unread(self, fault: ArchiveError) -> None:
        """Count a record that cannot be read."""
        self._counts["unread_count"] += 1
        if len(self._unread) < _EXAMPLES:
            self._unread.append(str(fault))

    def _failed(self, url: str, error: str) -> None:
        self._counts["failed_count"] += 1
        if len(self._failures) < _EXAMPLES:
            self._failures.append((url, error))

    def done(self) -> Done:
        return Done(
            pages=bytes(self._pages),
            items=bytes(self._items),
            rejected=bytes(self._rejected),
            failures=self._failures,
            unread=self._unread,
            fields=self._fields,
            **self._counts,
        )


def _bare(page: StoredPage) -> PageRow:
    return PageRow(url=page.url, status=page.status, fetched_at=page.fetched_at, bytes=len(page.body))


def _line(buffer: bytearray, value: object) -> None:
    _encode_into(value, buffer, len(buffer))
    buffer += b"\n"


async def work(
    task: ReplayTask,
    stored: Stored,
    extractor: SpiderRunner,
    settings: Settings,
    send: Send,
    where: Meets | None = None,
    *,
    guard: Guard,
) -> Done:
    """Run the spider over one part; raises Interrupted if this process is stopped."""
    counts = ReplayCounts()
    fatal, costly = frozenset(task.fatal), frozenset(task.costly)
    for number, page in enumerate(stored.part(task.part, counts.unread)):
        # Pages in a folder tree have no offset: their number in the part identifies them.
        place = page.offset or -1 - number
        if guard.is_stopping:
            raise Interrupted
        if where is not None and not where(page.row or _bare(page)):
            continue
        if place in fatal:
            counts.gave_up(page, died(page.response))
            continue
        if place in costly:
            counts.gave_up(page, too_costly(page.response, hung(settings, len(page.body))))
            continue
        if task.careful:
            send(At(place, page.url))
        await counts.run(page, extractor)
    return counts.done()


def _where(conditions: list[str]) -> Meets | None:
    if not conditions:
        return None
    # Imported here: it takes long to load.
    from gossamer.storage.query import Where

    return Where(conditions)


def serve(setup: Setup, source: BinaryIO, target: BinaryIO) -> None:
    """Process tasks until the source is closed or a signal arrives; then close the spider.

    The spider is opened with the first task: with fewer parts than processes, some processes never need it."""
    leave_signals_to_parent()
    if sys.platform == "linux":
        die_with(os.getppid())
    settings = configuration.build(setup.settings)
    guard = Guard()
    where = _where(setup.where)
    trees = [(Path(tree), Path(folder)) for tree, folder in setup.trees]
    stored = Stored([Path(path) for path in setup.warcs], trees, index_folder=Path(setup.index_folder))

    def send(message: Message) -> None:
        data = _encode(message)
        target.write(len(data).to_bytes(4, "big"))
        target.write(data)
        target.flush()

    # Loaded modules are never collected, and pages leave few reference cycles: the default thresholds cost 3 % of CPU.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    with asyncio.Runner() as runner:
        leave_on_signal(guard, runner.get_loop())
        data = _read(source)
        if data is None:
            return
        left = Left()
        try:
            spider = make_spider(settings)
            extractor = SpiderRunner(spider, settings, guard=guard)
            lifecycle = Lifecycle(spider, spider.pipelines)
            runner.run(lifecycle.open())
            try:
                with suppress(Interrupted):
                    while data is not None and not guard.is_stopping:
                        task = msgspec.msgpack.decode(data, type=ReplayTask)
                        runner.run(_answer(work(task, stored, extractor, settings, send, where, guard=guard), send))
                        data = _read(source)
                send(Closing())
            finally:
                # Also if the spider exits the process in the middle of a page, which gets no result.
                runner.run(lifecycle.close())
        except GossamerError as error:
            left = Left(str(error), error.hint)
        send(left)


async def _answer(doing: Coroutine[Any, Any, Done], send: Send) -> None:
    """Send the result of a task. If the coroutine returned it, asyncio would format it into the repr of its task."""
    send(await doing)


def main() -> None:
    """Entry point: read the setup, then tasks, until the pipe is closed."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # `print` in a spider must not mix with the messages.
    os.dup2(2, 1)
    first = _read(source)
    if first is not None:
        serve(msgspec.msgpack.decode(first, type=Setup), source, target)


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(4)
    return source.read(int.from_bytes(head, "big")) if len(head) == 4 else None


if __name__ == "__main__":
    main()
