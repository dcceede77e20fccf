"""Parser processes: pages are parsed, and handlers run, where they block nothing and can be killed.

A pool has a fixed number of processes, each with one page at a time. A page is sent as a frame over a pipe, and its
result is returned as one; between two pages the process has no state but its spider. It opens its own spider before its
first page, and closes it when the worker closes the pipe.

**Limits**, from the mildest to the hardest, each for what the one before cannot catch:

1. The process interrupts its own page at the limits of the budget (`budget.Guard`).
2. C code that does not return: the kernel kills the process after its CPU time (SIGVTALRM).
3. A process that hangs without using CPU: the worker kills it (`_watch`), but never because other processes used the
   CPU: a process that is ready to run and gets no CPU is not to blame.

In the last two cases the page is recorded as too costly. If the process died for another reason (a crash in C code, or
no memory), the page is recorded as failed for that reason. Either way only this page is lost; the next one gets a new
process. If memory runs out, the kernel is asked to kill a parser process before the worker.

**The end of a crawl.** LEAVE asks each process to interrupt its page, which counts as not fetched. A process is killed
only if it stays in C code, and only then its spider is not closed. SIGINT and SIGTERM, which a terminal or a process
manager sends to all processes, are ignored here: the worker decides what happens to the page. If the worker dies, the
kernel kills its parser processes (`supervision.die_with`)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gossamer import settings as configuration
from gossamer.engine import allocator, remote
from gossamer.engine.budget import Guard, Interrupted, hard_seconds, hung
from gossamer.engine.lifecycle import Lifecycle, leave_on_signal
from gossamer.engine.parsing import Aside, Extracted, SpiderRunner, died, make_spider, too_costly
from gossamer.engine.supervision import LEAVE, die_with, hold_signals, leave_signals_to_parent
from gossamer.errors import ExtractError, GossamerError
from gossamer.model import Request, Response
from gossamer.settings import Settings

log = logging.getLogger("gossamer.engine")
_PATIENCE_SECONDS = 5.0
"""Wall-clock seconds that a process gets beyond its CPU time, and between later checks."""
_GRACE_SECONDS = 1.0
"""Seconds that pages in hand have left at a stop."""
_INTERRUPTED = b""
"""Answer for a page that was interrupted."""
_DONE = b""
"""Answer when the spider was opened or closed; else an error with its hint."""
_EXIT_SECONDS = 10.0
"""Seconds that a process has to exit after its spider is closed: for `atexit` functions and threads."""
_NICENESS = 5
_WAITING_BYTES = 64 * 1024 * 1024
"""Max bytes of bodies whose visits may wait for a process without using a fetch slot."""


class ParseTask(msgspec.Struct, array_like=True, frozen=True):
    """One page for a parser."""

    request: Request
    response: Response


_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(ParseTask).decode
_decode_failure = msgspec.msgpack.Decoder(tuple[str, str]).decode
_decode_extracted = msgspec.msgpack.Decoder(Extracted).decode


class ParserPool:
    """A fixed number of processes, each with one page at a time; one that dies costs its page only.

    `_idle` has an entry for each: a process that waits for a page, or None where one has to be started. Each entry that
    is taken is put back, whatever happens in between, or the pool would shrink."""

    def __init__(self, size: int, settings: Settings, *, is_aside: bool = False) -> None:
        """Create the pool without starting processes. With `is_aside`, they run with a lower priority than this one."""
        self._settings = settings
        self._niceness = _NICENESS if is_aside else 0
        self._idle: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._ready: set[asyncio.subprocess.Process] = set()
        """Processes that have opened their spider."""
        self._watches: dict[asyncio.subprocess.Process, asyncio.TimerHandle] = {}
        self._overdue: set[asyncio.subprocess.Process] = set()
        self._stopping: asyncio.TimerHandle | None = None
        self._is_over = False
        self._waiting_bytes = 0
        for _ in range(size):
            self._idle.put_nowait(None)

    def interrupt(self) -> None:
        """Do nothing: no page blocks this process."""

    def stop(self) -> None:
        """Make the processes interrupt their pages, and after a moment kill those that have not."""
        if self._stopping is None:
            grace = min(_GRACE_SECONDS, self._settings.drain_seconds)
            self._stopping = asyncio.get_running_loop().call_later(grace, self._end)
            for process in self._ready:
                _signal_to_leave(process)

    def _end(self) -> None:
        """Kill the processes that still have a page; `aclose` closes the others."""
        self._is_over = True
        for process in list(self._watches):
            self._discard(process)

    async def extract(
        self, request: Request, response: Response, *, suspect: bool = False, aside: Aside | None = None
    ) -> Extracted:
        """Extract a page as `SpiderRunner.extract`, in one of the processes.

        While it waits, the visit uses no fetch slot."""
        size = len(response.body)
        is_aside = aside is not None and self._waiting_bytes + size <= _WAITING_BYTES
        if is_aside:
            assert aside is not None
            self._waiting_bytes += size
            aside(True)
        try:
            return await self._extract(request, response)
        finally:
            if is_aside:
                assert aside is not None
                self._waiting_bytes -= size
                aside(False)

    async def _extract(self, request: Request, response: Response) -> Extracted:
        """Take an entry, start a process if it has none, send the page, and read the answer.

        After a stop no process is started, and no page is sent once the time is over. If this task is cancelled, its
        process is killed: its answer would be taken for that of the next page."""
        process = await self._idle.get()
        if self._stopping is None and (process is None or process.returncode is not None):
            try:
                process = await self._start()
            except BaseException:
                self._idle.put_nowait(None)
                raise
        elif process is None or process.returncode is not None:
            self._idle.put_nowait(None)
            raise Interrupted
        if self._is_over:
            self._idle.put_nowait(process)
            raise Interrupted
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            self._watch(process, len(response.body))
            process.stdin.write(remote.frame(_encode(ParseTask(request, response))))
            await process.stdin.drain()
            answer = await remote.read_frame(process.stdout)
        except ConnectionError:
            answer = None
        except BaseException:
            # The process may still work on this page, and its answer would go to the next one.
            self._discard(process)
            self._idle.put_nowait(None)
            raise
        finally:
            if process in self._watches:
                self._watches.pop(process).cancel()
        if answer is None:
            # The process has closed its pipe, but may not be reaped yet: it must not be used again.
            self._discard(process)
            self._idle.put_nowait(None)
            return await self._post_mortem(process, response)
        self._idle.put_nowait(process)
        if answer == _INTERRUPTED:
            raise Interrupted
        return _decode_extracted(answer)

    async def _post_mortem(self, process: asyncio.subprocess.Process, response: Response) -> Extracted:
        """Return the record of a page whose process has died."""
        code = await process.wait()
        if self._is_over:
            raise Interrupted
        if process in self._overdue or code == -signal.SIGVTALRM:
            self._overdue.discard(process)
            return too_costly(response, hung(self._settings, len(response.body)))
        return died(response)

    def _watch(self, process: asyncio.subprocess.Process, size: int) -> None:
        """Kill the process if it has used up its CPU time, or sleeps for too long, without an answer."""
        loop = asyncio.get_running_loop()
        limit = hard_seconds(self._settings, size)
        began = _cpu_seconds(process.pid)

        def look() -> None:
            if _cpu_seconds(process.pid) - began < limit and _is_running(process.pid):
                self._watches[process] = loop.call_later(_PATIENCE_SECONDS, look)
                return
            self._overdue.add(process)
            self._discard(process)

        self._watches[process] = loop.call_later(limit + _PATIENCE_SECONDS, look)

    async def _start(self) -> asyncio.subprocess.Process:
        """Start a process, send it the settings, and wait until its spider is open; ExtractError if that fails."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gossamer.engine.parser_pool",
            str(os.getpid()),
            str(self._niceness),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
            preexec_fn=hold_signals,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(remote.frame(_encode(configuration.dump(self._settings))))
            # Imports and opening a spider may take long: the page is not charged for that.
            if (answer := await remote.read_frame(process.stdout)) is not None:
                _raise_failure(answer)
        except BaseException:
            self._discard(process)
            raise
        self._ready.add(process)
        if self._stopping is not None:
            _signal_to_leave(process)
        return process

    def _discard(self, process: asyncio.subprocess.Process) -> None:
        self._ready.discard(process)
        if process.returncode is None:
            process.kill()

    async def aclose(self) -> None:
        """Make all processes close their spiders and exit; ExtractError if one could not close its spider."""
        if self._stopping is not None:
            self._stopping.cancel()
        closing = [self._close(process) for process in self._ready if process.returncode is None]
        self._ready.clear()
        failures = [found for found in await asyncio.gather(*closing, return_exceptions=True) if found is not None]
        for failure in failures[1:]:
            log.error("%s", failure)
        if failures:
            raise failures[0]

    async def _close(self, process: asyncio.subprocess.Process) -> None:
        """Wait without limit until the spider is closed: as in the worker, a second Ctrl-C ends the wait."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
            if (answer := await remote.read_frame(process.stdout)) is None:
                raise ExtractError("a parser process died before its spider was closed")
            _raise_failure(answer)
            async with asyncio.timeout(_EXIT_SECONDS):
                await process.wait()
        except TimeoutError:
            log.warning("killed a parser process that did not exit %.0f s after closing its spider", _EXIT_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _signal_to_leave(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(LEAVE)


def _raise_failure(answer: bytes) -> None:
    """Raise the error of a process that could not open or close its spider."""
    if answer != _DONE:
        said, hint = _decode_failure(answer)
        raise ExtractError(said, hint=hint)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process; infinite where the system does not report them, so only the clock counts."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_running(pid: int) -> bool:
    """Return whether a process runs or waits for a CPU, and does not sleep."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


def main() -> None:
    """Run a parser process: read settings, then pages, until the worker closes the pipe."""
    parent, niceness = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    leave_signals_to_parent()
    os.nice(niceness)
    with suppress(OSError):
        # If memory runs out, the kernel should kill this process: most likely its page used the memory.
        Path("/proc/self/oom_score_adj").write_text("800")
    allocator.give_back_freed_memory()
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Redirected to stderr: a spider's print() must not get between the answers.
    os.dup2(2, 1)

    def read() -> bytes | None:
        head = source.read(4)
        return source.read(int.from_bytes(head, "big")) if len(head) == 4 else None

    def answer(data: bytes) -> None:
        target.write(remote.frame(data))
        target.flush()

    first = read()
    if first is None:
        return
    values: dict[str, Any] = msgspec.msgpack.decode(first)
    settings = configuration.build(values)
    guard = Guard()

    def handle(data: bytes) -> bytes:
        began, order = time.process_time(), _decode_order(data)
        try:
            found = runner.run(extractor.extract(order.request, order.response, hard=True))
        except Interrupted:
            return _INTERRUPTED
        return _encode(msgspec.structs.replace(found, seconds=time.process_time() - began))

    with asyncio.Runner() as runner:
        try:
            spider = make_spider(settings)
            extractor = SpiderRunner(spider, settings, guard=guard)
            lifecycle = Lifecycle(spider, spider.pipelines)
            runner.run(lifecycle.open())
        except GossamerError as error:
            answer(_encode((str(error), error.hint)))
            return
        leave_on_signal(guard, runner.get_loop())
        answer(_DONE)
        closed = _DONE
        try:
            while (data := read()) is not None:
                answer(handle(data))
                allocator.trim_after(len(data))
        finally:
            # Also if the spider ends the process (`sys.exit`) in the middle of a page, which then gets no answer.
            try:
                runner.run(lifecycle.close())
            except GossamerError as error:
                closed = _encode((str(error), error.hint))
        answer(closed)


if __name__ == "__main__":
    main()
