"""The process pool of a replay: distributes tasks to processes and handles their crashes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from gossamer import settings as configuration
from gossamer.engine.supervision import LEAVE, hold_signals
from gossamer.errors import ExtractError, WorkersDie
from gossamer.jobs.signals import end_now
from gossamer.results.process import At, Closing, Done, Left, ReplayTask, Setup
from gossamer.settings import Settings
from gossamer.storage.base import Which
from gossamer.storage.reader import Stored
from gossamer.storage.warc.reader import ReadPart

_MOST_DEATHS = 100
_LIMIT_BYTES = 1 << 20
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(At | Done | Closing | Left).decode
_LEAVE_SECONDS = 1.5
"""Seconds that the current page gets when the replay is stopped: Python code is interrupted after half a second."""
_EXIT_SECONDS = 10.0
"""Seconds that a process has to exit once its spider is closed."""


class ReplayProcess:
    """A child process that works on one part at a time."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._forked: socket.socket | None = None
        self._pid = 0
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_busy = False

    def fork(self, siblings: Sequence[ReplayProcess]) -> None:
        """Fork this process. If it has threads, which a fork does not copy, `do` starts an interpreter instead."""
        if threading.active_count() > 1 or not hasattr(os, "fork"):
            return
        # Loading the modules costs as much as hundreds of pages; the children inherit them.
        from gossamer.results import process

        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            theirs.close()
            self._forked, self._pid = ours, pid
            return
        try:
            for each in (ours, *(one._forked for one in siblings)):
                if each is not None:
                    each.close()
            # The children must not delete temporary folders of the parent at their exit.
            for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
                finalizer.atexit = False
            # `print` in a spider goes to stderr.
            os.dup2(2, 1)
            with theirs.makefile("rb") as source, theirs.makefile("wb") as target:
                process.serve(self._setup, source, target)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            end_now(1)
        end_now(0)

    async def do(self, part: ReadPart) -> Done:
        """Process a part. After a crash the process is restarted, and the page that causes it is found and skipped."""
        fatal: list[int] = []
        costly: list[int] = []
        careful = False
        for _ in range(_MOST_DEATHS):
            last: At | None = None
            reader, writer = self._streams or await self._start()
            self._is_busy = True
            try:
                _send(writer, _encode(ReplayTask(part, careful, fatal, costly)))
                await writer.drain()
                while True:
                    found = await _receive(reader)
                    if isinstance(found, Done):
                        self._is_busy = False
                        return found
                    if isinstance(found, Left):
                        raise ExtractError(found.error, hint=found.hint)
                    last = found if isinstance(found, At) else last
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            code = await self._reap()
            if last is not None:
                (costly if code == -signal.SIGVTALRM else fatal).append(last.offset)
            elif careful:
                break
            careful = True
        raise WorkersDie(f"processes crash repeatedly on {part.source}", hint="see the output of the last one above")

    async def _start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._forked is not None:
            forked, self._forked = self._forked, None
            self._streams = await asyncio.open_unix_connection(sock=forked, limit=_LIMIT_BYTES)
            return self._streams
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gossamer.results.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LIMIT_BYTES,
            preexec_fn=hold_signals,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._streams = process.stdout, process.stdin
        _send(process.stdin, _encode(self._setup))
        return self._streams

    async def aclose(self) -> None:
        """Have the process close its spider, then end it; ExtractError if the spider cannot be closed.

        The current page is interrupted; if it is in C code, which cannot be interrupted, the process is killed."""
        try:
            if self._streams is not None and (pid := self._pid or (self._process.pid if self._process else 0)):
                await self._leave(pid, *self._streams)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise ExtractError("a replay process crashed before its spider was closed") from None
        except TimeoutError:
            pass
        finally:
            await self._reap()

    async def _leave(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(None) as limit:
            if self._is_busy:
                with suppress(ProcessLookupError):
                    os.kill(pid, LEAVE)
                limit.reschedule(asyncio.get_running_loop().time() + _LEAVE_SECONDS)
            writer.write_eof()
            while not isinstance(found := await _receive(reader), Left):
                if isinstance(found, Closing):
                    # As in a crawl, closing has no time limit; a second Ctrl-C ends it.
                    limit.reschedule(None)
            limit.reschedule(asyncio.get_running_loop().time() + _EXIT_SECONDS)
            await reader.read()
        if found.error:
            raise ExtractError(found.error, hint=found.hint)

    async def _reap(self) -> int:
        """Kill the process if it still runs; returns its exit code, negative for the signal that ended it."""
        code = 0
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
        if self._forked is not None:
            self._forked.close()
            self._forked = None
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            code = await process.wait()
        pid, self._pid = self._pid, 0
        if pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])
        return code


async def _receive(reader: asyncio.StreamReader) -> At | Done | Closing | Left:
    size = int.from_bytes(await reader.readexactly(4), "big")
    found: At | Done | Closing | Left = _decode(await reader.readexactly(size))
    return found


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(4, "big") + data)


log = logging.getLogger("gossamer.engine")
_AHEAD = 4
"""Parts that are in progress or waiting, per process."""


class ReplayPool:
    """Runs the spider of the settings over stored pages, without a downloader and so without the network."""

    def __init__(
        self,
        stored: Stored,
        settings: Settings,
        *,
        processes: int = 0,
        all_visits: bool = False,
        where: Sequence[str] = (),
    ) -> None:
        self._stored = stored
        # Not computed in a replay: changes and near-duplicates.
        self._settings = msgspec.structs.replace(settings, recrawl="", alike_pages=0, dedupe=False)
        self._count = processes or os.cpu_count() or 1
        self._which: Which = "all" if all_visits else "last"
        self._where = list(where)
        self._processes = [ReplayProcess(self._setup()) for _ in range(self._count)]

    def fork(self) -> None:
        """Fork the processes now, from this one, which has loaded their modules; call it while there are no threads."""
        for process in self._processes:
            process.fork(self._processes)

    async def run(self, take: Callable[[Done], None]) -> None:
        """Process all parts; `take` gets their results in the order of the stored pages."""
        try:
            await self._work(take)
        except BaseException:
            for failure in await self._close():
                log.error("%s", failure)
            raise
        if failures := await self._close():
            raise failures[0]

    async def _close(self) -> list[BaseException]:
        """Close all processes; returns their errors."""
        ended = await asyncio.gather(*(process.aclose() for process in self._processes), return_exceptions=True)
        return [failure for failure in ended if failure is not None]

    async def _work(self, take: Callable[[Done], None]) -> None:
        idle: asyncio.Queue[ReplayProcess] = asyncio.Queue()
        processes = self._processes
        for process in processes:
            idle.put_nowait(process)

        async def do(part: ReadPart) -> Done:
            process = await idle.get()
            try:
                return await process.do(part)
            finally:
                idle.put_nowait(process)

        under_way: list[asyncio.Task[Done]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for part in self._stored.parts(self._which):
                    under_way.append(group.create_task(do(part)))
                    if len(under_way) >= _AHEAD * self._count:
                        take(await under_way.pop(0))
                for task in under_way:
                    take(await task)
        except* (WorkersDie, ExtractError) as group_of:
            raise group_of.exceptions[0] from None

    def _setup(self) -> Setup:
        return Setup(
            configuration.dump(self._settings),
            [str(path) for path in self._stored.warcs],
            [(str(tree), str(folder)) for tree, folder in self._stored.trees],
            str(self._stored.index_folder),
            self._where,
        )
