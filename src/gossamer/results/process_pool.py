"""The process pool of a replay: tasks, processes, and what to do when one crashes."""

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
"""Time for a page in hand when the replay is to end: Python code is interrupted after half a second."""
_EXIT_SECONDS = 10.0
"""Time that a process has to end once its spider is closed."""


class ReplayProcess:
    """Works through one part at a time."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._hatched: socket.socket | None = None
        self._pid = 0
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_busy = False

    def hatch(self, siblings: Sequence[ReplayProcess]) -> None:
        """Begin it as a copy of this process; where this one has threads, of which a copy would have none, later."""
        if threading.active_count() > 1 or not hasattr(os, "fork"):
            return
        # It costs as much as hundreds of pages to load all that a replay needs, and it is loaded here.
        from gossamer.results import process

        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            theirs.close()
            self._hatched, self._pid = ours, pid
            return
        try:
            for each in (ours, *(one._hatched for one in siblings)):
                if each is not None:
                    each.close()
            # Temporary folders of the parent are not for its copies to take away at their exit.
            for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
                finalizer.atexit = False
            # A print in a spider goes where messages go.
            os.dup2(2, 1)
            with theirs.makefile("rb") as source, theirs.makefile("wb") as target:
                process.serve(self._setup, source, target)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            end_now(1)
        end_now(0)

    async def do(self, part: ReadPart) -> Done:
        """Work through a part. A page of which the process dies costs that page only: it is found, and left out."""
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
        raise WorkersDie(f"processes die on {part.source}, again and again", hint="what the last one said stands above")

    async def _start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._hatched is not None:
            hatched, self._hatched = self._hatched, None
            self._streams = await asyncio.open_unix_connection(sock=hatched, limit=_LIMIT_BYTES)
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
        """Have the process close its spider, and end it; an ExtractError if the spider could not be closed.

        A page in hand is interrupted; where that does not help, because it is in C code, the process is killed."""
        try:
            if self._streams is not None and (pid := self._pid or (self._process.pid if self._process else 0)):
                await self._leave(pid, *self._streams)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise ExtractError("a process of the replay died before its spider was closed") from None
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
                    # As in a crawl: this takes as long as it takes, and a second Ctrl-C ends it.
                    limit.reschedule(None)
            limit.reschedule(asyncio.get_running_loop().time() + _EXIT_SECONDS)
            await reader.read()
        if found.error:
            raise ExtractError(found.error, hint=found.hint)

    async def _reap(self) -> int:
        """The exit code of the process, which is killed if it still runs; negative for the signal that ended it."""
        code = 0
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
        if self._hatched is not None:
            self._hatched.close()
            self._hatched = None
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
"""Parts that are worked on or wait for their turn, for each process."""


class ReplayPool:
    """Runs the spider that the settings name over all that is stored. No network: nobody here has a downloader."""

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
        # What only a crawl wants to know of a page is not worked out: whether it changed, or is one of a row of copies.
        self._settings = msgspec.structs.replace(settings, recrawl="", alike_pages=0, dedupe=False)
        self._count = processes or os.cpu_count() or 1
        self._which: Which = "all" if all_visits else "last"
        self._where = list(where)
        self._processes = [ReplayProcess(self._setup()) for _ in range(self._count)]

    def hatch(self) -> None:
        """Begin the processes now, as copies of this one, which has loaded what they need; not from among threads."""
        for process in self._processes:
            process.hatch(self._processes)

    async def run(self, take: Callable[[Done], None]) -> None:
        """Work through all parts; `take` gets what each gave, in the order of what is stored."""
        try:
            await self._work(take)
        except BaseException:
            for failure in await self._close():
                log.error("%s", failure)
            raise
        if failures := await self._close():
            raise failures[0]

    async def _close(self) -> list[BaseException]:
        """Close all processes; what went wrong."""
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
            str(self._stored.drafts),
            self._where,
        )
