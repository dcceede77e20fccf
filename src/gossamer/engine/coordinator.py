"""The coordinator: lets other processes of this machine use the owner's frontier and files over a Unix socket.

An embedded job has one owner, which alone writes the frontier and the output. Workers and commands send it calls
(`remote`), and it runs them on its own frontier and store, as if they came from its own process (P8). Results come with
their records, so that the owner can check tokens first and write only what counts. The calls of one connection run
concurrently: `idle` may answer minutes later.

**A worker lives as long as its connection.** A worker sends its name in `Hello`, and gets leases only after that. When
its connection ends for any reason, the kernel reports it at once. The owner then takes back all leases of that name
without waiting for their end (P9), and blames the one page that the worker's crash marker names (P10). Running calls of
that worker are cancelled, except that a commit which has begun is finished. The name is free again only after that; a
successor with the name would otherwise lose its leases with those of the dead worker.

**When the owner dies**, workers see the end of the connection, and stop: their tokens are void. The socket is in its
own folder in the system's temporary folder, since its path must be short; the job's folder has a file with the path,
which a killed owner leaves behind and the next owner replaces. Connecting to a dead owner's socket fails in the same
way as if no crawl were running.

An error in a call is sent back with its class, message, and hint, and ends no other call."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from gossamer import settings as configuration
from gossamer import urls
from gossamer.engine import remote
from gossamer.engine.commit import Result, Store
from gossamer.engine.links import Linker
from gossamer.engine.supervision import take_marked_key
from gossamer.errors import ConfigError, GossamerError
from gossamer.frontier.base import OwnedFrontier
from gossamer.model import Grant, Lease
from gossamer.settings import Settings

log = logging.getLogger("gossamer.coordinator")
_STEERING = {"pause": "paused", "resume": "running", "stop": "stopping"}
LIMITS = frozenset(("max_pages", "max_seconds", "delay", "sites"))
"""Settings that may change while a crawl runs."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Coordinator:
    """Serves workers and commands as long as the owner runs."""

    def __init__(
        self,
        frontier: OwnedFrontier,
        store: Store,
        *,
        linker: Linker,
        settings: Settings,
        folder: Path,
        limited: Callable[[Settings], None] = lambda _: None,
    ) -> None:
        self._frontier = frontier
        self._store = store
        self._linker = linker
        self._settings = settings
        self._folder = folder
        self._limited = limited
        self._server: asyncio.Server | None = None
        self._place = ""
        self._sessions: set[asyncio.Task[None]] = set()
        self.workers: dict[str, int] = {}

    async def start(self) -> None:
        """Listen, then write the socket's path into the job's folder, where clients find it."""
        # The path of a socket may have only about 100 characters, so the socket is not in the job's folder.
        self._place = tempfile.mkdtemp(prefix="gossamer-")
        path = os.path.join(self._place, "owner")
        self._server = await asyncio.start_unix_server(self._serve, path)
        address = self._folder / "socket"
        temporary = address.with_suffix(".new")
        temporary.write_text(path, "utf-8")
        temporary.replace(address)

    async def aclose(self) -> None:
        """Stop listening, and end all connections. Returns when the leases of their workers are taken back."""
        (self._folder / "socket").unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        shutil.rmtree(self._place, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = asyncio.current_task()
        assert session is not None
        self._sessions.add(session)
        peer = _Peer(writer)
        calls: set[asyncio.Task[None]] = set()
        try:
            while (data := await remote.read_frame(reader)) is not None:
                # One task per call: `idle` answers late and must not block the others.
                call = asyncio.create_task(self._answer(peer, data))
                calls.add(call)
                call.add_done_callback(calls.discard)
        except asyncio.CancelledError:
            pass
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            writer.close()
            if peer.worker:
                # The crawl may end meanwhile and cancel this session; a running write is finished all the same.
                with suppress(asyncio.CancelledError):
                    await self._take_back(peer.worker)
            # Last: once no session is left, the owner closes the frontier.
            self._sessions.discard(session)

    async def _take_back(self, worker: str) -> None:
        """Take back a dead worker's leases at once, and count a loss against the page that it was handling."""
        key = take_marked_key(self._folder / "handling" / worker)
        lost = await self._frontier.abandon(worker, blamed=(key,) if key else ())
        # Only now may a successor use the name: `abandon` takes all leases of a name.
        self.workers.pop(worker, None)
        if lost:
            log.warning("worker %s left with %d sites in hand; they are ready again", worker, lost)

    async def _answer(self, peer: _Peer, data: bytes) -> None:
        number = -1
        try:
            asked = remote.decode_frame(data)
            number = asked.number
            value = await self._handlers[type(asked.call)](self, peer, asked.call)
            answer = remote.WireReply(number, msgspec.Raw(remote.encode(value)))
        except GossamerError as error:
            answer = remote.WireReply(number, error=f"{type(error).__name__}\n{error}\n{error.hint}")
        except msgspec.MsgspecError as error:
            answer = remote.WireReply(number, error=f"ConfigError\ncannot decode a call: {error}\n")
        except Exception as error:  # one peer's call decides over that peer only, and it must not wait without end
            log.warning("call from %s failed: %r", peer.worker or "somebody", error)
            answer = remote.WireReply(number, error=f"FrontierError\nthe owner failed: {error!r}\n")
        peer.writer.write(remote.frame(remote.encode(answer)))
        await peer.writer.drain()

    async def _hello(self, peer: _Peer, call: remote.Hello) -> remote.Welcome:
        if call.protocol != remote.PROTOCOL:
            raise ConfigError(
                f"this worker speaks protocol {call.protocol}, the crawl speaks {remote.PROTOCOL}",
                hint="run the same version of Gossamer for both",
            )
        if call.worker:
            # The name is also that of the worker's marker, a file beside the owner's.
            if peer.worker or call.worker == "owner" or not _NAME.fullmatch(call.worker):
                raise ConfigError(
                    f"{call.worker!r:.80} is not a valid worker name", hint="use letters, digits, and dashes"
                )
            if call.worker in self.workers:
                raise ConfigError(f"a worker named {call.worker} is already connected", hint="choose another --name")
            peer.worker = call.worker
            self.workers[call.worker] = call.pid
        return remote.Welcome(configuration.dump(self._settings), self._frontier.secret, str(self._folder))

    async def _add(self, _: _Peer, call: remote.Add) -> int:
        return await self._frontier.add(call.requests)

    async def _add_urls(self, _: _Peer, call: remote.AddUrls) -> int:
        seeds = [url for url in map(urls.normal, call.urls) if url]
        return await self._frontier.add([self._linker.seed(url) for url in seeds])

    async def _take(self, peer: _Peer, call: remote.Take) -> Grant:
        if not peer.worker:
            # Leases of a worker without a name could not be taken back when its connection ends.
            raise ConfigError("only a named worker can lease")
        return await self._frontier.lease(call.limit, batch=call.batch, seconds=call.seconds, worker=peer.worker)

    async def _extend(self, _: _Peer, call: remote.Extend) -> list[int]:
        leases = [_bare_lease(token) for token in call.tokens]
        return [lease.token for lease in await self._frontier.extend(leases, seconds=call.seconds)]

    async def _commit(self, _: _Peer, call: remote.Commit) -> Any:
        results = [Result(outcome, record) for outcome, record in zip(call.outcomes, call.records, strict=True)]
        self._linker.refused.update(call.refused)
        return await self._store.commit(results, call.notes)

    async def _release(self, _: _Peer, call: remote.Release) -> None:
        await self._frontier.release([_bare_lease(token) for token in call.tokens])

    async def _idle(self, _: _Peer, call: remote.Idle) -> None:
        await self._frontier.idle(Grant(wait=call.wait, news=call.news))

    async def _ask(self, _: _Peer, call: remote.Ask) -> Any:
        if call.what == "counts":
            return await self._frontier.counts()
        if call.what == "sites":
            return await self._frontier.sites(int(call.text or 100))
        if call.what == "every_site":
            limit, cursor = call.text.split(" ", 1)
            return await self._frontier.every_site(cursor, int(limit))
        if call.what == "lanes":
            return self._frontier.lanes()
        if call.what == "workers":
            return self.workers
        if call.what == "lookup":
            found = await self._frontier.lookup(call.text, urls.key_of)
            # The key under which earlier versions stored it.
            return found or await self._frontier.lookup(call.text)
        if call.what == "site":
            return await self._frontier.site(call.text)
        if call.what in _STEERING:
            return await self._frontier.steer(_STEERING[call.what])  # type: ignore[arg-type]
        raise ConfigError(f"unknown command {call.what!r} means")

    async def _limit(self, _: _Peer, call: remote.Limit) -> None:
        changed = set(call.settings) - LIMITS
        if changed:
            raise ConfigError(f"{', '.join(sorted(changed))}: not changed while a crawl runs")
        self._settings = configuration.build({**configuration.dump(self._settings), **call.settings})
        await self._frontier.limit(self._settings)
        self._limited(self._settings)

    _handlers: ClassVar[dict[type[Any], Callable[[Coordinator, _Peer, Any], Awaitable[Any]]]] = {
        remote.Hello: _hello,
        remote.Add: _add,
        remote.AddUrls: _add_urls,
        remote.Take: _take,
        remote.Extend: _extend,
        remote.Commit: _commit,
        remote.Release: _release,
        remote.Idle: _idle,
        remote.Ask: _ask,
        remote.Limit: _limit,
    }


class _Peer:
    """One client of the socket."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.worker = ""


def _bare_lease(token: int) -> Lease:
    """Build a lease from its token, which is all that the owner needs."""
    return Lease(site="", lane=0, token=token, requests=(), ttl=0.0, delay=0.0)
