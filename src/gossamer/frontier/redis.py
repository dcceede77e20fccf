"""A frontier in Redis or Valkey: a script keeps each call atomic, and the store's clock rules."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any
from urllib.parse import quote

import msgspec

from gossamer import settings as configuration
from gossamer.errors import ConfigError, FrontierError, JobMissing, SchemaMismatch, Unavailable
from gossamer.frontier import policy
from gossamer.frontier.entries import as_text, pack, unpack
from gossamer.model import Counts, Grant, JobState, Lease, Outcome, Receipt, Request, SiteNote
from gossamer.settings import Settings

try:
    from redis import asyncio as client
    from redis import exceptions as faults
except ImportError as missing:
    raise ConfigError("the redis frontier needs the redis package", hint="pip install 'gossamer[redis]'") from missing

FORMAT = 1
_LONGEST_SLEEP_SECONDS = 15.0
_PASSING = ("LOADING", "BUSY", "READONLY", "MISCONF", "OOM", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS")
_encode = msgspec.msgpack.Encoder().encode


def _script() -> str:
    return resources.files("gossamer.frontier").joinpath("lua/frontier.lua").read_text("utf-8")


class RedisFrontier:
    """The frontier of one job in one Redis; any number of these, in any number of processes, share it."""

    def __init__(self, connection: client.Redis, job: str, settings: Settings, *, secret: bytes, worker: str) -> None:
        self.secret = secret
        self._redis = connection
        self._job = job
        self._worker = worker
        self._region = ""
        self.settings = settings
        self._run = connection.register_script(_script())
        self._key = job_key(job)
        self._listener: client.client.PubSub | None = None
        self._pages: dict[int, dict[int, str]] = {}
        """Token -> key -> URL of what is leased here: the links found there name it."""

    async def add(self, requests: Sequence[Request]) -> int:
        if not requests:
            return 0
        return int(
            await self._call("add", links=[self._link(request) for request in requests], sites=self._sites(requests))
        )

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        found = await self._call(
            "lease",
            limit=limit,
            batch=batch,
            seconds=seconds,
            worker=self._worker,
            region=self._region,
            **self._limit(),
        )
        granted, wait, state, news = found
        leases = tuple(self._lease(lease, seconds) for lease in granted)
        for lease in leases:
            self._pages[lease.token] = {request.key: request.url for request in lease.requests}
        return Grant(
            leases=leases,
            wait=float(wait) if wait else None,
            job=_text(state),
            news=int(news),
        )

    def _lease(self, found: list[Any], seconds: float) -> Lease:
        site, lane, token, entries, delay, lanes, robots, memo, suspect = found
        name = _text(site)
        return Lease(
            site=name,
            lane=int(lane),
            token=int(token),
            requests=tuple(unpack(entry, name) for entry in entries),
            ttl=seconds,
            delay=float(delay),
            lanes=int(lanes),
            robots={_text(robots[i]): _bytes(robots[i + 1]) for i in range(0, len(robots), 2)},
            memo={_text(memo[i]): msgspec.json.decode(memo[i + 1]) for i in range(0, len(memo), 2)},
            suspect=bool(suspect),
        )

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        if not leases:
            return []
        ours = {
            int(token)
            for token in await self._call("extend", tokens=[str(lease.token) for lease in leases], seconds=seconds)
        }
        return [msgspec.structs.replace(lease, ttl=seconds) for lease in leases if lease.token in ours]

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        linked = [link for outcome in outcomes for link in outcome.links]
        packed = [self._outcome(outcome) for outcome in outcomes]
        accepted, stale, repeated, _, _ = await self._call(
            "complete",
            outcomes=packed,
            notes=[_note(note) for note in notes],
            sites=self._sites(linked),
        )
        for outcome in outcomes:
            pages = self._pages.get(outcome.token, {})
            pages.pop(outcome.key, None)
            if not pages:
                self._pages.pop(outcome.token, None)
        return Receipt(accepted=int(accepted), stale=int(stale), repeated=int(repeated))

    def _outcome(self, outcome: Outcome) -> list[Any]:
        comes_again = outcome.again_in is not None or outcome.status == "retry"
        page = self._pages.get(outcome.token, {}).get(outcome.key, "")
        return [
            str(outcome.token),
            as_text(outcome.key.to_bytes(8, "big")),
            outcome.status,
            str(outcome.again_in or 0.0) if comes_again else "",
            [self._link(link, page) for link in outcome.links],
            as_text(b"" if outcome.state is None else msgspec.json.encode(outcome.state)),
            outcome.site,
            str(outcome.lane),
        ]

    def _link(self, request: Request, referrer: str = "") -> list[Any]:
        rank = policy.rank(self.settings.strategy, priority=request.priority, depth=request.depth, hops=request.hops)
        return [
            request.key & 0xFFFFFF,
            str(request.key),
            request.site,
            "" if rank == policy.HEAD else str(rank),
            as_text(pack(request, referrer)),
        ]

    def _sites(self, requests: Sequence[Request]) -> dict[str, list[Any]]:
        """What a site begins with, should one of these requests be its first."""
        found: dict[str, list[Any]] = {}
        for request in requests:
            if request.site not in found:
                own = self.settings.for_site(request.site)
                delay = own.delay if own.delay != self.settings.delay else False
                found[request.site] = [delay, own.lanes, own.budget or False, "", not self.settings.robots]
        return found

    async def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._pages.pop(lease.token, None)
        if leases:
            await self._call("release", tokens=[str(lease.token) for lease in leases])

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back at once what a dead worker held; `blamed` are the keys that it was handling. How many leases."""
        return int(
            await self._call("abandon", worker=worker, blamed=[as_text(key.to_bytes(8, "big")) for key in blamed])
        )

    async def idle(self, grant: Grant) -> None:
        wait = _LONGEST_SLEEP_SECONDS if grant.wait is None else min(grant.wait, _LONGEST_SLEEP_SECONDS)
        try:
            async with asyncio.timeout(wait):
                await self._news_after(grant.news)
        except TimeoutError:
            pass
        except faults.RedisError:
            # Whoever asks next will hear what is wrong.
            self._listener = None
            await asyncio.sleep(min(wait, 1.0))

    async def _news_after(self, seen: int) -> None:
        """Return once something has happened since `seen`."""
        if self._listener is None:
            self._listener = self._redis.pubsub(ignore_subscribe_messages=True)
            await self._listener.subscribe(f"{self._key[:-3]}news")
        # What happened before the subscription has to be asked for.
        if int(await self._redis.hget(self._key, "news") or 0) > seen:
            return
        while True:
            message = await self._listener.get_message(timeout=_LONGEST_SLEEP_SECONDS)
            if message is not None and int(message["data"]) > seen:
                return

    async def counts(self) -> Counts:
        state, over, totals, ready, active, held = await self._call("counts", region=self._region, **self._limit())
        counts = {_text(totals[i]): int(totals[i + 1]) for i in range(0, len(totals), 2)}
        counts["delayed"] -= counts["revisits"]
        sites = {"ready_sites": ready, "active_sites": active, "held_sites": held}
        return Counts(**counts, **sites, job=_text(state), finished=bool(over))

    def _limit(self) -> dict[str, int]:
        return {} if self.settings.max_pages is None else {"max_pages": self.settings.max_pages}

    async def steer(self, job: JobState) -> None:
        """Pause, resume or stop the job."""
        await self._call("steer", state=job)

    async def aclose(self) -> None:
        if self._listener is not None:
            await self._listener.aclose()  # type: ignore[no-untyped-call]
        await self._redis.aclose()

    async def _call(self, operation: str, **given: Any) -> Any:
        try:
            return await self._run(keys=[self._key], args=[operation, _encode(given)])
        except faults.RedisError as error:
            raise translate(error, self._job) from error


def job_key(job: str) -> str:
    """The key of a job's record; its hash tag keeps all keys of the job in one slot."""
    # Quoted, so that no name can hold a brace, a colon or a line end.
    return f"gossamer:{{{quote(job, safe='')}}}:job"


async def open_redis(url: str, job: str, settings: Settings | None = None, *, worker: str = "") -> RedisFrontier:
    """Join a job in Redis; with settings, make it if it is not there."""
    connection = client.Redis.from_url(url, socket_timeout=10.0, socket_connect_timeout=5.0, health_check_interval=15)
    try:
        if settings is not None:
            await _create(connection, job, settings)
        record = await connection.hgetall(job_key(job))
    except faults.RedisError as error:
        await connection.aclose()
        raise translate(error, job) from error
    if not record:
        await connection.aclose()
        raise JobMissing(
            f"there is no job {job!r} in this Redis", hint="start it with: gossamer crawl --frontier ... --job NAME"
        )
    if int(record[b"format"]) != FORMAT:
        await connection.aclose()
        raise SchemaMismatch(
            f"job {job!r} was written by another version of Gossamer", hint="use the version that made it"
        )
    kept = settings or configuration.build(msgspec.json.decode(record[b"settings"]))
    return RedisFrontier(connection, job, kept, secret=_bytes(record[b"secret"]), worker=worker)


async def _create(connection: client.Redis, job: str, settings: Settings) -> None:
    key = job_key(job)
    values: dict[Any, Any] = {
        "settings": msgspec.json.encode(configuration.dump(settings)),
        "strategy": settings.strategy,
        "delay": settings.delay,
        "robots": int(settings.robots),
        "max_deliveries": settings.max_deliveries,
    }
    if await connection.hsetnx(key, "format", FORMAT):
        values |= {"secret": secrets.token_bytes(16), "state": "running", "seen_level": 4}
    elif await connection.hget(key, "state") == b"stopping":
        values["state"] = "running"
    await connection.hset(key, mapping=values)


def translate(error: Exception, job: str) -> FrontierError:
    """What a driver's error means; the address, which may hold a password, is never in it."""
    text = str(error)
    if "JOBMISSING" in text:
        return JobMissing(
            f"job {job!r} is not in Redis any more", hint="was Redis emptied, or restarted without its data?"
        )
    if isinstance(error, faults.AuthenticationError | faults.NoPermissionError) or text.startswith(
        ("NOAUTH", "WRONGPASS", "NOPERM")
    ):
        return FrontierError("Redis refused the user or the password", hint="check the frontier's address")
    if isinstance(error, faults.ConnectionError | faults.TimeoutError | OSError) or text.startswith(_PASSING):
        return Unavailable(f"Redis: {text.splitlines()[0] if text else type(error).__name__}")
    return FrontierError(f"Redis: {text.splitlines()[0] if text else type(error).__name__}")


def _note(note: SiteNote) -> list[Any]:
    robots = [part for origin, rules in (note.robots or {}).items() for part in (origin, as_text(rules))]
    memo = [part for name, value in (note.memo or {}).items() for part in (name, as_text(msgspec.json.encode(value)))]
    return [
        str(note.token),
        "" if note.hold is None else str(note.hold),
        "" if note.delay is None else str(note.delay),
        robots,
        memo,
        note.close or "",
    ]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _bytes(value: Any) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
