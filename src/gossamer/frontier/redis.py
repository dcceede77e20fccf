"""A frontier in Redis or Valkey: a script keeps each call atomic, and the store's clock rules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from importlib import resources
from typing import Any

import msgspec

from gossamer.errors import JobMissing
from gossamer.frontier import policy
from gossamer.frontier.entries import as_text, as_texts, pack, unpack
from gossamer.frontier.redis_job import check_server, client, connect, create, explain, faults, job_key, read, translate
from gossamer.model import Counts, Grant, JobState, Lease, Outcome, Receipt, Request, SiteNote
from gossamer.settings import Settings

_LONGEST_SLEEP_SECONDS = 15.0
_MOST_LINKS = 10_000
_ASK_FROM, _ASK_BELOW = 64, 0.6
log = logging.getLogger("gossamer.frontier")
_encode = msgspec.msgpack.Encoder().encode


def _script() -> str:
    return resources.files("gossamer.frontier").joinpath("lua/frontier.lua").read_text("utf-8")


class RedisFrontier:
    """The frontier of one job in one Redis; any number of these, in any number of processes, share it."""

    def __init__(self, connection: client.Redis, job: str, settings: Settings, *, secret: bytes, worker: str) -> None:
        self.secret = secret
        self.settings = settings
        self._redis = connection
        self._job = job
        self.worker = worker
        self._region = ""
        self._script = _script()
        self._digest = sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._key = job_key(job)
        self._ranks: dict[tuple[int, int, int], str] = {}
        self._own = {site: _own(settings, site) for site in settings.sites}
        self._listener: client.client.PubSub | None = None
        self._novelty = 1.0
        self._pages: dict[int, dict[int, str]] = {}
        """Token -> key -> URL of what is leased here: the links found there name it."""

    async def add(self, requests: Sequence[Request]) -> int:
        added = 0
        for first in range(0, len(requests), _MOST_LINKS):
            some = requests[first : first + _MOST_LINKS]
            load = _Load(await self._unknown(some))
            runs = self._put(some, load)
            found = await self._call("add", load.entries, runs=runs, names=list(load.names), own=self._sites(load))
            added += int(found)
            self._learn(int(found), len(some))
        return added

    async def _unknown(self, requests: Sequence[Request]) -> set[int] | None:
        """The keys of those that may be new; None, which is all, while most are new and asking would not pay."""
        if len(requests) < _ASK_FROM or self._novelty > _ASK_BELOW:
            return None
        keys = [request.key for request in requests]
        unknown = await self._call("unknown", keys=list(map(str, keys)), digits=[key % 1_000_000_000 for key in keys])
        return {keys[place - 1] for place in unknown}

    def _learn(self, new: int, sent: int) -> None:
        """Remember what share of the links was new of late."""
        if sent:
            weight = min(0.5, sent / _MOST_LINKS)
            self._novelty += (new / sent - self._novelty) * weight

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        found = await self._call(
            "lease",
            limit=limit,
            batch=batch,
            seconds=seconds,
            worker=self.worker,
            region=self._region,
            **self._limit(),
        )
        granted, wait, state, news = found
        leases = [await self._lease(lease, seconds) for lease in granted]
        for lease in leases:
            self._pages[lease.token] = {request.key: request.url for request in lease.requests}
        return Grant(
            leases=tuple(lease for lease in leases if lease.requests),
            wait=float(wait) if wait else None,
            job=_text(state),
            news=int(news),
        )

    async def _lease(self, found: list[Any], seconds: float) -> Lease:
        site, lane, token, entries, delay, lanes, robots, memo, suspect = found
        name = _text(site)
        requests, unreadable = [], []
        for entry in entries:
            try:
                requests.append(unpack(entry, name))
            except ValueError as error:
                log.error("a request of %s cannot be read and is parked: %s: %.200r", name, error, entry)
                unreadable.append(as_text(entry[:8]))
        if unreadable:
            await self._call("park", token=_text(token), keys=unreadable)
        return Lease(
            site=name,
            lane=int(lane),
            token=int(token),
            requests=tuple(requests),
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
        for lease in leases:
            if lease.token not in ours:
                self._pages.pop(lease.token, None)
        return [msgspec.structs.replace(lease, ttl=seconds) for lease in leases if lease.token in ours]

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        accepted = stale = repeated = 0
        for some in _parts(outcomes):
            links = [link for outcome in some for link in outcome.links]
            load = _Load(await self._unknown(links))
            packed = [self._outcome(outcome, load) for outcome in some]
            found = await self._call(
                "complete",
                load.entries,
                outcomes=packed,
                notes=[_note(note) for note in notes],
                names=list(load.names),
                own=self._sites(load),
            )
            accepted, stale, repeated = accepted + int(found[0]), stale + int(found[1]), repeated + int(found[2])
            self._learn(int(found[3]), len(links))
            notes = ()
            for outcome in some:
                pages = self._pages.get(outcome.token, {})
                pages.pop(outcome.key, None)
                if not pages:
                    self._pages.pop(outcome.token, None)
        return Receipt(accepted=accepted, stale=stale, repeated=repeated)

    def _outcome(self, outcome: Outcome, load: _Load) -> list[Any]:
        comes_again = outcome.again_in is not None or outcome.status == "retry"
        page = self._pages.get(outcome.token, {}).get(outcome.key, "")
        return [
            str(outcome.token),
            as_text(outcome.key.to_bytes(8, "big")),
            outcome.status,
            str(outcome.again_in or 0.0) if comes_again else "",
            self._put(outcome.links, load, page) if outcome.links else (),
            "" if outcome.state is None else msgspec.json.encode(outcome.state).decode(),
            load.number(outcome.site),
            outcome.lane,
        ]

    def _put(self, requests: Sequence[Request], load: _Load, referrer: str = "") -> list[Any]:
        """Load requests; the runs of them that have one site and one rank, as site, rank and length."""
        runs: list[Any] = []
        ranks, entries, unknown = self._ranks, load.entries, load.unknown
        last_site = last_rank = None
        for request in requests:
            if unknown is not None and request.key not in unknown:
                continue
            standing = (request.priority, request.depth, request.hops)
            rank = ranks.get(standing)
            if rank is None:
                rank = self._rank(standing)
            if request.site == last_site and rank == last_rank:
                runs[-1] += 1
            else:
                last_site, last_rank = request.site, rank
                runs += (load.number(last_site), rank, 1)
            entries.append(b"%d" % request.key)
            entries.append(pack(request, referrer))
        return runs

    def _rank(self, standing: tuple[int, int, int]) -> str:
        priority, depth, hops = standing
        rank = policy.rank(self.settings.strategy, priority=priority, depth=depth, hops=hops)
        if len(self._ranks) > 10_000:
            self._ranks.clear()
        text = self._ranks[standing] = "" if rank == policy.HEAD else str(rank)
        return text

    def _sites(self, load: _Load) -> dict[str, dict[str, float]]:
        """What the sites among these that have settings of their own begin with."""
        return {site: own for site, own in self._own.items() if site in load.names} if self._own else {}

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
            await self._stop_listening()
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

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.aclose()  # type: ignore[no-untyped-call]

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
        await self._stop_listening()
        await self._redis.aclose()

    async def _call(self, operation: str, entries: Sequence[bytes] = (), /, **given: Any) -> Any:
        arguments: list[Any] = [self._key, operation, _encode(given)]
        if entries:
            arguments.append(as_texts(entries))
        try:
            try:
                return await self._redis.evalsha(self._digest, 1, *arguments)
            except faults.NoScriptError:
                # Only a server that was started anew has not got it: nobody may lease before the job knows of that.
                await self._redis.eval(self._script, 1, self._key, "restart", _encode({}))
                return await self._redis.evalsha(self._digest, 1, *arguments)
        except faults.RedisError as error:
            raise await explain(error, self._redis, self._job) from error


class _Load:
    """The links of one call, as they travel, and the sites that are spoken of."""

    def __init__(self, unknown: set[int] | None) -> None:
        self.unknown = unknown
        self.names: dict[str, int] = {}
        self.entries: list[bytes] = []

    def number(self, site: str) -> int:
        return self.names.setdefault(site, len(self.names) + 1)


def _parts(outcomes: Sequence[Outcome]) -> Iterator[Sequence[Outcome]]:
    """Outcomes in parts that Redis need not work on for long; at least one."""
    first = links = 0
    for index, outcome in enumerate(outcomes):
        links += len(outcome.links)
        if links > _MOST_LINKS:
            yield outcomes[first : index + 1]
            first, links = index + 1, 0
    if first < len(outcomes) or not outcomes:
        yield outcomes[first:]


async def open_redis(url: str, job: str, settings: Settings | None = None, *, worker: str = "") -> RedisFrontier:
    """Join a job in Redis; with settings, make it if it is not there."""
    connection = connect(url)
    try:
        await check_server(connection)
        if settings is not None:
            await create(connection, job, settings)
        record = await connection.hgetall(job_key(job))
        if not record:
            raise JobMissing(
                f"there is no job {job!r} in this Redis", hint="start it with: gossamer crawl --frontier ... --job NAME"
            )
        kept, secret = read(record, job)
        return RedisFrontier(connection, job, settings or kept, secret=secret, worker=worker)
    except faults.RedisError as error:
        await connection.aclose()
        raise translate(error, job) from error
    except BaseException:
        await connection.aclose()
        raise


def _own(settings: Settings, site: str) -> dict[str, float]:
    """What the settings say of one site alone."""
    own = settings.for_site(site)
    found = {"delay": own.delay, "lanes": own.lanes, "budget": own.budget}
    return {name: value for name, value in found.items() if value is not None}


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
