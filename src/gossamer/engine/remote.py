"""A worker's side of the coordinator's socket: the messages, and a frontier and a store in another process.

Messages are msgpack with typed fields, in frames with a length prefix; nothing is unpickled. Each call has a number,
and answers come in any order. `Hello` names the protocol version, so that a worker and an owner of different versions
refuse each other with a clear error.

`RemoteFrontier` and `RemoteStore` behave like the owner's frontier and store, with two differences. First, time in
transit counts against the worker: it counts a lease from before the call (`engine/run.py`), and the socket is local, so
both use the same clock. Second, an answer can be lost with the connection. Nothing can be repeated then, since the
tokens are void: every current and later call raises `OwnerGone`, and the worker ends. Other workers fetch again what it
had fetched and not committed."""

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
from gossamer.engine.commit import Result
from gossamer.model import Counts, Grant, Lease, Outcome, Receipt, Record, Request, SiteNote

PROTOCOL = 2
MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first call of a connection; a worker sends its name."""

    worker: str
    pid: int
    protocol: int = PROTOCOL


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The answer to Hello: the job's settings, the secret of its keys, and its folder."""

    settings: dict[str, Any]
    secret: bytes
    folder: str


class Add(msgspec.Struct, tag="add", frozen=True):
    """`Frontier.add`."""

    requests: list[Request]


class AddUrls(msgspec.Struct, tag="add-urls", frozen=True):
    """Add seeds to the running job; the owner normalizes them and computes their keys."""

    urls: list[str]


class Take(msgspec.Struct, tag="take", frozen=True):
    """`Frontier.lease`. The worker's name is that of its connection."""

    limit: int
    batch: int
    seconds: float


class Extend(msgspec.Struct, tag="extend", frozen=True):
    """`Frontier.extend`; the answer has the tokens of the leases that are still held."""

    tokens: list[int]
    seconds: float


class Commit(msgspec.Struct, tag="commit", frozen=True):
    """`Store.commit`: a record for each outcome, or None. The owner writes those of accepted outcomes."""

    outcomes: list[Outcome]
    records: list[Record | None]
    notes: list[SiteNote]
    refused: dict[str, int] = {}
    """Links that were not followed since the last commit, by reason; the owner adds them up."""


class Release(msgspec.Struct, tag="release", frozen=True):
    """`Frontier.release`."""

    tokens: list[int]


class Idle(msgspec.Struct, tag="idle", frozen=True):
    """`Frontier.idle`, with the required fields of the grant. The answer may come much later."""

    wait: float | None
    news: int


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """A query or order of a command: counts, sites, every_site, site, lookup, lanes, workers, pause, resume, stop."""

    what: str
    text: str = ""


class Limit(msgspec.Struct, tag="limit", frozen=True):
    """New values for settings of the running job."""

    settings: dict[str, Any]


Call = Hello | Add | AddUrls | Take | Extend | Commit | Release | Idle | Ask | Limit


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """A call with its number, which the answer repeats."""

    number: int
    call: Call


class WireReply(msgspec.Struct, array_like=True, frozen=True):
    number: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    """Class, message, and hint of an error, on a line each; empty if there was none."""


ANSWERS: dict[type[Any], Any] = {
    Hello: Welcome,
    Add: int,
    AddUrls: int,
    Take: Grant,
    Extend: list[int],
    Commit: Receipt,
    Release: None,
    Idle: None,
    Ask: Any,
    Limit: None,
}
encode = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_answer = msgspec.msgpack.Decoder(WireReply).decode


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next frame; None when the other side is gone, or sent a frame that is too long."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        return await reader.readexactly(length) if length <= MAX_FRAME_BYTES else None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def frame(data: bytes) -> bytes:
    """Return a frame: data with a length prefix."""
    return _LENGTH.pack(len(data)) + data


_CREDENTIALS = struct.Struct("3i")


class OwnerConnection:
    """One connection to the owner, with any number of concurrent calls.

    `gone` is set when the owner's end closes. There is no way to reconnect: the owner has taken back this worker's
    leases at the same moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[WireReply]] = {}
        self._last = 0
        self.gone = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @property
    def peer_pid(self) -> int:
        """Return the process id of the owner; 0 where the system does not report it."""
        own = self._writer.get_extra_info("socket")
        option = getattr(socket, "SO_PEERCRED", None)
        if own is None or option is None:
            return 0
        return int(_CREDENTIALS.unpack(own.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))[0])

    async def call(self, call: Call) -> Any:
        """Send a call and return its answer; raises the error that the owner had, or OwnerGone."""
        if self.gone.is_set():
            raise errors.OwnerGone("the crawl of this worker has ended")
        self._last += 1
        number = self._last
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame(encode(Frame(number, call))))
            await self._writer.drain()
            answer = await future
        except ConnectionError:
            raise errors.OwnerGone("the crawl of this worker has ended") from None
        finally:
            self._waiting.pop(number, None)
        if answer.error:
            name, message, hint = [*answer.error.split("\n", 2), "", ""][:3]
            raise getattr(errors, name, errors.FrontierError)(message, hint=hint)
        return msgspec.msgpack.decode(answer.value, type=ANSWERS[type(call)])

    async def _listen(self) -> None:
        """Pass answers to their calls until the owner is gone, then fail all that still wait."""
        while (data := await read_frame(self._reader)) is not None:
            answer = decode_answer(data)
            future = self._waiting.get(answer.number)
            if future is not None and not future.done():
                future.set_result(answer)
        self.gone.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(errors.OwnerGone("the crawl of this worker has ended"))

    async def aclose(self) -> None:
        self._listening.cancel()
        self._writer.close()


async def connect(folder: Path, *, worker: str = "") -> tuple[OwnerConnection, Welcome]:
    """Connect to the owner of the job in `folder`; with a name, as a worker."""
    try:
        path = (folder / "socket").read_text("utf-8").strip()
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        raise errors.JobMissing(
            f"no crawl is running in {folder}", hint=f"start it with: gossamer crawl --job {folder}"
        ) from None
    connection = OwnerConnection(reader, writer)
    welcome = await connection.call(Hello(worker, os.getpid()))
    return connection, welcome


class RemoteFrontier:
    """The owner's frontier, as a worker uses it."""

    def __init__(self, connection: OwnerConnection) -> None:
        self._call = connection.call
        self._connection = connection

    async def add(self, requests: Sequence[Request]) -> int:
        return int(await self._call(Add(list(requests))))

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        grant: Grant = await self._call(Take(limit, batch, seconds))
        return grant

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        ours = set(await self._call(Extend([lease.token for lease in leases], seconds)))
        return [msgspec.structs.replace(lease, ttl=seconds) for lease in leases if lease.token in ours]

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        receipt: Receipt = await self._call(Commit(list(outcomes), [None] * len(outcomes), list(notes)))
        return receipt

    async def release(self, leases: Sequence[Lease]) -> None:
        await self._call(Release([lease.token for lease in leases]))

    async def idle(self, grant: Grant) -> None:
        await self._call(Idle(grant.wait, grant.news))

    async def counts(self) -> Counts:
        return msgspec.convert(await self._call(Ask("counts")), Counts)

    async def aclose(self) -> None:
        await self._connection.aclose()


class RemoteStore:
    """The owner's store: records are sent with their outcomes, and the owner writes them.

    Refused links are counted in `refused` until a commit has brought them to the owner."""

    def __init__(self, connection: OwnerConnection, refused: Counter[str]) -> None:
        self._call = connection.call
        self._refused = refused

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        receipt: Receipt = await self._call(
            Commit(
                [result.outcome for result in results],
                [result.record for result in results],
                list(notes),
                dict(self._refused),
            )
        )
        self._refused.clear()
        return receipt
