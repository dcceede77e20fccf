"""A worker's side of the coordinator's socket: a frontier and a store that live in another process."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer import errors
from gossamer.engine import wire
from gossamer.engine.store import Result
from gossamer.model import Counts, Grant, Lease, Outcome, Receipt, Request, SiteNote

_CREDENTIALS = struct.Struct("3i")


class OwnerConnection:
    """One connection to the owner; many calls may be under way on it at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[wire.WireReply]] = {}
        self._last = 0
        self.gone = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @property
    def peer_pid(self) -> int:
        """The owner's process; 0 where the system does not tell."""
        own = self._writer.get_extra_info("socket")
        option = getattr(socket, "SO_PEERCRED", None)
        if own is None or option is None:
            return 0
        return int(_CREDENTIALS.unpack(own.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))[0])

    async def call(self, call: wire.Call) -> Any:
        """Ask, and wait for the answer."""
        if self.gone.is_set():
            raise errors.OwnerGone("the crawl that this worker belongs to has ended")
        self._last += 1
        number = self._last
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(wire.frame(wire.encode(wire.Frame(number, call))))
            await self._writer.drain()
            answer = await future
        except ConnectionError:
            raise errors.OwnerGone("the crawl that this worker belongs to has ended") from None
        finally:
            self._waiting.pop(number, None)
        if answer.error:
            name, message, hint = [*answer.error.split("\n", 2), "", ""][:3]
            raise getattr(errors, name, errors.FrontierError)(message, hint=hint)
        return msgspec.msgpack.decode(answer.value, type=wire.ANSWERS[type(call)])

    async def _listen(self) -> None:
        while (data := await wire.read_frame(self._reader)) is not None:
            answer = wire.decode_answer(data)
            future = self._waiting.get(answer.number)
            if future is not None and not future.done():
                future.set_result(answer)
        self.gone.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(errors.OwnerGone("the crawl that this worker belongs to has ended"))

    async def aclose(self) -> None:
        self._listening.cancel()
        self._writer.close()


async def connect(folder: Path, *, worker: str = "") -> tuple[OwnerConnection, wire.Welcome]:
    """Reach the owner of the job in `folder`; with a name, as a worker."""
    try:
        path = (folder / "socket").read_text("utf-8").strip()
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        raise errors.JobMissing(
            f"no crawl is running in {folder}", hint=f"start it with: gossamer crawl --job {folder}"
        ) from None
    connection = OwnerConnection(reader, writer)
    welcome = await connection.call(wire.Hello(worker, os.getpid()))
    return connection, welcome


class RemoteFrontier:
    """The owner's frontier."""

    def __init__(self, connection: OwnerConnection) -> None:
        self._call = connection.call
        self._connection = connection

    async def add(self, requests: Sequence[Request]) -> int:
        return int(await self._call(wire.Add(list(requests))))

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        grant: Grant = await self._call(wire.Take(limit, batch, seconds))
        return grant

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        ours = set(await self._call(wire.Extend([lease.token for lease in leases], seconds)))
        return [msgspec.structs.replace(lease, ttl=seconds) for lease in leases if lease.token in ours]

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        receipt: Receipt = await self._call(wire.Commit(list(outcomes), [None] * len(outcomes), list(notes)))
        return receipt

    async def release(self, leases: Sequence[Lease]) -> None:
        await self._call(wire.Release([lease.token for lease in leases]))

    async def idle(self, grant: Grant) -> None:
        await self._call(wire.Idle(grant.wait, grant.news))

    async def counts(self) -> Counts:
        return msgspec.convert(await self._call(wire.Ask("counts")), Counts)

    async def aclose(self) -> None:
        await self._connection.aclose()


class RemoteStore:
    """The owner's store: records travel with their outcomes, and the owner writes them."""

    def __init__(self, connection: OwnerConnection, refused: Counter[str]) -> None:
        self._call = connection.call
        self._refused = refused

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        receipt: Receipt = await self._call(
            wire.Commit(
                [result.outcome for result in results],
                [result.record for result in results],
                list(notes),
                dict(self._refused),
            )
        )
        self._refused.clear()
        return receipt
