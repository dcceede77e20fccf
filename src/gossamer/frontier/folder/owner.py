"""A worker's session on a shared folder: claims shards, renews the claims, and balances shards with others."""

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
from gossamer.frontier.folder.claims import Beat, Claims, Peers, new_session
from gossamer.frontier.folder.files import ShareClock, SharedFolder, explained
from gossamer.frontier.folder.links import LinkRouter, Post
from gossamer.frontier.folder.log import ShardPast, begin_log, read_chain, sweep_logs
from gossamer.frontier.folder.record import Layout, read_wish
from gossamer.frontier.folder.shard import Common, FolderJournal, FolderShard
from gossamer.model import Heartbeat, JobState
from gossamer.settings import Settings

log = logging.getLogger("gossamer.frontier")
_PROC = Path("/proc")


def this_process() -> str:
    """This process, like no other of any machine: the machine since it was started, its process space, number and
    time of start. Empty where that cannot be known."""
    try:
        _, started = _look_up("self")
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')} {os.getpid()} {started}"
    except (OSError, IndexError):
        return ""


def _look_up(process: str) -> tuple[str, str]:
    """The state of a process, and when it was started."""
    fields = (_PROC / process / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def is_running(life: str) -> bool | None:
    """Whether a process is still there; None if that cannot be seen from here."""
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
        state, started_now = _look_up(number)
    except (OSError, IndexError):
        return None
    return started_now == started and state not in "ZX"


async def be_alone(owner: FolderSession) -> frozenset[str]:
    """The former lives of this worker, all of them dead. Held if there is a living one.

    A process of another machine that has been silent only for a while may come back: its lease is waited for."""
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
                    f"another worker named {owner.worker!r} is at work for this job",
                    hint="give each a name of its own with --name, or none at all",
                )
            doubtful = doubtful or running is None
        if not doubtful:
            return frozenset(lives)
        if not waited:
            log.warning("a worker named %r was heard of lately: waiting until it must be dead", owner.worker)
        await owner.clock.sleep(owner.every_seconds)


_MUCH = 1.1
_LATE = 2
_FEW_REQUESTS = 16
"""Differences as small as this are not worth a move."""


class Scene(NamedTuple):
    """The shards of a job at one moment, as one worker sees them."""

    me: str
    live: Collection[str]
    """All workers that are alive, this one too."""
    hungry: Collection[str]
    """Those of them that have hardly anything to fetch."""
    holders: Mapping[int, str]
    """The owner of each shard that has a living one."""
    work: Mapping[int, int]
    """How many requests are queued, delayed or leased, of each shard that has any."""
    shards: Collection[int]
    """Those that are shared out among these workers."""
    leased: Collection[int] = ()
    """Our shards of which something is leased: they can be given only when that is done."""


def to_take(scene: Scene) -> list[int]:
    """The shards without an owner that are ours to take: with work in them up to a fair share of the work, and a fair
    number of all with those without."""
    free = [shard for shard in scene.shards if shard not in scene.holders]
    # Each worker begins elsewhere, so that those who start together do not all try for the same.
    free.sort(key=lambda shard: zlib.crc32(f"{scene.me} {shard}".encode()))
    work, fair = _work(scene)[scene.me], _fair_work(scene)
    taken = []
    for shard in free:
        if scene.work.get(shard) and work < fair:
            taken.append(shard)
            work += scene.work[shard]
    empty = [shard for shard in free if not scene.work.get(shard)]
    return taken + empty[: max(0, _fair_number(scene) - len(_mine(scene)) - len(taken))]


def to_give(scene: Scene) -> list[int]:
    """Our shards that others should have: work for those who have much less of it, and empty ones over a fair number.

    Numbers decide about empty ones alone: what they gave away of the work, its share of the work would take back."""
    if len(scene.live) < 2:
        return []
    mine, given = _mine(scene), _surplus(scene)
    empty = [shard for shard in mine if not scene.work.get(shard)]
    return given + empty[: max(0, len(mine) - len(given) - _fair_number(scene))]


def _surplus(scene: Scene) -> list[int]:
    """Shards with as much work as we have too much, and another too little.

    What is given away cannot be fetched for a moment: so small differences stay as they are."""
    work, fair = _work(scene), _fair_work(scene)
    poorest, ours = min(work.values()), work[scene.me]
    much = ours >= _MUCH * fair and poorest * _MUCH <= fair
    # One who comes late finds all others with just a little too much.
    late = ours > fair and poorest * _LATE <= fair
    if not (much or late) or ours - poorest < _FEW_REQUESTS:
        return []
    # What is leased has to be waited for: it is given only to one who has nothing at all.
    pool = [shard for shard in _mine(scene) if scene.work.get(shard) and (shard not in scene.leased or scene.hungry)]
    pool.sort(key=lambda shard: (shard in scene.leased, -scene.work[shard]))
    excess = min(ours - fair, fair - poorest)
    given: list[int] = []
    for shard in pool:
        if scene.work[shard] <= excess:
            given.append(shard)
            excess -= scene.work[shard]
    if not given and pool:
        least = min(pool, key=lambda shard: (shard in scene.leased, scene.work[shard]))
        return [least] if (poorest + scene.work[least]) * _MUCH <= ours else []
    return given


def _mine(scene: Scene) -> list[int]:
    return [shard for shard, holder in scene.holders.items() if holder == scene.me]


def _work(scene: Scene) -> dict[str, int]:
    """The work of each living worker."""
    found = dict.fromkeys([*scene.live, scene.me], 0)
    for shard, holder in scene.holders.items():
        if holder in found:
            found[holder] += scene.work.get(shard, 0)
    return found


def _fair_work(scene: Scene) -> float:
    return sum(scene.work.values()) / max(1, len(scene.live))


def _fair_number(scene: Scene) -> int:
    """How many shards we may have; what is left when all have the same number is for those who come first."""
    held = dict.fromkeys(scene.live, 0)
    for holder in scene.holders.values():
        held[holder] = held.get(holder, 0) + 1
    least, over = divmod(len(scene.shards), max(1, len(scene.live)))
    others_have_theirs = all(count >= least for worker, count in held.items() if worker != scene.me)
    return least + (over > 0 and others_have_theirs)


T = TypeVar("T")
_THREADS, _READERS = 8, 2
_SAFE = 0.9
"""Of its lease an owner trusts this part; after that it makes sure with a new claim before it says that all is well."""
_ROUNDS = 4
_GRACE = 2
"""Rounds for which leases stand after their worker was stopped."""
_LITTER_SECONDS = 3600.0
_SILENT_SECONDS = 600.0


class Lost(Unavailable):
    """The shard is another worker's by now; tried again, the call finds that out by itself."""


class FolderSession:
    """One life of a worker, or of a visitor, who claims nothing."""

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
        self.forebears: frozenset[str] = frozenset()
        """Sessions of former processes with this worker's name."""
        self.clock = clock
        self.claims = Claims(share, layout.count)
        self.every_seconds = min(1.0, settings.lease_seconds / 8)
        self.peers = Peers(share, lease_seconds=settings.lease_seconds, every_seconds=self.every_seconds)
        self.post = Post(share)
        self.links = LinkRouter(self)
        self.shards: dict[int, FolderShard] = {}
        self.job: JobState = "running"
        self.hungry = False
        self.pulse: Heartbeat | None = None
        self.leaving = False
        """Whether this worker takes no more shards."""
        self.writing = asyncio.Lock()
        """Held by whoever changes what is in the shards: calls that span several of them must not cross."""
        self.stored = 0
        """Pages that this life of the worker has stored, in whatever shards."""
        self.told_busy = False
        """Whether the others have been told that something of ours is under way."""
        self.tended = False
        """Whether somebody calls `tend` again and again: no other call then waits for it."""
        self._given: dict[int, float] = {}
        self._tending = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._deadline = -1e18
        self._tended_at = -1e18
        self._beats = 0
        self._common = Common(settings)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gossamer-folder")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="gossamer-folder-read")
        self.changed: Callable[[], None] = lambda: None
        """Called when something may have become due."""

    async def join(self) -> None:
        """Make sure that no other process has our name, then begin."""
        if self.is_member:
            self.forebears = await be_alone(self)
        await self.tend()

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """Do something with the folder, in a thread; what goes wrong there is said in our words."""
        return await self._run(self._threads, work, *given)

    async def read(self, work: Callable[..., T], *given: Any) -> T:
        """The same for what somebody waits for who has nothing else to do: it does not stand behind others' syncs."""
        return await self._run(self._readers, work, *given)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[..., T], *given: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work, *given)
        except OSError as error:
            raise explained(error, self.share.root) from error

    @property
    def is_member(self) -> bool:
        """Whether this is a worker, which takes shards."""
        return bool(self.worker)

    @property
    def has_company(self) -> bool:
        """Whether other workers are there too."""
        return any(self.peers.beats[name].worker for name in self.peers.live - {self.session})

    @property
    def remaining(self) -> float:
        """Seconds for which nobody can take our shards from us."""
        return self._deadline - self.clock.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether it is no longer sure that our shards are ours."""
        return self.remaining < self.settings.lease_seconds * (1 - _SAFE)

    async def keep_up(self, *, seconds: float = 0.0) -> None:
        """Make sure that what we hold is ours, for `seconds` at least if that can be had; tend if that is due."""
        if self.is_member and (self.is_late or self.remaining < min(seconds, self.settings.lease_seconds)):
            await self.renew()
        if not self.tended and self.clock.monotonic() >= self._tended_at + self.every_seconds:
            await self.tend()

    async def renew(self) -> None:
        """Beat. An owner that was silent for too long claims its shards anew: those of which it still has the last
        claim it keeps, since nobody can have been there in between."""
        async with self._renewing:
            # Not half of it: claims that were made and not noted would stay behind.
            await to_the_end(self._renew())

    async def _renew(self) -> None:
        sent_at, was_late = self.clock.monotonic(), self.is_late
        self._beats += 1
        beat = Beat(
            session=self.session,
            worker=self.worker,
            at=self.clock.epoch(),
            number=self._beats,
            hungry=self.hungry,
            stored=self.stored,
            region=self.region,
            life=self.life,
            shards={number: shard.view() for number, shard in self.shards.items()},
            pulse=self.pulse,
        )
        server_time = await self.run(self.peers.tell, beat)
        self.told_busy = any(view.busy for view in beat.shards.values())
        self.clock.set(server_time, asked_at=sent_at)
        if was_late:
            for number, shard in list(self.shards.items()):
                claim = await self.run(self.claims.take, number, shard.claim, self.session, 0)
                if claim:
                    shard.claim = claim
                    # What was fetched before the worker was stopped can still be completed.
                    shard.keep_leases(self.worker, until=self.clock.monotonic() + _GRACE * self.every_seconds)
                else:
                    self.drop(number)
        self._deadline = max(self._deadline, sent_at + self.settings.lease_seconds)

    async def confirm(self, number: int) -> None:
        """Say nothing if what was just written to a shard's log counts; Lost if somebody else has read it before."""
        if number in self.shards and self.is_late:
            await self.renew()
        if number not in self.shards:
            raise Lost(f"shard {number} is another worker's by now")

    def drop(self, number: int) -> None:
        """Let go of a shard that is not ours any more."""
        shard = self.shards.pop(number, None)
        if shard is not None:
            log.warning("shard %d was taken over: this worker was silent for too long", number)
            shard.leaving = True
            shard.journal.close()
            self.changed()

    async def tend(self) -> None:
        """One round: bring links in and out, beat, look at the others, take and give shards."""
        async with self._tending:
            self._tended_at = self.clock.monotonic()
            if self.is_member:
                if self.is_late:
                    await self.renew()
                taken = await self.links.collect()
                await self.links.deliver()
                # Told before the letters are gone: there is always one place that shows the work in them.
                await self.renew()
                await self.run(self.post.done, taken)
            await self.look()
            if self.is_member:
                await self._balance()

    async def look(self, *, fresh: bool = False) -> None:
        """See what the others do, and what people want."""
        job = await self.run(read_wish, self.share)
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

    def scenes(self) -> list[Scene]:
        """The shards as this worker sees them: those of its region, and those of none."""
        holders = self.peers.holders(self.claims.newest)
        # A claim of ours without a shard is what was left when the folder failed while we took it. What is about to be
        # given counts as given: or more would be, round after round.
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
            found.append(Scene(self.session, live, hungry, held, work, numbers, leased))
        return found

    def _work(self, number: int) -> int:
        """How many requests of a shard are still to be fetched; at least 1 if nobody knows."""
        standing = self.claims.newest[number]
        beat = self.peers.beats.get(standing.claim.session)
        view = beat.shards.get(number) if beat is not None else standing.claim.view
        if number in self.shards:
            view = self.shards[number].view()
        if view is None:
            return 1 if standing.number else 0
        return max(1, view.counts.queued + view.counts.delayed + view.counts.leased) if view.busy else 0

    async def _balance(self) -> None:
        for shard in list(self.shards.values()):
            # A shard that is leaving hands out no more leases, which would take back those that have expired.
            await shard.take_back()
        scenes = self.scenes()
        # As they stand now: what others claim from here on is theirs.
        seen = {number: standing.number for number, standing in self.claims.newest.items()}
        for number in [number for scene in scenes for number in to_give(scene)]:
            self.shards[number].leaving = True
        for number, shard in list(self.shards.items()):
            if shard.leaving and not shard.leased:
                await self.give(number)
        now = self.clock.monotonic()
        # What we have just given is for others, who may not have looked yet.
        self._given = {number: at for number, at in self._given.items() if at > now - _ROUNDS * self.every_seconds}
        kept = self._given.keys() | self.shards.keys()
        wanted = [number for scene in scenes for number in to_take(scene) if number not in kept and not self.leaving]
        if wanted:
            await self.take({number: seen[number] for number in wanted})
        epoch = self.clock.epoch()
        if self._beats % 600 == 1:
            needed = frozenset(found.claim.session for found in self.claims.newest.values())
            await self.run(lambda: self.share.sweep(older_than=epoch - _LITTER_SECONDS))
            await self.run(lambda: self.peers.sweep(epoch=epoch, older_than_seconds=_SILENT_SECONDS, needed=needed))

    async def inherit(self, worker: str, *, blamed: Sequence[int]) -> int:
        """Take the shards of earlier lives of a worker, who is known to be dead; how many there were."""
        async with self._tending:
            await self.look(fresh=True)
            dead = [session for session, beat in self.peers.beats.items() if beat.worker == worker]
            if worker == self.worker:
                # Not one that has taken our name since we looked.
                dead = [session for session in dead if session in self.forebears]
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
        """Claim shards, each after the claim that was seen to be void, and open them; those that we got."""
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
                # A claim without a shard is only in the way.
                log.warning("shard %d could not be opened: %s", number, error)
                await self.run(self.claims.return_unopened, number, claim)
                continue
            got.append(number)
        if got:
            await self.renew()
            self.changed()
        return got

    async def _open(self, number: int, claim: int, term: int) -> None:
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
        """Give a shard up for others to take; what it had for other shards is sent first."""
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
        """Give everything up, and be forgotten."""
        try:
            self.leaving = True
            async with self._tending:
                for number in list(self.shards):
                    await self.give(number)
                if self.is_member:
                    await self._disown()
                    await self.run(self.peers.forget, self.session)
        except Unavailable as error:
            log.warning("shards were not given back, and are taken over when the lease ends: %s", error)
        finally:
            self.abort()

    async def _disown(self) -> None:
        """Give up claims of ours without a shard, which calls that were cut short have left behind."""
        await self.run(lambda: self.claims.look(fresh=True))
        for number, standing in list(self.claims.newest.items()):
            if standing.claim.session == self.session and number not in self.shards:
                await self.run(self.claims.return_unopened, number, standing.number)

    def abort(self) -> None:
        """Let go as a killed process does: the folder stays as it is."""
        for shard in self.shards.values():
            shard.journal.close()
        self.shards.clear()
        self._threads.shutdown(wait=False)
        self._readers.shutdown(wait=False)
