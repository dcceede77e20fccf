"""Parser processes: pages are parsed, and handlers run, where they block nobody and can be killed."""

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
from gossamer.engine import allocator, wire
from gossamer.engine.budget import Interrupted, hard_seconds, hung
from gossamer.engine.extractor import Extracted, Extractor, died, make_spider, too_costly
from gossamer.engine.handle import Aside
from gossamer.engine.orphans import die_with
from gossamer.model import Request, Response
from gossamer.settings import Settings

log = logging.getLogger("gossamer.engine")
_PATIENCE_SECONDS = 5.0
"""Time on the clock that a process gets on top of its CPU time: it may have to wait for a processor."""
_GRACE_SECONDS = 1.0
"""What pages in hand get when the crawl is to end."""
_NICENESS = 5
_WAITING_BYTES = 64 * 1024 * 1024
"""Bodies that may wait for a process while their visits take no place from others."""


class Order(msgspec.Struct, array_like=True, frozen=True):
    """One page for a parser."""

    request: Request
    response: Response


_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(Order).decode
_decode_extracted = msgspec.msgpack.Decoder(Extracted).decode


class ParserPool:
    """A fixed number of processes, each with one page at a time; one that dies costs its page only, and is replaced.

    A process interrupts a handler that passes its limit by itself. Where it cannot, because code in C does not come to
    an end, the kernel kills it after the CPU time of the budget; and where it just hangs, this one kills it."""

    def __init__(self, size: int, settings: Settings, *, is_aside: bool = False) -> None:
        """`is_aside`: the processes leave the processor to this one where both want it."""
        self._settings = settings
        self._niceness = _NICENESS if is_aside else 0
        self._idle: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._all: set[asyncio.subprocess.Process] = set()
        self._watches: dict[asyncio.subprocess.Process | None, asyncio.TimerHandle] = {}
        self._overdue: set[asyncio.subprocess.Process] = set()
        self._stopping: asyncio.TimerHandle | None = None
        self._is_over = False
        self._waiting_bytes = 0
        for _ in range(size):
            self._idle.put_nowait(None)

    def interrupt(self) -> None:
        """Nothing of this process is held off."""

    def stop(self) -> None:
        """The crawl is to end: pages in hand have a moment left."""
        if self._stopping is None:
            grace = min(_GRACE_SECONDS, self._settings.drain_seconds)
            self._stopping = asyncio.get_running_loop().call_later(grace, self._end)

    def _end(self) -> None:
        self._is_over = True
        for process in list(self._all):
            self._discard(process)

    async def extract(
        self, request: Request, response: Response, *, suspect: bool = False, aside: Aside | None = None
    ) -> Extracted:
        """As Extractor.extract, elsewhere."""
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
        process = await self._idle.get()
        try:
            if self._is_over:
                raise Interrupted
            if process is None or process.returncode is not None:
                process = await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            self._watch(process, len(response.body))
            process.stdin.write(wire.frame(_encode(Order(request, response))))
            await process.stdin.drain()
            answer = await wire.read_frame(process.stdout)
        except ConnectionError:
            answer = None
        except BaseException:
            # The process may be in the middle of a page that nobody waits for any more.
            self._discard(process)
            self._idle.put_nowait(None)
            raise
        finally:
            if process in self._watches:
                self._watches.pop(process).cancel()
        if answer is None:
            assert process is not None
            # Nobody else may get it: that it has died is not always known yet, and the next page would be charged too.
            self._discard(process)
            self._idle.put_nowait(None)
            return await self._post_mortem(process, response)
        self._idle.put_nowait(process)
        return _decode_extracted(answer)

    async def _post_mortem(self, process: asyncio.subprocess.Process, response: Response) -> Extracted:
        """What to record of a page whose process has ended."""
        code = await process.wait()
        if self._is_over:
            raise Interrupted
        if process in self._overdue or code == -signal.SIGVTALRM:
            self._overdue.discard(process)
            return too_costly(response, hung(self._settings, len(response.body)))
        return died(response)

    def _watch(self, process: asyncio.subprocess.Process, size: int) -> None:
        """Kill the process if it is not done in time. It is not to blame for time in which others had the processor."""
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
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gossamer.engine.parsers",
            str(os.getpid()),
            str(self._niceness),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._all.add(process)
        process.stdin.write(wire.frame(_encode(configuration.dump(self._settings))))
        # It may take long to load what a spider imports: that is not charged to the page.
        await wire.read_frame(process.stdout)
        return process

    def _discard(self, process: asyncio.subprocess.Process | None) -> None:
        if process is None:
            return
        self._all.discard(process)
        if process.returncode is None:
            process.kill()

    async def aclose(self) -> None:
        """End all processes: those without a page in order, the others at once."""
        if self._stopping is not None:
            self._stopping.cancel()
        leaving = [process for process in self._all if process.returncode is None]
        for process in leaving:
            if process in self._watches:
                process.kill()
            elif process.stdin is not None:
                process.stdin.close()
        waiting = [asyncio.ensure_future(process.wait()) for process in leaving]
        if waiting:
            await asyncio.wait(waiting, timeout=_GRACE_SECONDS)
        for process in leaving:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _cpu_seconds(pid: int) -> float:
    """The CPU time of a process; infinite where the system does not tell, so that only the clock counts."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_running(pid: int) -> bool:
    """Whether a process wants the processor, and does not sleep."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


def main() -> None:
    """Be a parser: settings first, then pages, until the worker closes the pipe."""
    parent, niceness = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    # Ctrl-C reaches all processes of a terminal: what becomes of the page in hand is decided by the worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    with suppress(OSError):
        # Where memory runs out, it is the page in hand here that took it.
        Path("/proc/self/oom_score_adj").write_text("800")
    allocator.give_back_freed_memory()
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # A print in a spider must not land between the answers.
    os.dup2(2, 1)

    def read() -> bytes | None:
        head = source.read(4)
        return source.read(int.from_bytes(head, "big")) if len(head) == 4 else None

    def answer(data: bytes) -> None:
        target.write(wire.frame(data))
        target.flush()

    first = read()
    if first is None:
        return
    values: dict[str, Any] = msgspec.msgpack.decode(first)
    settings = configuration.build(values)
    extractor = Extractor(make_spider(settings), settings)
    answer(b"")
    with asyncio.Runner() as runner:
        while (data := read()) is not None:
            began, order = time.process_time(), _decode_order(data)
            found = runner.run(extractor.extract(order.request, order.response, hard=True))
            answer(_encode(msgspec.structs.replace(found, seconds=time.process_time() - began)))
            del order
            allocator.trim_after(len(data))


if __name__ == "__main__":
    main()
