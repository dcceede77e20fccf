"""Claims of shards on a shared folder: claim files, heartbeats, and worker reports.

A shared folder has no locks that work across machines, so ownership is a sequence of files. The claims of shard 7 are
`claims/0007-0000000001`, `...02`, and so on. Each is created by an exclusive link, so of all workers that try for a
number one succeeds (P2), and the newest claim names the owner of the shard. A claim is never changed. It is valid as
long as its session (one life of one worker) sends heartbeats; a claim without a session means that the shard has no
owner, and carries the last owner's view of it.

A claim may follow only one that the claimant has found to be void: its session is dead, or it has none. An owner counts
as dead when two things hold: its last heartbeat is older than the lease by the file server's time, and the observer has
watched it for a while, by its own clock, without seeing a new one. The second condition guards against clocks that
jump, and against an observer that was suspended: it finds all others silent, and gives them time first. An owner stops
trusting its claims earlier than that (`owner.FolderSession.is_late`).

Terms are a second sequence of files, created in the same way. Each opening of shards gets a number above all earlier
ones, from which the tokens of its leases begin (P4).

Failure cases. A claim whose answer was lost is recognized by its nonce. A claim file that stays unreadable, because its
writer died on a file system without links, counts as void after `_PATIENCE` reads. Old claim and term files are
deleted, and a claimant checks afterwards that its number was not one of those: a slow worker must not take an old
number for a free one."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from gossamer.frontier.folder.files import SharedFolder
from gossamer.model import Counts, Heartbeat, RegionView

if TYPE_CHECKING:
    from gossamer.frontier.folder.owner import FolderSession


REPORTS = "told"
MOST_SITES = 500
"""Max sites in a worker's report: those with the longest queues."""
_EVERY_SECONDS = 10.0
_COST = 500.0
"""Inverse of the largest share of its time that a worker spends on reports."""
_FIELDS = ("site", "queued", "delayed", "leased", "stored", "delay", "lanes", "hold", "closed")


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The largest sites of one worker at the time of writing."""

    at: float
    """The server's time."""
    sites: list[dict[str, Any]]


class ReportWriter:
    """Writes the report of one worker: other processes see no more of its sites than this."""

    def __init__(self, owner: FolderSession) -> None:
        self._owner = owner
        self._next_at = -1e18

    async def write(self) -> None:
        """Write the report if it is due."""
        owner = self._owner
        began = owner.clock.monotonic()
        if not owner.is_member or began < self._next_at:
            return
        found = [site for shard in list(owner.shards.values()) for site in await shard.sites(MOST_SITES)]
        report = WorkerReport(at=owner.clock.epoch(), sites=[brief(site) for site in longest(found, MOST_SITES)])
        now = owner.clock.monotonic()
        self._next_at = now + max(_EVERY_SECONDS, _COST * (now - began))
        await owner.run(_write, owner.share, owner.session, report)


def brief(site: Mapping[str, Any]) -> dict[str, Any]:
    """Return a site for a list: without its robots.txt and its site state."""
    return {name: site[name] for name in _FIELDS if name in site}


def longest(sites: Iterable[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """Return the sites with the most queued requests."""
    return nlargest(limit, sites, key=lambda site: int(site.get("queued") or 0))


def _write(share: SharedFolder, session: str, report: WorkerReport) -> None:
    share.make_folders(REPORTS)
    share.put(f"{REPORTS}/{session}", msgspec.json.encode(report))


def read_reports(share: SharedFolder, sessions: Iterable[str]) -> dict[str, WorkerReport]:
    """Return the last reports of these sessions, as far as they can be read."""
    found: dict[str, WorkerReport] = {}
    for session in sessions:
        try:
            found[session] = msgspec.json.decode(share.read(f"{REPORTS}/{session}"), type=WorkerReport)
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            continue
    return found


CLAIMS, TERMS, WORKERS = "claims", "terms", "workers"
_KEPT = 4
_PATIENCE = 60
"""Reads of an unreadable claim before it counts as void."""
_LOOKS_SECONDS = 3.0
"""Min seconds for which a silent worker is watched before it counts as dead: a clock may have jumped."""


class ClaimsView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a shard, as its owner reports it. `changes` grows with each write."""

    claim: int
    changes: int = 0
    busy: bool = True
    """Whether the shard has queued, delayed, or leased requests, or links to send to other shards."""
    counts: Counts = Counts()
    lanes: RegionView = RegionView()


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim.

    Without a `session` the shard has no owner, and `view` is the last owner's. `nonce` makes it unique."""

    nonce: str
    session: str = ""
    term: int = 0
    view: ClaimsView | None = None


class SessionHeartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A heartbeat. As long as a session sends them, its claims are valid; `number` grows with each."""

    session: str
    worker: str
    at: float
    """The server's time, as the worker knows it."""
    number: int = 0
    hungry: bool = False
    """Whether it has hardly anything to fetch: others then give it shards."""
    stored: int = 0
    """Pages that this session has stored."""
    shards: dict[int, ClaimsView] = {}
    region: str = ""
    life: str = ""
    """The process: see `owner.this_process`."""
    heartbeat: Heartbeat | None = msgspec.field(default=None, name="pulse")
    """The heartbeat of the worker, under the name that files of older workers have."""


class NewestClaim(NamedTuple):
    """The newest claim of a shard."""

    number: int
    claim: Claim


_encode = msgspec.json.Encoder().encode
_decode_claim = msgspec.json.Decoder(Claim).decode
_decode_beat = msgspec.json.Decoder(SessionHeartbeat).decode
_NOBODY = NewestClaim(0, Claim(nonce=""))


def new_session(worker: str) -> str:
    """Return a name for one life of a worker, unique and usable as a file name."""
    return f"{quote(worker, safe='', errors='surrogatepass')[:150]}~{secrets.token_hex(6)}"


class Claims:
    """The claims of all shards, as this worker knows them. `newest` only grows."""

    def __init__(self, share: SharedFolder, shards: int) -> None:
        self._share = share
        self._unreadable: Counter[str] = Counter()
        self._views: dict[int, ClaimsView] = {}
        """The last owners' views of shards that are claimed here and not opened yet."""
        self.newest: dict[int, NewestClaim] = dict.fromkeys(range(shards), _NOBODY)

    def look(self, *, fresh: bool = False) -> None:
        """Read new claims. With `fresh`, the listing does not come from a cache of the file system."""
        numbers: dict[int, int] = {}
        for name in self._share.names(CLAIMS, fresh=fresh):
            first, _, last = name.partition("-")
            if first.isdigit() and last.isdigit():
                numbers[int(first)] = max(int(last), numbers.get(int(first), 0))
        for shard, number in numbers.items():
            if shard in self.newest and number > self.newest[shard].number:
                claim = self._claim(_name(shard, number))
                if claim is not None:
                    self.newest[shard] = NewestClaim(number, claim)

    def _claim(self, name: str) -> Claim | None:
        try:
            return _decode_claim(self._share.read(name))
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            # On a file system without links it may be half-written. If it stays so, its writer has died.
            self._unreadable[name] += 1
            return Claim(nonce="", session="?") if self._unreadable[name] > _PATIENCE else None

    def take(self, shard: int, after: int, session: str, term: int, view: ClaimsView | None = None) -> int:
        """Follow the claim `after` with one of this session, or of no session; return its number, or 0 if another was
        faster.

        An owner that was silent for too long calls this with its own last claim: if it succeeds, no other worker has
        claimed the shard in between, and its memory is still valid."""
        claim = Claim(nonce=secrets.token_hex(8), session=session, term=term, view=view)
        number = after + 1
        before = self.newest[shard]
        if session and before.number == after and before.claim.view is not None:
            self._views[shard] = before.claim.view
        if not self._share.claim(_name(shard, number), _encode(claim)):
            self.look(fresh=True)
            # It may be ours, from a call that failed between the link and the check.
            return number if self._is(shard, number, session) else 0
        # Old claims are deleted: if `after` was old, the number was free because of that, and is not the newest.
        self.look(fresh=True)
        if self.newest[shard].number > number:
            return 0
        self.newest[shard] = NewestClaim(number, claim)
        for old in range(max(1, number - 2 * _KEPT), number - _KEPT):
            self._share.remove(_name(shard, old))
        return number

    def opened(self, shard: int) -> None:
        """Drop the last owner's view of a shard that is open here: it is outdated from now on."""
        self._views.pop(shard, None)

    def return_unopened(self, shard: int, claim: int) -> None:
        """Give up a claim to a shard that could not be opened, with the last owner's view, which is still valid."""
        view = self._views.pop(shard, None)
        self.take(shard, claim, "", 0, view and msgspec.structs.replace(view, claim=claim + 1))

    def _is(self, shard: int, number: int, session: str) -> bool:
        newest = self.newest[shard]
        return newest.number == number and newest.claim.session == session

    def next_term(self) -> int:
        """Return a number above all that any worker got before."""
        given = max((int(name) for name in self._share.names(TERMS, fresh=True) if name.isdigit()), default=0)
        while not self._share.claim(f"{TERMS}/{given + 1:010}", secrets.token_bytes(8)):
            given += 1
        for old in range(max(1, given - 2 * _KEPT), given - _KEPT):
            self._share.remove(f"{TERMS}/{old:010}")
        return given + 1


def _name(shard: int, number: int) -> str:
    return f"{CLAIMS}/{shard:04}-{number:010}"


class Peers:
    """The workers of a job, as one of them or a visitor sees them: heartbeats, and which are alive."""

    def __init__(self, share: SharedFolder, *, lease_seconds: float, every_seconds: float) -> None:
        self._share = share
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._seen: dict[str, tuple[int, float]] = {}
        """Session -> the number of its last heartbeat, and seconds for which it was watched since then."""
        self._looked_at = -1e18
        self.beats: dict[str, SessionHeartbeat] = {}
        self.live: frozenset[str] = frozenset()

    def look(self, *, monotonic: float, epoch: float) -> None:
        """Read all heartbeats, and decide which workers are alive.

        A read that comes late, because this process was suspended, counts as half a round: the others may have been
        suspended too, and need time to send a heartbeat."""
        gap, self._looked_at = monotonic - self._looked_at, monotonic
        if gap > 2 * self._every_seconds:
            gap = self._every_seconds / 2
        beats: dict[str, SessionHeartbeat] = {}
        live = set()
        for name in self._share.names(WORKERS):
            try:
                beat = _decode_beat(self._share.read(f"{WORKERS}/{name}"))
            except (FileNotFoundError, msgspec.DecodeError):
                continue
            beats[name] = beat
            number, watched = self._seen.get(name, (-1, 0.0))
            watched = watched + gap if number == beat.number else 0.0
            self._seen[name] = (beat.number, watched)
            silent = epoch - beat.at
            looks = min(_LOOKS_SECONDS, self._lease_seconds / 4)
            if silent <= self._lease_seconds or watched < looks:
                live.add(name)
        self.beats, self.live = beats, frozenset(live)
        self._seen = {name: seen for name, seen in self._seen.items() if name in beats}

    def write_heartbeat(self, beat: SessionHeartbeat) -> float:
        """Write a heartbeat, and return the server's time."""
        return self._share.put(f"{WORKERS}/{beat.session}", _encode(beat))

    def forget(self, session: str) -> None:
        """Delete a session's heartbeat: its claims are void at once."""
        self._share.remove(f"{WORKERS}/{session}")
        self._share.remove(f"{REPORTS}/{session}")
        self.beats.pop(session, None)
        self.live -= {session}

    def sweep(self, *, epoch: float, older_than_seconds: float, needed: frozenset[str]) -> None:
        """Delete the heartbeats of dead sessions that hold no shard and have been silent for long."""
        for session, beat in list(self.beats.items()):
            if session not in self.live and session not in needed and epoch - beat.at > older_than_seconds:
                self.forget(session)

    def holders(self, newest: Mapping[int, NewestClaim]) -> dict[int, str]:
        """Return the owner of each shard that has a live one."""
        return {shard: found.claim.session for shard, found in newest.items() if found.claim.session in self.live}
