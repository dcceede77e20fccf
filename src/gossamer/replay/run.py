"""Gives the parts of what is stored to processes, and writes what they give in its order."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from gossamer import settings as configuration
from gossamer.engine import wire
from gossamer.errors import ConfigError, WorkersDie
from gossamer.replay.orders import At, Done, Order, Setup
from gossamer.settings import Settings
from gossamer.sink import disk
from gossamer.sink.aside import REJECTED
from gossamer.sink.jsonl import ITEMS, PAGES
from gossamer.stored import Part, Stored

SETTINGS = "job.toml"
"""By this the folder of a crawl is known."""
_AHEAD = 4
"""Parts that are worked on or wait for their turn, for each process."""
_MOST_DEATHS = 100
_EXAMPLES = 20
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(At | Done).decode


class Replayed(msgspec.Struct, kw_only=True):
    """How a replay went."""

    pages: int = 0
    items: int = 0
    rejected: int = 0
    dropped: int = 0
    requests: int = 0
    """Requests that the spider made; nobody sends them."""
    failed: int = 0
    unread: int = 0
    """Records that could not be read, or whose bodies are not there."""
    bytes: int = 0
    seconds: float = 0.0
    failures: list[tuple[str, str]] = []
    """Some of the pages on which the spider failed, and why."""
    faults: list[str] = []
    """Some of what could not be read."""
    fields: dict[str, int] = {}
    """Rejected items by the field that is wrong."""


class Replay:
    """Runs a spider over all that is stored, and writes pages.jsonl, items.jsonl and, if need be, items-rejected.jsonl.

    The lines have the order of what is stored, whatever the number of processes. The files take their names when all
    is done, so that a replay that was killed leaves those of the last one."""

    def __init__(
        self, stored: Stored, settings: Settings, out: Path, *, processes: int = 0, all_visits: bool = False
    ) -> None:
        if (out / SETTINGS).exists():
            raise ConfigError(f"{out} is the folder of a crawl", hint="give --out another folder: what is there stays")
        self._stored = stored
        # What only a crawl wants to know of a page is not worked out: whether it changed, or is one of a row of copies.
        self._settings = msgspec.structs.replace(settings, recrawl="", alike_pages=0)
        self._out = out
        self._count = processes or os.cpu_count() or 1
        self._all_visits = all_visits
        self._result = Replayed()
        self._fields: Counter[str] = Counter()

    async def run(self, progress: Callable[[Replayed], None] = lambda _: None) -> Replayed:
        """Run to the end; `progress` is told after every part."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._out.mkdir(parents=True, exist_ok=True)
        drafts = {name: self._out / f".{name}.draft" for name in (PAGES, ITEMS, REJECTED)}
        processes = [_Process(self._setup()) for _ in range(self._count)]
        try:
            with ExitStack() as stack:
                files = {name: stack.enter_context(path.open("wb")) for name, path in drafts.items()}
                await self._work(processes, files, progress)
                for file in files.values():
                    file.flush()
                    os.fsync(file.fileno())
            for name, draft in drafts.items():
                if name == REJECTED and not draft.stat().st_size:
                    (self._out / name).unlink(missing_ok=True)
                else:
                    draft.replace(self._out / name)
            disk.sync_folder(self._out)
        except OSError as error:
            raise disk.in_words(error) from error
        finally:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
            for process in processes:
                await process.aclose()
        self._result.seconds = loop.time() - began
        self._result.fields = dict(self._fields.most_common())
        return self._result

    def _setup(self) -> Setup:
        return Setup(
            configuration.dump(self._settings),
            [str(path) for path in self._stored.warcs],
            [(str(tree), str(folder)) for tree, folder in self._stored.trees],
            str(self._stored.drafts),
        )

    async def _work(
        self, processes: list[_Process], files: Mapping[str, IO[bytes]], progress: Callable[[Replayed], None]
    ) -> None:
        idle: asyncio.Queue[_Process] = asyncio.Queue()
        for process in processes:
            idle.put_nowait(process)

        async def do(part: Part) -> Done:
            process = await idle.get()
            try:
                return await process.do(part)
            finally:
                idle.put_nowait(process)

        under_way: list[asyncio.Task[Done]] = []
        async with asyncio.TaskGroup() as group:
            for part in self._stored.parts("all" if self._all_visits else "last"):
                under_way.append(group.create_task(do(part)))
                if len(under_way) >= _AHEAD * self._count:
                    self._add(await under_way.pop(0), files, progress)
            for task in under_way:
                self._add(await task, files, progress)

    def _add(self, done: Done, files: Mapping[str, IO[bytes]], progress: Callable[[Replayed], None]) -> None:
        files[PAGES].write(done.pages)
        files[ITEMS].write(done.items)
        files[REJECTED].write(done.rejected)
        result = self._result
        result.pages += done.page_count
        result.items += done.item_count
        result.rejected += done.rejected_count
        result.dropped += done.dropped_count
        result.requests += done.request_count
        result.failed += done.failed_count
        result.unread += done.unread_count
        result.bytes += done.body_bytes
        result.failures = [*result.failures, *done.failures][:_EXAMPLES]
        result.faults = [*result.faults, *done.unread][:_EXAMPLES]
        self._fields.update(done.fields)
        progress(result)


class _Process:
    """One process, begun when it is needed and again when it died."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None

    async def do(self, part: Part) -> Done:
        """Work through a part. A page of which the process dies costs that page only: it is found, and left out."""
        fatal: list[int] = []
        careful = False
        for _ in range(_MOST_DEATHS):
            last: At | None = None
            process = self._process or await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(wire.frame(_encode(Order(part, careful, fatal))))
                await process.stdin.drain()
                while (data := await wire.read_frame(process.stdout)) is not None:
                    found = _decode(data)
                    if isinstance(found, Done):
                        return found
                    last = found
            except ConnectionError:
                pass
            await self.aclose()
            if last is not None:
                fatal.append(last.offset)
            elif careful:
                break
            careful = True
        raise WorkersDie(f"processes die on {part.source}, again and again", hint="what the last one said stands above")

    async def _start(self) -> asyncio.subprocess.Process:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gossamer.replay.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert process.stdin is not None
        process.stdin.write(wire.frame(_encode(self._setup)))
        return process

    async def aclose(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
