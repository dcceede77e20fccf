"""The frontier of one shard in Redis: each call is one atomic script.

This module is the client side. It packs arguments, calls a script of `lua/`, and unpacks the answer; it decides nothing
about lanes, tokens, or keys. `lua/record.lua` lists the keys of a shard, `lua/lease.lua` and `lua/complete.lua` hold
the rules.

What keeps the promises:

- Redis runs one script at a time and never interrupts it, so a call is atomic (P3), and two workers cannot take the
  same lane or the same key (P1, P2).
- All keys of a shard share one hash tag. They are on one server, or in one slot of a cluster, and a server that forgets
  its last seconds forgets a page together with those of its links that belong to the shard.
- Time is the server's. A worker sends durations only, so workers with wrong clocks cannot break the delay (P5).
- A call may be sent twice. `connection` repeats a call whose connection broke, without knowing whether the script has
  run: a repeated `add` finds known keys, a repeated `complete` counts as repeated, and a repeated `lease` takes other
  lanes while the first ones expire. Only calls that add pages to a part of the page limit, or to what is left of it,
  are never repeated (`_move_pages`).

What a failure does:

| what fails | when | what follows |
|---|---|---|
| the worker | while it holds leases | each lane comes up again when its lease and one delay have passed (P9) |
| the connection | after `lease` ran | nobody knows the token; the lease expires like that of a dead worker |
| the connection | after `complete` ran | the repeat changes nothing, because the keys have left the batch (P3, P4) |
| the worker | between two parts of a large `complete` | the first part stands, the other pages are fetched again |
| the worker | after `complete`, before it packs queues | the queues stay as they are; a later call asks again |
| the server | it restarts without its last second | its run changes, and lanes rest until forgotten leases end (P5) |

Three jobs need more than one script, because Lua cannot compress or parse: packing long queues into blocks
(`queue_blocks`), bringing revisits forward (`hasten`), and leasing from a site whose next requests are in a block. In
each the client reads, computes, and sends the result back; the second script applies it only if what was read is still
in place, so a worker that dies in between leaves the queue unchanged."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import msgspec

from gossamer import urls
from gossamer.errors import FrontierError
from gossamer.frontier import policy, recrawl
from gossamer.frontier.base import ShardGrant
from gossamer.frontier.outbox import MOST_STEP_SECONDS, SEVERAL_RUNS, Box, Parcel
from gossamer.frontier.packing import as_text, as_texts, pack, pack_state, revisit_of, shorten_url, state_of, with_state
from gossamer.frontier.policy import MOST_LINKS, outcome_batches
from gossamer.frontier.recrawl import share_of
from gossamer.frontier.redis.connection import RedisConnection, RedisConnections
from gossamer.frontier.redis.encoding import PackedLinks, first_values, key_arguments, packed_note, read_lease, text
from gossamer.frontier.redis.lookup import every_site, inspect, lookup, sites
from gossamer.frontier.redis.queue_blocks import BLOCK_MARK, block_id, fold, fold_lists, unfold, unfold_blocks
from gossamer.frontier.redis.repair import RedisRepair
from gossamer.frontier.redis.routing import call_shard
from gossamer.frontier.redis.server import faults, job_key, read_root, root_key, translate
from gossamer.model import (
    Counts,
    Grant,
    Heartbeat,
    JobState,
    Lease,
    Outcome,
    Receipt,
    RegionView,
    Request,
    ShardView,
    SiteNote,
)
from gossamer.settings import Settings

log = logging.getLogger("gossamer.frontier")
Call = Callable[..., Awaitable[Any]]


async def hasten(call: Call, requests: Sequence[Request], settings: Settings, secret: bytes) -> None:
    """Bring the visits of pages forward that a sitemap reports as changed.

    Never raises a `FrontierError`: without this call, each page is visited at the time that was planned."""
    hints: dict[str, dict[int, float]] = {}
    for request in requests if settings.recrawl else ():
        if (hint := recrawl.hint_of(request)) is not None:
            hints.setdefault(request.site, {})[request.key] = hint
    try:
        for site, wanted in hints.items():
            await _Site(call, site, settings, secret, wanted).hasten()
    except FrontierError as error:
        log.debug("could not bring revisits forward: %s", error)


class _Site:
    """Moves the planned visits of one site whose pages were reported as changed."""

    def __init__(self, call: Call, site: str, settings: Settings, secret: bytes, hints: Mapping[int, float]) -> None:
        self._call, self._site, self._settings, self._secret, self._hints = call, site, settings, secret, hints
        self._now = 0.0

    async def hasten(self) -> None:
        """Search everything that waits for its time on this site, and send the moves.

        The reads and the moves are separate scripts. Each move names the element that it was computed from, and the
        script skips a move whose element has changed since."""
        now, slots, entries = await self._call("waiting", site=self._site)
        self._now = float(now)
        await self._move([move for entry, due in entries if (move := self._of_element("", 0, entry, float(due)))])
        for name, due in slots:
            rank = text(name)
            elements = await self._call("slot", site=self._site, rank=rank)
            found = (self._of_element(rank, at, element, float(due)) for at, element in enumerate(elements))
            moves = [move for move in found if move is not None]
            # Last first: a move may remove its element, which shifts the positions of those behind it.
            await self._move(moves[::-1])

    async def _move(self, moves: list[dict[str, Any]]) -> None:
        if moves:
            await self._call("hasten", site=self._site, moves=moves)

    def _of_element(self, rank: str, at: int, element: bytes, due: float) -> dict[str, Any] | None:
        """The move that takes the matching entries out of one element (an entry or a block); None if none matches."""
        try:
            inside = unfold(element, self._site, self._secret)
        except ValueError:
            # Unreadable: `unfold_blocks` parks it when its turn comes.
            return None
        stays, goes, waits = [], [], []
        for entry in inside:
            hint = self._hints.get(int.from_bytes(entry[:8], "big"))
            # Every entry of a slot waits for a revisit; elsewhere the entry itself says so, and a retry stays.
            wait = None if hint is None or not (rank or revisit_of(entry)) else self._wait(entry, hint)
            if wait is None or hint is None or self._now + wait >= due:
                stays.append(entry)
            else:
                goes.append(with_state(entry, {**(state_of(entry) or {}), "hint": hint}))
                waits.append(str(wait))
        if not goes:
            return None
        is_block = element.startswith(BLOCK_MARK)
        left = fold(stays, self._site, self._secret) if is_block and stays else b""
        return {
            "rank": rank,
            "at": at,
            "old": as_text(block_id(element) if is_block else element),
            "new": as_text(left),
            "entries": msgspec.Raw(as_texts(goes)),
            "waits": waits,
        }

    def _wait(self, entry: bytes, hint: float) -> float | None:
        try:
            visited = recrawl.read(state_of(entry))
        except ValueError:
            return None
        # A visit that was brought forward once stays where it is.
        return None if visited.hint else recrawl.hastened(visited, hint, self._settings, now=self._now)


_LONGEST_SLEEP_SECONDS = 15.0
_FIRST_RANDOM_SECONDS = 0.02
_ASK_FROM, _ASK_BELOW = 64, 0.6
_MOST_REMEMBERED = 10_000
_MOST_UNFOLDED = 64
_MOST_DELAYS = 500


class RedisFrontier(RedisRepair):
    """One shard of a job in Redis. Any number of instances, in any number of processes, share it (P8).

    An instance keeps no state that the job depends on: the URLs of leased pages, for links that name their page, the
    ranks of standings, and an estimate of how many links are new. All of it may be lost with the process."""

    def __init__(
        self,
        links: RedisConnections,
        server: str,
        job: str,
        settings: Settings,
        *,
        secret: bytes,
        worker: str = "",
        region: str = "",
        shard: int = 0,
        alone: bool = True,
    ) -> None:
        self.secret = secret
        self.settings = settings
        self.worker = worker
        self.region = region
        self.shard = shard
        self._alone = alone
        self._links = links
        self._server = server
        self._job = job
        self._key = job_key(job, shard)
        self._ranks: dict[tuple[int, int, int], str] = {}
        self._first: dict[str, dict[str, Any]] = {}
        self._said = b""
        """The settings text that `refresh` read last, so that an unchanged record is not parsed again."""
        self._novelty = 1.0
        self._in_vain = 0
        self._pages: dict[int, dict[int, str]] = {}
        """Token -> key -> URL of each leased page. A link stores the page that it was found on in short form."""

    @property
    def server(self) -> str:
        """The name of the server that has the shard; in a cluster, the name of the node."""
        return self._links.name_of(self._server, self._key)

    async def run(self) -> str:
        """The run of that server: the text changes once the server may have forgotten something."""
        return str(text(await self._call("run")))

    async def add(self, requests: Sequence[Request]) -> int:
        added, _ = await self.deliver(requests)
        return added

    async def deliver(self, requests: Sequence[Request]) -> tuple[int, str]:
        """Queue requests with unknown keys; how many were new, and the run of the server that acknowledged them.

        The caller files links for another server under that run, and delivers them again when the run has changed."""
        added, runs = 0, set()
        for first in range(0, len(requests), MOST_LINKS):
            some = requests[first : first + MOST_LINKS]
            load = PackedLinks(await self._unknown(some))
            links = self._put(some, load)
            new, to_fold, run = await self._call(
                "add", load.entries, links=links, **load.arguments(), own=self._sites(load)
            )
            added += int(new)
            runs.add(text(run))
            self._learn(int(new), len(some))
            await fold_lists(self._call, to_fold, self.secret)
            await hasten(self._call, some, self.settings, self.secret)
        # The server restarted in between and may have forgotten the first part. `SEVERAL_RUNS` is never the present
        # run, so the outbox delivers all of them again.
        return added, runs.pop() if len(runs) == 1 else SEVERAL_RUNS

    async def _unknown(self, requests: Sequence[Request]) -> set[int] | None:
        """The keys among these that may be new, or None for all of them.

        Asking first costs a round trip and saves sending known links. It pays once most links are known: the script
        checks every key again, so a key that somebody adds in between is not queued twice (P1)."""
        if len(requests) < _ASK_FROM or self._novelty > _ASK_BELOW:
            return None
        keys = [request.key for request in requests]
        unknown = await self._call("unknown", **key_arguments(keys))
        return {keys[place - 1] for place in unknown}

    def _learn(self, new: int, sent: int) -> None:
        """Update the moving average of the share of links that were new."""
        if sent:
            weight = min(0.5, sent / MOST_LINKS)
            self._novelty += (new / sent - self._novelty) * weight

    async def lease(self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset()) -> Grant:
        return (await self.lease_shard(limit, batch=batch, seconds=seconds, also=also)).grant

    async def lease_shard(
        self,
        limit: int,
        *,
        batch: int,
        seconds: float,
        also: frozenset[str] = frozenset(),
        suspects: bool = True,
        over_quota: bool = True,
        handed_elsewhere: int = 0,
    ) -> ShardGrant:
        """Lease from this shard, and report what the shard saw: see `Shard.lease_shard`.

        The script grants what lies loose at the head of each queue and names the blocks that come next. The client
        unpacks them before it returns, so the next call finds whole batches. When the script granted nothing because
        everything due is in blocks, the client asks again at once.

        The lease is valid from the moment the script ran. An error while unpacking must not hide it from the caller:
        the pages would wait for the whole lease time."""
        for _ in range(_MOST_UNFOLDED):
            granted, wait, state, news, to_unfold, lost, handed_out, passed_over, run, outbox = await self._call(
                "lease",
                limit=limit,
                batch=batch,
                seconds=seconds,
                forget=self.settings.forget_seconds,
                worker=self.worker,
                regions=list({self.region, ""} | also),
                suspects=suspects,
                over_quota=over_quota,
                handed_elsewhere=handed_elsewhere,
                **self._limit(),
            )
            try:
                if to_unfold:
                    await unfold_blocks(self._call, to_unfold, self.secret)
            except FrontierError:
                # Leases were granted: return them. The next call meets the same error if it lasts.
                if not granted:
                    raise
            if granted or not to_unfold:
                break
        leases = []
        for found in granted:
            lease, unreadable = read_lease(found, seconds)
            # Parked now, while the lease is ours: left in the batch they would come back with each expired lease.
            if unreadable:
                await self._call("park", token=str(lease.token), keys=unreadable)
            if lease.requests:
                leases.append(lease)
                self._pages[lease.token] = {request.key: request.url for request in lease.requests}
        self._in_vain = 0 if leases else self._in_vain + 1
        grant = Grant(
            leases=tuple(leases),
            wait=float(wait) if wait else None,
            job=text(state),
            news=int(news),
            run=crc32(run),
            outbox=int(outbox),
        )
        return ShardGrant(grant, int(lost), int(passed_over), int(handed_out))

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
        self,
        outcomes: Sequence[Outcome],
        *,
        notes: Sequence[SiteNote] = (),
        marks: Mapping[str, int] | None = None,
        parcels: Sequence[Parcel] = (),
        run: str = "",
    ) -> Receipt:
        """Commit outcomes and their links, with notes and parcels. `run` guards links that other shards hold.

        Many outcomes travel as several scripts, split between outcomes: an outcome and its links are always in one
        script (P3). Notes and parcels go with the first part. A crash after it leaves parcels of pages that are not
        completed; they deliver links twice, which is harmless, while the other order could lose some.

        `run` is the run of this server in which it took links of these pages for its other shards. The script refuses
        the call if the server has restarted since: the links may be gone, and must be delivered again first.

        Packing queues and bringing visits forward come last, after the outcomes are committed; neither can undo
        them."""
        accepted = stale = repeated = outbox = life = 0
        to_fold: list[Any] = []
        for some in outcome_batches(outcomes):
            links = [link for outcome in some for link in outcome.links]
            load = PackedLinks(await self._unknown(links))
            packed = [self._outcome(outcome, load) for outcome in some]
            found = await self._call(
                "complete",
                load.entries,
                outcomes=packed,
                notes=[packed_note(note) for note in notes],
                **({"parcels": _packed(parcels)} if parcels else {}),
                **({"run": run} if run else {}),
                **load.arguments(),
                own=self._sites(load),
            )
            accepted, stale, repeated = accepted + int(found[0]), stale + int(found[1]), repeated + int(found[2])
            self._learn(int(found[3]), len(links))
            to_fold += found[4]
            life, outbox = crc32(found[5]), int(found[6])
            # The first part carried them.
            notes, parcels = (), ()
            for outcome in some:
                pages = self._pages.get(outcome.token, {})
                pages.pop(outcome.key, None)
                if not pages:
                    self._pages.pop(outcome.token, None)
        await fold_lists(self._call, to_fold, self.secret)
        await hasten(self._call, [link for one in outcomes for link in one.links], self.settings, self.secret)
        return Receipt(accepted=accepted, stale=stale, repeated=repeated, run=life, outbox=outbox)

    async def sweep(self, runs: Mapping[str, str], *, seconds: float) -> list[Box]:
        """Age the boxes of the runs given here, drop parcels that are durable at their server, and return the rest.

        `runs` maps each server to its present run; a box of another run does not age, and must be delivered again."""
        found = await self._call("sweep", runs=runs, seconds=seconds, step=MOST_STEP_SECONDS)
        return [Box(text(server), text(run), int(first), int(size)) for server, run, first, size in found]

    async def parcels(self, box: Box, limit: int) -> list[bytes]:
        """The links of up to `limit` parcels of a box, oldest first; none if its oldest parcel is another by now."""
        found: list[bytes] = await self._call("parcels", box=f"{box.run} {box.server}", first=box.first, limit=limit)
        return found

    async def replace(self, box: Box, count: int, parcels: Sequence[Parcel]) -> None:
        """Remove the first `count` parcels of a box and file new ones, in one script.

        Changes nothing if another worker has removed parcels of the box since `sweep`: it delivered them already."""
        await self._call(
            "replace", box=f"{box.run} {box.server}", first=box.first, count=count, parcels=_packed(parcels)
        )

    def _outcome(self, outcome: Outcome, load: PackedLinks) -> list[Any]:
        comes_again = outcome.again_in is not None or outcome.status == "retry"
        page = self._pages.get(outcome.token, {}).get(outcome.key, "")
        return [
            str(outcome.token),
            as_text(outcome.key.to_bytes(8, "big")),
            outcome.status,
            str(outcome.again_in or 0.0) if comes_again else "",
            self._put(outcome.links, load, page, outcome.site) if outcome.links else 0,
            as_text(pack_state(outcome.state)) if outcome.state is not None else "",
            load.number(outcome.site),
            outcome.lane,
        ]

    def _put(self, requests: Sequence[Request], load: PackedLinks, page: str = "", page_site: str = "") -> int:
        """Add requests found on this page to the load; how many were added.

        Links with the same site, priority, depth, and hops form one group, which the script pushes with one command."""
        from_inside, from_outside = (shorten_url(page, page_site), shorten_url(page, "")) if page else ("", "")
        unknown, standings, before = load.unknown, load.standings, len(load.keys)
        for request in requests:
            key, site = request.key, request.site
            if unknown is not None and key not in unknown:
                continue
            standing = (site, request.priority, request.depth, request.hops)
            group = standings.get(standing)
            if group is None:
                rank = self._ranks.get(standing[1:])
                if rank is None:
                    rank = self._rank(standing[1:])
                group = standings[standing] = load.groups.setdefault((site, rank), len(load.groups) + 1)
            load.keys.append(key)
            load.group_of.append(group)
            load.entries.append(pack(request, from_inside if site == page_site else from_outside))
        return len(load.keys) - before

    def _rank(self, standing: tuple[int, int, int]) -> str:
        priority, depth, hops = standing
        rank = policy.rank(self.settings.strategy, priority=priority, depth=depth, hops=hops)
        if len(self._ranks) > _MOST_REMEMBERED:
            self._ranks.clear()
        text = self._ranks[standing] = "" if rank == policy.HEAD else str(rank)
        return text

    def _sites(self, load: PackedLinks) -> dict[str, dict[str, Any]]:
        """The initial values of those sites among these that differ from the job's defaults."""
        settings, known = self.settings, self._first
        if not settings.sites and not settings.regions:
            return {}
        if len(known) > _MOST_REMEMBERED:
            known.clear()
        for site in load.names:
            if site not in known:
                known[site] = first_values(settings, site)
        return {site: known[site] for site in load.names if known[site]}

    async def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._pages.pop(lease.token, None)
        if leases:
            await self._call("release", tokens=[str(lease.token) for lease in leases])

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back at once what a dead worker held; how many leases that were.

        Only the `blamed` keys, those that the worker was handling, count as lost with it (P10). The rest of each batch
        returns to the head of its queue, and the lanes rest for one delay, since a request may have been sent (P5)."""
        return int(
            await self._call("abandon", worker=worker, blamed=[as_text(key.to_bytes(8, "big")) for key in blamed])
        )

    async def idle(self, grant: Grant) -> None:
        """Wait for news of the shard, at most until the grant says that something is due, and at most 15 s.

        A message may be lost with its connection; the time limit covers that."""
        wait = _LONGEST_SLEEP_SECONDS if grant.wait is None else min(grant.wait, _LONGEST_SLEEP_SECONDS)
        try:
            async with asyncio.timeout(wait):
                await (await self._links.link(self._server)).news_after(self._key, grant.news)
                # The links of one page wake many workers. They spread out, and those that found nothing wait longer.
                await asyncio.sleep(random.uniform(0, min(1.0, _FIRST_RANDOM_SECONDS * 2.0 ** min(self._in_vain, 10))))
        except TimeoutError:
            pass
        except faults.NoPermissionError as error:
            raise translate(error, self._job) from error
        except faults.RedisError:
            # The next lease reports the error if it lasts; here only avoid a busy loop.
            await asyncio.sleep(min(wait, 1.0))

    async def counts(self) -> Counts:
        return (await self.view()).counts

    async def view(self) -> ShardView:
        """The counts and the regions with their lanes, read by one script at one moment (P6)."""
        state, over, totals, regions, active, held, news, *fresh = await self._call("counts", **self._limit())
        counts = {text(totals[i]): int(totals[i + 1]) for i in range(0, len(totals), 2)}
        counts["delayed"] -= counts["revisits"]
        lanes = {
            text(name): RegionView(ready=ready, later=later, soon=soon, due_in=float(due_in) if due_in else None)
            for name, ready, later, soon, due_in in regions
        }
        ready = sum(view.ready for view in lanes.values())
        found = Counts(
            **counts,
            ready_sites=ready,
            active_sites=active,
            held_sites=held,
            job=text(state),
            finished=bool(over),
            changes=int(news),
            freshness=share_of(*fresh),
        )
        return ShardView(shard=self.shard, server=self._server, counts=found, regions=lanes)

    async def shards(self) -> list[ShardView]:
        return [await self.view()]

    def _limit(self) -> dict[str, int]:
        most = self.settings.max_pages if self._alone else None
        return {} if most is None else {"max_pages": most}

    async def refresh(self) -> None:
        key = root_key(self._job)
        try:
            link = await self._links.link(self._server)
            record = await (await link.at(key)).hgetall(key)
        except faults.RedisError as error:
            raise translate(error, self._job) from error
        if (found := record.get(b"settings")) is not None and found != self._said:
            self.apply(read_root(record, self._job).settings)
            self._said = found

    def apply(self, settings: Settings) -> None:
        """Use these settings from now on; only limits and delays may differ from those before."""
        self.settings = settings
        self._first.clear()

    async def give_delays(self, delays: Mapping[str, float]) -> None:
        """Set the delay of those sites among these that the shard knows; new sites start with theirs."""
        names = list(delays)
        for first in range(0, len(names), _MOST_DELAYS):
            await self._call("own", delays={name: delays[name] for name in names[first : first + _MOST_DELAYS]})

    async def set_limit(self, pages: int | None, *, reserved: int | None = None) -> int:
        """Set or remove (None) this shard's part of the page limit; how many pages that part is."""
        return int(await self._call("limit", pages=pages, reserved=reserved))

    async def reserve(self, pages: int, *, limit: int, only_full: bool = False) -> tuple[int, int]:
        """Take pages from the rest of the job's limit, or give them back; how many were moved, and what is left."""
        taken, left = await self._move_pages("reserve", pages < 0, pages=pages, limit=limit, only_full=only_full)
        return int(taken), int(left)

    async def allow(self, pages: int) -> tuple[int, int]:
        """Raise or lower this shard's part; only unused pages can be taken. How many were moved, and what is left."""
        moved, left = await self._move_pages("allow", pages > 0, pages=pages)
        return int(moved), int(left)

    async def _move_pages(self, operation: str, once: bool, **given: Any) -> Any:
        """Call `reserve` or `allow`, and `once` where a repeat would pass the page limit: see `Shard.reserve`."""
        self._server, answer = await call_shard(
            self._links, self._server, self._job, self.shard, operation, given, repeats=not once
        )
        return answer

    async def steer(self, job: JobState) -> None:
        await self._call("steer", state=job)

    async def beat(self, pulse: Heartbeat) -> None:
        await self._call("beat", worker=pulse.worker, pulse=msgspec.json.encode(pulse).decode())

    async def workers(self) -> list[Heartbeat]:
        found = await self._call("workers")
        pulses = [(msgspec.json.decode(pulse, type=Heartbeat), float(silent)) for pulse, silent in found]
        return [msgspec.structs.replace(pulse, silent=silent) for pulse, silent in pulses]

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        link = await self._found()
        return await sites(await link.at(self._key), self._key, limit)

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        link = await self._found()
        return await every_site(await link.at(self._key), self._key, cursor, limit)

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        link = await self._found()
        number = key_of(self.secret, url)
        return await lookup(await link.at(self._key), self._key, url, number, self.secret, self.settings)

    async def site(self, name: str) -> Mapping[str, Any] | None:
        link = await self._found()
        return await inspect(await link.at(self._key), self._key, name)

    async def _found(self) -> RedisConnection:
        """The connection to the server that serves the shard now.

        Reads outside a script do not notice a moved shard. `where` does, and follows it, so that nobody reads the
        copy that an old server keeps until it is deleted."""
        await self._call("where")
        return await self._links.link(self._server)

    async def aclose(self) -> None:
        await self._links.aclose()

    async def _call(self, operation: str, entries: Sequence[bytes] = (), /, **given: Any) -> Any:
        self._server, answer = await call_shard(
            self._links, self._server, self._job, self.shard, operation, given, *entries
        )
        return answer


def _packed(parcels: Sequence[Parcel]) -> list[Any]:
    """Parcels as arguments of the script, which treats their links as opaque text."""
    return [(parcel.server, parcel.run, as_text(parcel.links)) for parcel in parcels]
