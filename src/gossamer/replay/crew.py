"""The processes of a replay: each is given part after part, and what they give is taken in the order of parts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence

import msgspec

from gossamer import settings as configuration
from gossamer.engine import wire
from gossamer.errors import WorkersDie
from gossamer.replay.orders import At, Done, Order, Setup
from gossamer.settings import Settings
from gossamer.stored import Part, Stored
from gossamer.stored.shelf import Which

_AHEAD = 4
"""Parts that are worked on or wait for their turn, for each process."""
_MOST_DEATHS = 100
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(At | Done).decode


class Crew:
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

    async def run(self, take: Callable[[Done], None]) -> None:
        """Work through all parts; `take` gets what each gave, in the order of what is stored."""
        idle: asyncio.Queue[_Process] = asyncio.Queue()
        processes = [_Process(self._setup()) for _ in range(self._count)]
        for process in processes:
            idle.put_nowait(process)

        async def do(part: Part) -> Done:
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
        except* WorkersDie as group_of:
            raise group_of.exceptions[0] from None
        finally:
            for process in processes:
                await process.aclose()

    def _setup(self) -> Setup:
        return Setup(
            configuration.dump(self._settings),
            [str(path) for path in self._stored.warcs],
            [(str(tree), str(folder)) for tree, folder in self._stored.trees],
            str(self._stored.drafts),
            self._where,
        )


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
