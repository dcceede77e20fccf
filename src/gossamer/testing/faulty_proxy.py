"""TCP proxies that break the way to a server: refused, reset, silent, or cut in the middle of a command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Literal, Self

_HOST = "127.0.0.1"
_LIMIT_BYTES = 1 << 26
_READ_BYTES = 1 << 16

Fault = Literal["", "refuse", "reset", "hang up", "silent"]
CommandFault = Literal["", "cut", "mute"]


class FaultyProxy:
    """A TCP proxy in a thread of its own, before a server that may be away; `port` is where clients connect.

    `refuse`: nobody listens. `reset` and `hang up`: connections are taken and ended at once. `silent`: they are taken,
    and nothing passes, neither on new ones nor on those that are open."""

    def __init__(self, port: int) -> None:
        self.server_port = port
        """Where new connections lead; those that are open stay where they are."""
        self.port = 0
        self.faults = 0
        """How many connections were taken and ended, and how many commands met a fault."""
        self._fault: Fault = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._speaks = asyncio.Event()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._do(self._break("refuse"))
        self._do(self._until_closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lead(self, port: int) -> None:
        """End all connections; new ones lead to another port, whatever the fault was."""
        self.server_port = port
        self.fail("")

    def fail(self, fault: Fault) -> None:
        """Have the server be away like this from now on; only `silent` leaves connections open."""
        self._do(self._break(fault))

    def cut_all(self) -> None:
        """End every connection at once."""
        self._loop.call_soon_threadsafe(self._abort)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._started.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, _HOST, self.port, limit=_LIMIT_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _break(self, fault: Fault) -> None:
        self._fault = fault
        if fault == "refuse" and self._server is not None:
            self._server.close()
            self._server = None
        elif fault != "refuse" and self._server is None:
            await self._listen()
        if fault == "silent":
            self._speaks.clear()
        else:
            self._speaks.set()
            self._abort()

    async def _until_closed(self) -> None:
        while self._open:
            await asyncio.sleep(0.01)

    def _abort(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._fault in ("reset", "hang up"):
            self.faults += 1
            # To close answers with FIN, to abort with RST where something was received.
            client.close() if self._fault == "hang up" else client.transport.abort()
            return
        self._open.add(client)
        writers = [client]
        try:
            if self._fault == "silent":
                await self._speaks.wait()
                raise EOFError
            answers, server = await asyncio.open_connection(_HOST, self.server_port, limit=_LIMIT_BYTES)
            self._open.add(server)
            writers.append(server)
            link = _Link(reader, client, answers, server)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(link))
                tasks.create_task(self._answer(link))
        except* (OSError, EOFError):
            pass
        finally:
            for writer in writers:
                writer.transport.abort()
            self._open.difference_update(writers)

    async def _forward(self, link: _Link) -> None:
        while data := await link.commands.read(_READ_BYTES):
            await self._pass(data, link.server)
        raise EOFError

    async def _answer(self, link: _Link) -> None:
        while data := await link.answers.read(_READ_BYTES):
            await self._pass(data, link.client)
        raise EOFError

    async def _pass(self, data: bytes, target: asyncio.StreamWriter) -> None:
        if self._fault == "silent":
            await self._speaks.wait()
            raise EOFError
        target.write(data)
        await target.drain()


class FaultyRedisProxy(FaultyProxy):
    """The same before a Redis server, command by command.

    Every `every`-th command meets the `fault`: `cut` ends the connection before the server sees it, `mute` after the
    server has run it, without its answer. An `error` is the answer to all commands but those of a greeting. Each answer
    waits for `latency_seconds`, and `rewrite` may put other bytes in its place. All of it may be changed at any time.
    """

    GREETINGS = (b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"PING")

    def __init__(self, port: int, *, fault: CommandFault = "", every: int = 0) -> None:
        super().__init__(port)
        self.fault: CommandFault = fault
        self.every = every
        self.error = ""
        self.latency_seconds = 0.0
        self.rewrite: Callable[[bytes], bytes] | None = None
        self._commands = 0

    async def _forward(self, link: _Link) -> None:
        while True:
            command = await _read_command(link.commands)
            self._commands += 1
            if self.error and command.split(b"\r\n", 3)[2].upper() not in self.GREETINGS:
                link.client.write(f"-{self.error}\r\n".encode())
                continue
            if self.fault and self.every > 0 and self._commands % self.every == 0:
                self.faults += 1
                if self.fault == "cut":
                    raise EOFError
                link.muted = True
            await self._pass(command, link.server)

    async def _answer(self, link: _Link) -> None:
        while True:
            data = await link.answers.read(_READ_BYTES)
            if not data or link.muted:
                raise EOFError
            if self.latency_seconds:
                await asyncio.sleep(self.latency_seconds)
            await self._pass(data if self.rewrite is None else self.rewrite(data), link.client)


class _Link:
    """One client's connection and ours to the server."""

    def __init__(
        self,
        commands: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        self.commands = commands
        self.client = client
        self.answers = answers
        self.server = server
        self.muted = False


async def _read_command(reader: asyncio.StreamReader) -> bytes:
    """The bytes of one command: an array of strings."""
    head = await reader.readuntil(b"\r\n")
    parts = [head]
    for _ in range(int(head[1:])):
        size = await reader.readuntil(b"\r\n")
        parts += [size, await reader.readexactly(int(size[1:]) + 2)]
    return b"".join(parts)
