"""Parser processes: heavy handlers run here while the worker goes on fetching and renewing its leases."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

import msgspec

from gossamer import settings as configuration
from gossamer.engine import allocator, wire
from gossamer.engine.extractor import Extracted, Extractor, make_spider
from gossamer.model import Request, Response
from gossamer.settings import Settings

log = logging.getLogger("gossamer.engine")


class Order(msgspec.Struct, array_like=True, frozen=True):
    """One page for a parser."""

    request: Request
    response: Response


_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(Order).decode
_decode_extracted = msgspec.msgpack.Decoder(Extracted).decode


class ParserPool:
    """A fixed number of processes, each with one page at a time; one that dies costs its page only, and is replaced."""

    def __init__(self, size: int, settings: Settings) -> None:
        self._settings = settings
        self._idle: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._all: set[asyncio.subprocess.Process] = set()
        for _ in range(size):
            self._idle.put_nowait(None)

    async def extract(self, request: Request, response: Response) -> Extracted:
        """As Extractor.extract, elsewhere."""
        process = await self._idle.get()
        try:
            if process is None or process.returncode is not None:
                process = await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
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
        if answer is None:
            # Nobody else may get it: that it has died is not always known yet, and the next page would be charged too.
            self._discard(process)
            self._idle.put_nowait(None)
            return Extracted(error="the spider's process died on this page")
        self._idle.put_nowait(process)
        return _decode_extracted(answer)

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gossamer.engine.parsers",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert process.stdin is not None
        self._all.add(process)
        process.stdin.write(wire.frame(_encode(configuration.dump(self._settings))))
        return process

    def _discard(self, process: asyncio.subprocess.Process | None) -> None:
        if process is None:
            return
        self._all.discard(process)
        if process.returncode is None:
            process.kill()

    async def aclose(self) -> None:
        """End all processes."""
        for process in self._all:
            if process.returncode is None:
                process.kill()
                await process.wait()


def main() -> None:
    """Be a parser: settings first, then pages, until the worker closes the pipe."""
    allocator.give_back_freed_memory()
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # A print in a spider must not land between the answers.
    os.dup2(2, 1)

    def read() -> bytes | None:
        head = source.read(4)
        return source.read(int.from_bytes(head, "big")) if len(head) == 4 else None

    first = read()
    if first is None:
        return
    values: dict[str, Any] = msgspec.msgpack.decode(first)
    settings = configuration.build(values)
    extractor = Extractor(make_spider(settings), settings)
    with asyncio.Runner() as runner:
        while (data := read()) is not None:
            order = _decode_order(data)
            target.write(wire.frame(_encode(runner.run(extractor.extract(order.request, order.response)))))
            target.flush()
            del order
            allocator.trim_after(len(data))


if __name__ == "__main__":
    main()
