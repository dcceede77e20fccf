"""A worker's session on a shared folder: claims shards, renews the claims, and balances shards with others.

The sites of a job are spread over a fixed number of shards, and each shard has one owner at a time, which runs the
embedded frontier over the shard's log. This module decides which shards a worker owns, and makes sure that
nothing counts which it writes to a shard that another worker has.

**Fencing.** Nothing on a folder can stop a suspended owner from writing when it wakes. So what it writes is made
harmless instead. An owner appends a frame, syncs it, and then asks whether its claim still stands (`confirm`); only
then does the frame count. As long as its last heartbeat is younger than most of the lease (`is_late`), nobody can have
claimed the shard, and the answer costs nothing. Later it has to claim the shard anew, behind its own last claim. If
that works, nobody was there in between, and it goes on with what it has in memory; if not, the shard is dropped and the
caller gets `ShardLost`. A new owner claims first and reads the log afterwards, so it reads every frame that was
confirmed. What an old owner adds later is in no chain: the new log names the length of the old one that was read (P2,
P4).

**A round** (`run_round`) happens every second or so:

1. Renew the claims if they are late.
2. Read letters with links for our shards, and send those that ours have for others (`links`).
3. Send a heartbeat, and delete the letters only then: at every moment some place shows the work in them (P6).
4. Look at the claims and heartbeats of the others, and drop shards that are not ours any more.
5. Balance: mark shards to give away, give those of which nothing is leased, and take free ones.

**When things fail.** A killed worker's heartbeat stops. After the lease, its shards count as free and the others share
them out (P9); a successor with the same name takes them at once, when it is sure that no process is left (`inherit`). A
suspended worker keeps its shards if it wakes within the lease, or if nobody was there to take them; then its leases
get a short grace, so that what it had fetched is not fetched again. If the folder is away, no heartbeat is written, and
each owner finds itself late and waits; when the folder is back, each claims its shards anew. A claim whose shard could
not be opened, or that an interrupted call left behind, is given up again: it would block the shard for everybody."""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from gossamer.errors import Held, Unavailable
from gossamer.frontier.embedded.journal import to_the_end
from gossamer.frontier.folder.claims import Claims, Peers, SessionHeartbeat, new_session
from gossamer.frontier.folder.files import ShareClock, SharedFolder, explained
from gossamer.frontier.folder.links import Inbox, LinkRouter
from gossamer.frontier.folder.log import ShardPast, begin_log, read_chain, sweep_logs
from gossamer.frontier.folder.record import Layout, read_wanted_state
from gossamer.frontier.folder.shard import FolderJournal, FolderShard, ProcessState
from gossamer.model import Heartbeat, JobState
from gossamer.settings import Settings

log = logging.getLogger("gossamer.frontier")
_PROC = Path("/proc")


def this_process() -> str:
    """Return a name of this process that is unique over machines and restarts; empty where the system has no such data.

    It consists of boot id, process namespace, process id, and start time."""
    try:
        _, started = state_and_start("self")
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')} {os.getpid()} {started}"
    except (OSError, IndexError):
        return ""


def state_and_start(process: str) -> tuple[str, str]:
    """Return the state of a process, and its start time."""
    fields = (_PROC / process / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def is_running(life: str) -> bool | None:
    """Return whether a process still runs; None if that cannot be seen from here, as on another machine."""
    here = this_process()
    if not life or not here or life.split()[:2] != here.split()[:2]:
        return None
    number, started = life.split()[2:]
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state, started_now = state_and_start(number)
    except (OSError, IndexError):
        return None
    return started_now == started and state not in "ZX"


async def wait_for_earlier_sessions(owner: FolderSession) -> frozenset[str]:
    """Return the earlier sessions of this worker, all of them dead; Held if one is alive.

    A process on another machine may be suspended and come back: its lease is waited out before it counts as dead."""
    heard: dict[str, int] = {}
    while True:
        await owner.look()
        lives = {name: beat for name, beat in owner.peers.beats.items() if beat.worker == owner.worker}
        waited = bool(heard)
        doubtful = False
        for name in lives.keys() & owner.peers.live:
            running, number = is_running(lives[name].life), lives[name].number
            if running or (running is None and number != heard.setdefault(name, number)):
                raise Held(
                    f"another worker named {owner.worker!r} is already running for this job",
                    hint="give each worker its own --name, or omit --name",
                )
            doubtful = doubtful or running is None
        if not doubtful:
            return frozenset(lives)
        if not waited:
            log.warning("worker %r sent a heartbeat recently: waiting until its lease has ended", owner.worker)
        await owner.clock.sleep(owner.every_seconds)


_MUCH = 1.1
"""Shards move only if one worker has this much more than its share, and another this much less."""
_LATE = 2
"""A worker with its share divided by this, or less, gets shards from any worker that has more than its share."""
_FEW_REQUESTS = 16
"""Smaller differences in work are not worth a move."""


class BalanceView(NamedTuple):
    """The shards of a job at one moment, as one worker sees them.

    Each worker decides by its own view which shards it takes and gives away. The views may differ; a shard that two
    workers try to claim goes to one of them, and the next round corrects the rest."""

    me: str
    live: Collection[str]
    """Sessions of all live workers, including this one."""
    hungry: Collection[str]
    """Sessions that have hardly anything to fetch."""
    holders: Mapping[int, str]
    """The owner of each shard that has a live one."""
    work: Mapping[int, int]
    """Queued, delayed and leased requests of each shard that has any."""
    shards: Collection[int]
    """The shards among which these workers balance."""
    leased: Collection[int] = ()
    """Our shards with leases, which have to end before the shard can be given away."""


def to_take(view: BalanceView) -> list[int]:
    """Return the free shards to take: with work up to a fair share of all work, then empty ones up to a fair number."""
    free = [shard for shard in view.shards if shard not in view.holders]
    # Ordered differently for each worker: workers that start together should not try for the same shards.
    free.sort(key=lambda shard: zlib.crc32(f"{view.me} {shard}".encode()))
    work, fair = _work(view)[view.me], _fair_work(view)
    taken = []
    for shard in free:
        if view.work.get(shard) and work < fair:
            taken.append(shard)
            work += view.work[shard]
    empty = [shard for shard in free if not view.work.get(shard)]
    return taken + empty[: max(0, _fair_number(view) - len(_own_shards(view)) - len(taken))]


def to_give(view: BalanceView) -> list[int]:
    """Return our shards to give away: work for workers that have much less, and empty ones beyond a fair number.

    The number of shards decides about empty ones only. If it moved work as well, the share of the work would move it
    back, round after round."""
    if len(view.live) < 2:
        return []
    mine, given = _own_shards(view), _surplus(view)
    empty = [shard for shard in mine if not view.work.get(shard)]
    return given + empty[: max(0, len(mine) - len(given) - _fair_number(view))]


def _surplus(view: BalanceView) -> list[int]:
    """Return shards with about as much work as we have too much, and the poorest worker too little.

    A shard that moves is not fetched from for a round or two, so small differences stay."""
    work, fair = _work(view), _fair_work(view)
    poorest, ours = min(work.values()), work[view.me]
    much = ours >= _MUCH * fair and poorest * _MUCH <= fair
    # A worker that joins late finds all others with only a little too much.
    late = ours > fair and poorest * _LATE <= fair
    if not (much or late) or ours - poorest < _FEW_REQUESTS:
        return []
    # A shard with leases leases out no more until they end: it is given away only if a worker has nothing to do.
    pool = [shard for shard in _own_shards(view) if view.work.get(shard) and (shard not in view.leased or view.hungry)]
    pool.sort(key=lambda shard: (shard in view.leased, -view.work[shard]))
    excess = min(ours - fair, fair - poorest)
    given: list[int] = []
    for shard in pool:
        if view.work[shard] <= excess:
            given.append(shard)
            excess -= view.work[shard]
    if not given and pool:
        least = min(pool, key=lambda shard: (shard in view.leased, view.work[shard]))
        return [least] if (poorest + view.work[least]) * _MUCH <= ours else []
    return given


def _own_shards(view: BalanceView) -> list[int]:
    return [shard for shard, holder in view.holders.items() if holder == view.me]


def _work(view: BalanceView) -> dict[str, int]:
    """Return the work of each live worker."""
    found = dict.fromkeys([*view.live, view.me], 0)
    for shard, holder in view.holders.items():
        if holder in found:
            found[holder] += view.work.get(shard, 0)
    return found


def _fair_work(view: BalanceView) -> float:
    return sum(view.work.values()) / max(1, len(view.live))


def _fair_number(view: BalanceView) -> int:
    """Return how many shards we may have. The remainder goes to the first workers in order."""
    held = dict.fromkeys(view.live, 0)
    for holder in view.holders.values():
        held[holder] = held.get(holder, 0) + 1
    least, over = divmod(len(view.shards), max(1, len(view.live)))
    others_have_theirs = all(count >= least for worker, count in held.items() if worker != view.me)
    return least + (over > 0 and others_have_theirs)


T = TypeVar("T")
_THREADS, _READERS = 8, 2
_SAFE = 0.9
"""Share of its lease that an owner trusts. After that it claims its shards anew before it confirms a write."""
_ROUNDS = 4
"""Rounds for which a shard that was given away is not taken back: others may not have seen it yet."""
_GRACE = 2
"""Rounds for which leases stay valid after their worker was suspended."""
_LITTER_SECONDS = 3600.0
_SILENT_SECONDS = 600.0


class ShardLost(Unavailable):
    """The shard belongs to another worker by now. Unavailable: a repeated call finds that out and does the rest."""


class FolderSession:
    """One life of a worker, or of a visitor, which claims nothing.

    Three locks, taken in this order where several are needed: `round_lock`, one round at a time; `writing`, one call
    that changes several shards at a time; `_renewing`, one heartbeat at a time. File operations run in threads, and
    reads that a lease waits for in threads of their own, so that they do not queue behind syncs."""

    def __init__(
        self,
        share: SharedFolder,
        settings: Settings,
        *,
        layout: Layout,
        worker: str,
        region: str = "",
        clock: ShareClock,
    ) -> None:
        self.share = share
        self.settings = settings
        self.layout = layout
        self.worker = worker
        self.region = region
        self.session = new_session(worker)
        self.life = this_process()
        self.earlier_sessions: frozenset[str] = frozenset()
        """Earlier sessions of this worker, all of them dead."""
        self.clock = clock
        self.claims = Claims(share, layout.count)
        self.every_seconds = min(1.0, settings.lease_seconds / 8)
        self.peers = Peers(share, lease_seconds=settings.lease_seconds, every_seconds=self.every_seconds)
        self.inbox = Inbox(share)
        self.links = LinkRouter(self)
        self.shards: dict[int, FolderShard] = {}
        self.job: JobState = "running"
        self.hungry = False
        self.heartbeat: Heartbeat | None = None
        self.leaving = False
        """Whether this worker is ending, and takes no more shards."""
        self.writing = asyncio.Lock()
        """Held while links or outcomes are written: calls that span several shards must not interleave."""
        self.stored = 0
        """Pages that this session has stored, in all shards that it ever had."""
        self.reported_busy = False
        """Whether the last heartbeat showed a busy shard."""
        self.has_rounds_task = False
        """Whether a task calls `run_round` regularly; if not, other calls do."""
        self._given: dict[int, float] = {}
        self.round_lock = asyncio.Lock()
        """Held for one round of `run_round`, and by repair while it takes shards."""
        self._renewing = asyncio.Lock()
        self._deadline = -1e18
        self._round_at = -1e18
        self._beats = 0
        self._common = ProcessState(settings)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gossamer-folder")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="gossamer-folder-read")
        self.changed: Callable[[], None] = lambda: None
        """Called when something may have become due, or the job's state has changed."""

    async def join(self) -> None:
        """Ensure that no live process has this worker's name, then begin with a round."""
        if self.is_member:
            self.earlier_sessions = await wait_for_earlier_sessions(self)
        await self.run_round()

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """Run an operation on the folder in a thread, and translate its errors."""
        return await self._run(self._threads, work, *given)

    async def read(self, work: Callable[..., T], *given: Any) -> T:
        """Run a read that a lease waits for, in threads that no sync occupies."""
        return await self._run(self._readers, work, *given)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[..., T], *given: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work, *given)
        except OSError as error:
            raise explained(error, self.share.root) from error

    @property
    def is_member(self) -> bool:
        """Return whether this is a worker, and not a visitor."""
        return bool(self.worker)

    @property
    def has_other_workers(self) -> bool:
        """Return whether other workers are alive."""
        return any(self.peers.beats[name].worker for name in self.peers.live - {self.session})

    @property
    def remaining(self) -> float:
        """Return the seconds for which no other worker can take our shards: the lease, from before the last
        heartbeat."""
        return self._deadline - self.clock.monotonic()

    @property
    def is_late(self) -> bool:
        """Return whether our shards may have been claimed by others."""
        return self.remaining < self.settings.lease_seconds * (1 - _SAFE)

    async def ensure_claims(self, *, seconds: float = 0.0) -> None:
        """Ensure that our shards are ours, if possible for `seconds`. Runs a round if no task does and it is due."""
        if self.is_member and (self.is_late or self.remaining < min(seconds, self.settings.lease_seconds)):
            await self.renew()
        if not self.has_rounds_task and self.clock.monotonic() >= self._round_at + self.every_seconds:
            await self.run_round()

    async def renew(self) -> None:
        """Send a heartbeat. An owner that was silent for too long claims its shards anew, and drops those it lost."""
        async with self._renewing:
            # Completed even if cancelled: a claim that is made and not recorded would block the shard.
            await to_the_end(self._renew())

    async def _renew(self) -> None:
        """Send the heartbeat first, then claim anew, then trust the claims again.

        The new deadline counts from before the heartbeat was made, and others count from the time that stands in it.
        Claims come after the heartbeat, since a claim is void while its session's heartbeat is old."""
        sent_at, was_late = self.clock.monotonic(), self.is_late
        self._beats += 1
        beat = SessionHeartbeat(
            session=self.session,
            worker=self.worker,
            at=self.clock.epoch(),
            number=self._beats,
            hungry=self.hungry,
            stored=self.stored,
            region=self.region,
            life=self.life,
            shards={number: shard.view() for number, shard in self.shards.items()},
            heartbeat=self.heartbeat,
        )
        server_time = await self.run(self.peers.write_heartbeat, beat)
        self.reported_busy = any(view.busy for view in beat.shards.values())
        self.clock.set(server_time, asked_at=sent_at)
        if was_late:
            for number, shard in list(self.shards.items()):
                claim = await self.run(self.claims.take, number, shard.claim, self.session, 0)
                if claim:
                    shard.claim = claim
                    # What was fetched before the suspension can still be completed.
                    shard.keep_leases(self.worker, until=self.clock.monotonic() + _GRACE * self.every_seconds)
                else:
                    self.drop(number)
        self._deadline = max(self._deadline, sent_at + self.settings.lease_seconds)

    async def confirm(self, number: int) -> None:
        """Return if what was just written to a shard's log counts; raise Lost if another worker may have read the log
        before.

        Called after the sync: a check before the write would not notice a suspension between check and write."""
        if number in self.shards and self.is_late:
            await self.renew()
        if number not in self.shards:
            raise ShardLost(f"shard {number} belongs to another worker now")

    def drop(self, number: int) -> None:
        """Close a shard that another worker has claimed. Its leases are void: their outcomes count as stale."""
        shard = self.shards.pop(number, None)
        if shard is not None:
            log.warning("lost shard %d to another worker: this worker was silent for too long", number)
            shard.leaving = True
            shard.journal.close()
            self.changed()

    async def run_round(self) -> None:
        """Run one round: move links, send a heartbeat, read the others, give and take shards."""
        async with self.round_lock:
            self._round_at = self.clock.monotonic()
            if self.is_member:
                if self.is_late:
                    await self.renew()
                taken = await self.links.collect()
                await self.links.deliver()
                # The heartbeat before the letters are deleted: the work in them must be visible in some place at any
                # time.
                await self.renew()
                await self.run(self.inbox.done, taken)
            await self.look()
            if self.is_member:
                await self._balance()

    async def look(self, *, fresh: bool = False) -> None:
        """Read claims, heartbeats, and the wanted state of the job; drop shards that are lost."""
        job = await self.run(read_wanted_state, self.share)
        await self.run(self._look, fresh)
        if not self.is_member:
            asked_at = self.clock.monotonic()
            self.clock.set(await self.run(self.share.time), asked_at=asked_at)
        for number, shard in list(self.shards.items()):
            newest = self.claims.newest[number]
            if newest.number > shard.claim and newest.claim.session != self.session:
                self.drop(number)
        if job != self.job:
            self.job = job
            self.changed()

    def _look(self, fresh: bool) -> None:
        self.claims.look(fresh=fresh)
        self.peers.look(monotonic=self.clock.monotonic(), epoch=self.clock.epoch())

    def balance_views(self) -> list[BalanceView]:
        """Return one view for each row of shards that this worker may have: that of its region, and that of no
        region."""
        holders = self.peers.holders(self.claims.newest)
        # A claim of ours without a shard is left from a failed `take`. A shard that is about to be given away counts as
        # given: otherwise each round would choose more.
        staying = {number for number, shard in self.shards.items() if not shard.leaving}
        holders = {shard: who for shard, who in holders.items() if who != self.session or shard in staying}
        leased = [number for number, shard in self.shards.items() if shard.leased]
        found = []
        for region, numbers in self.layout.rows(self.region):
            members = {name: self.peers.beats[name] for name in self.peers.live if self.peers.beats[name].worker}
            live = [name for name, beat in members.items() if region in ("", beat.region)]
            hungry = [name for name in live if members[name].hungry]
            held = {shard: who for shard, who in holders.items() if shard in numbers}
            work = {number: amount for number in numbers if (amount := self._work(number))}
            found.append(BalanceView(self.session, live, hungry, held, work, numbers, leased))
        return found

    def _work(self, number: int) -> int:
        """Return the unfinished requests of a shard; 1 if that is not known, 0 if it is idle."""
        standing = self.claims.newest[number]
        beat = self.peers.beats.get(standing.claim.session)
        view = beat.shards.get(number) if beat is not None else standing.claim.view
        if number in self.shards:
            view = self.shards[number].view()
        if view is None:
            return 1 if standing.number else 0
        return max(1, view.counts.queued + view.counts.delayed + view.counts.leased) if view.busy else 0

    async def _balance(self) -> None:
        """Give shards away and take free ones, by what this round has read of the others.

        A shard is given away only when nothing of it is leased; until then it is `leaving`, and leases out nothing
        more. So no lease ever spans two owners, and a site's delay is not at risk."""
        for shard in list(self.shards.values()):
            # A shard that is leaving grants no leases, which would take back expired ones.
            await shard.take_back()
        balance_views = self.balance_views()
        # Claim only after the claims seen now: claims that others make from here on are theirs.
        seen = {number: standing.number for number, standing in self.claims.newest.items()}
        for number in [number for view in balance_views for number in to_give(view)]:
            self.shards[number].leaving = True
        for number, shard in list(self.shards.items()):
            if shard.leaving and not shard.leased:
                await self.give(number)
        now = self.clock.monotonic()
        # Do not take back what was just given away: others may not have seen it yet.
        self._given = {number: at for number, at in self._given.items() if at > now - _ROUNDS * self.every_seconds}
        kept = self._given.keys() | self.shards.keys()
        wanted = [
            number for view in balance_views for number in to_take(view) if number not in kept and not self.leaving
        ]
        if wanted:
            await self.take({number: seen[number] for number in wanted})
        epoch = self.clock.epoch()
        if self._beats % 600 == 1:
            needed = frozenset(found.claim.session for found in self.claims.newest.values())
            await self.run(lambda: self.share.sweep(older_than=epoch - _LITTER_SECONDS))
            await self.run(lambda: self.peers.sweep(epoch=epoch, older_than_seconds=_SILENT_SECONDS, needed=needed))

    async def inherit(self, worker: str, *, blamed: Sequence[int]) -> int:
        """Take the shards of earlier sessions of a dead worker; return how many.

        Their heartbeats are deleted first, so that the claims are void for all workers. The `blamed` keys, which the
        crash marker names, count one loss each once their shard is open (P10)."""
        async with self.round_lock:
            await self.look(fresh=True)
            dead = [session for session, beat in self.peers.beats.items() if beat.worker == worker]
            if worker == self.worker:
                # Not a session that has taken this name since `join`.
                dead = [session for session in dead if session in self.earlier_sessions]
            for session in dead:
                await self.run(self.peers.forget, session)
            orphans = {
                number: found.number
                for number, found in self.claims.newest.items()
                if found.claim.session in dead and self.layout.may_have(number, self.region)
            }
            if not self.is_member or not orphans:
                return 0
            taken = await self.take(orphans)
            for number in taken:
                await self.shards[number].blame(blamed)
            return len(taken)

    async def take(self, after: Mapping[int, int]) -> list[int]:
        """Claim shards, each after the claim that was found to be void, and open them; return those that this worker
        got.

        One term serves all of them; it is above all earlier ones, so the tokens of the new leases are, too (P4).
        Opening many shards takes a while: the heartbeat is renewed in between."""
        term = await self.run(self.claims.next_term)
        got = []
        for number, void in after.items():
            if self.leaving:
                break
            if self.remaining < self.settings.lease_seconds / 2:
                await self.renew()
            claim = await self.run(self.claims.take, number, void, self.session, term)
            if not claim:
                continue
            try:
                await self._open(number, claim, term)
            except Unavailable as error:
                # A claim without an open shard would block it for everybody.
                log.warning("could not open shard %d: %s", number, error)
                await self.run(self.claims.return_unopened, number, claim)
                continue
            got.append(number)
        if got:
            await self.renew()
            self.changed()
        return got

    async def _open(self, number: int, claim: int, term: int) -> None:
        """Read a claimed shard's log, begin our own log after it, and restore the shard from it.

        Only after the claim: by then the log has everything that the last owner confirmed. All sites of the shard wait
        one delay, as after each start (P5)."""
        settings = self.settings

        def opened() -> FolderShard:
            chain = read_chain(self.share, number)
            chain = begin_log(self.share, chain, shard=number, claim=claim, session=self.session)
            sweep_logs(self.share, chain, number)
            past = ShardPast(chain)
            past.epoch = term - 1
            journal = FolderJournal(self, chain, past, number)
            return FolderShard(journal, past, number, claim, settings=settings, clock=self.clock, common=self._common)

        self.shards[number] = await self.run(opened)
        self.claims.opened(number)
        if self.settings is not settings:
            await self.shards[number].limit(self.settings)

    async def give(self, number: int) -> None:
        """Give a shard up for others to take, after sending its links for other shards.

        The claim without a session carries the exact view, so that others know its work without reading its log. The
        shard is closed before: nothing may be written to it once the claim exists."""
        await self.links.deliver()
        async with self.writing:
            shard = self.shards.get(number)
            if shard is None or shard.journal.outgoing:
                return
            await shard.aclose()
            view = msgspec.structs.replace(shard.view(exact=True), claim=shard.claim + 1)
            await self.run(self.claims.take, number, shard.claim, "", 0, view)
            self.shards.pop(number, None)
            self._given[number] = self.clock.monotonic()

    async def aclose(self) -> None:
        """Give all shards up, and delete our heartbeat. If the folder fails, others take them when the lease ends."""
        try:
            self.leaving = True
            async with self.round_lock:
                for number in list(self.shards):
                    await self.give(number)
                if self.is_member:
                    await self._release_unopened()
                    await self.run(self.peers.forget, self.session)
        except Unavailable as error:
            log.warning("could not return shards; others take them when the lease ends: %s", error)
        finally:
            self.abort()

    async def _release_unopened(self) -> None:
        """Give up claims of this session without an open shard, left by interrupted calls."""
        await self.run(lambda: self.claims.look(fresh=True))
        for number, standing in list(self.claims.newest.items()):
            if standing.claim.session == self.session and number not in self.shards:
                await self.run(self.claims.return_unopened, number, standing.number)

    def abort(self) -> None:
        """Close files and threads, and leave the folder as a killed process would."""
        for shard in self.shards.values():
            shard.journal.close()
        self.shards.clear()
        self._threads.shutdown(wait=False)
        self._readers.shutdown(wait=False)
