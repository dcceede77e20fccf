"""Claims of shards on a shared folder: claim files, heartbeats, and worker reports."""

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


TOLD = "told"
MOST_SITES = 500
"""Those with the most queued, of all shards of a worker."""
_EVERY_SECONDS = 10.0
_COST = 500.0
"""Of its time, a worker spends at most this part on telling: one in so many."""
_FIELDS = ("site", "queued", "delayed", "leased", "stored", "delay", "lanes", "hold", "closed")


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The sites of one worker, as they were a moment ago."""

    at: float
    """The server's time."""
    sites: list[dict[str, Any]]


class Teller:
    """Tells of the sites in the hands of one worker."""

    def __init__(self, owner: FolderSession) -> None:
        self._owner = owner
        self._next_at = -1e18

    async def tell(self) -> None:
        """Write them down, if it is time."""
        owner = self._owner
        began = owner.clock.monotonic()
        if not owner.is_member or began < self._next_at:
            return
        found = [site for shard in list(owner.shards.values()) for site in await shard.sites(MOST_SITES)]
        told = WorkerReport(at=owner.clock.epoch(), sites=[brief(site) for site in longest(found, MOST_SITES)])
        now = owner.clock.monotonic()
        self._next_at = now + max(_EVERY_SECONDS, _COST * (now - began))
        await owner.run(_write, owner.share, owner.session, told)


def brief(site: Mapping[str, Any]) -> dict[str, Any]:
    """A site in a list: without its robots.txt and what else is remembered of it."""
    return {name: site[name] for name in _FIELDS if name in site}


def longest(sites: Iterable[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """Those with the most queued."""
    return nlargest(limit, sites, key=lambda site: int(site.get("queued") or 0))


def _write(share: SharedFolder, session: str, told: WorkerReport) -> None:
    share.make_folders(TOLD)
    share.put(f"{TOLD}/{session}", msgspec.json.encode(told))


def read_told(share: SharedFolder, sessions: Iterable[str]) -> dict[str, WorkerReport]:
    """What these workers last said."""
    found: dict[str, WorkerReport] = {}
    for session in sessions:
        try:
            found[session] = msgspec.json.decode(share.read(f"{TOLD}/{session}"), type=WorkerReport)
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            continue
    return found


CLAIMS, TERMS, WORKERS = "claims", "terms", "workers"
_KEPT = 4
_PATIENCE = 60
"""Looks at a claim that cannot be read before it is taken for nobody's."""
_LOOKS_SECONDS = 3.0
"""How long a worker is watched, at least, before it is held to be dead: its clock, or the server's, may have jumped."""


class ClaimsView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an owner says of a shard."""

    claim: int
    changes: int = 0
    busy: bool = True
    """Whether anything of it is queued, delayed, leased or on its way to other shards."""
    counts: Counts = Counts()
    lanes: RegionView = RegionView()


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who has a shard; without a session nobody has, and `view` is what the last owner left."""

    nonce: str
    session: str = ""
    term: int = 0
    view: ClaimsView | None = None


class Beat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker tells the others, again and again: as long as it does, its claims stand."""

    session: str
    worker: str
    at: float
    """The server's time, as the worker knows it."""
    number: int = 0
    hungry: bool = False
    """Whether it has nothing to fetch."""
    stored: int = 0
    """Pages that it has stored in this life."""
    shards: dict[int, ClaimsView] = {}
    region: str = ""
    life: str = ""
    """The process: see `folder_life`."""
    pulse: Heartbeat | None = None


class Standing(NamedTuple):
    """The newest claim of a shard."""

    number: int
    claim: Claim


_encode = msgspec.json.Encoder().encode
_decode_claim = msgspec.json.Decoder(Claim).decode
_decode_beat = msgspec.json.Decoder(Beat).decode
_NOBODY = Standing(0, Claim(nonce=""))


def new_session(worker: str) -> str:
    """The name of one life of a worker, fit for a file."""
    return f"{quote(worker, safe='', errors='surrogatepass')[:150]}~{secrets.token_hex(6)}"


class Claims:
    """The claims of all shards. A shard's newest claim says who has it; a new one is made by one of all who try."""

    def __init__(self, share: SharedFolder, shards: int) -> None:
        self._share = share
        self._unreadable: Counter[str] = Counter()
        self._views: dict[int, ClaimsView] = {}
        """What the last owner said of shards that we have claimed and not opened yet."""
        self.newest: dict[int, Standing] = dict.fromkeys(range(shards), _NOBODY)

    def look(self, *, fresh: bool = False) -> None:
        """Read what has changed."""
        numbers: dict[int, int] = {}
        for name in self._share.names(CLAIMS, fresh=fresh):
            first, _, last = name.partition("-")
            if first.isdigit() and last.isdigit():
                numbers[int(first)] = max(int(last), numbers.get(int(first), 0))
        for shard, number in numbers.items():
            if shard in self.newest and number > self.newest[shard].number:
                claim = self._claim(_name(shard, number))
                if claim is not None:
                    self.newest[shard] = Standing(number, claim)

    def _claim(self, name: str) -> Claim | None:
        try:
            return _decode_claim(self._share.read(name))
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            # Being written, on a file system without links; or its writer died of it, and it is nobody's.
            self._unreadable[name] += 1
            return Claim(nonce="", session="?") if self._unreadable[name] > _PATIENCE else None

    def take(self, shard: int, after: int, session: str, term: int, view: ClaimsView | None = None) -> int:
        """Follow a claim with one of ours, or of nobody; its number, or 0 if somebody was faster."""
        claim = Claim(nonce=secrets.token_hex(8), session=session, term=term, view=view)
        number = after + 1
        before = self.newest[shard]
        if session and before.number == after and before.claim.view is not None:
            self._views[shard] = before.claim.view
        if not self._share.claim(_name(shard, number), _encode(claim)):
            self.look(fresh=True)
            # Ours, from a time when the folder failed us before we had looked.
            return number if self._is(shard, number, session) else 0
        # Claims of long ago are swept: a number that is free again is not the newest.
        self.look(fresh=True)
        if self.newest[shard].number > number:
            return 0
        self.newest[shard] = Standing(number, claim)
        for old in range(max(1, number - 2 * _KEPT), number - _KEPT):
            self._share.remove(_name(shard, old))
        return number

    def opened(self, shard: int) -> None:
        """From now on only its owner knows what is in a shard."""
        self._views.pop(shard, None)

    def return_unopened(self, shard: int, claim: int) -> None:
        """Give up a claim of ours to a shard that was not opened: what its last owner said of it is still true."""
        view = self._views.pop(shard, None)
        self.take(shard, claim, "", 0, view and msgspec.structs.replace(view, claim=claim + 1))

    def _is(self, shard: int, number: int, session: str) -> bool:
        newest = self.newest[shard]
        return newest.number == number and newest.claim.session == session

    def next_term(self) -> int:
        """A number that is larger than all that were given before, to anybody."""
        given = max((int(name) for name in self._share.names(TERMS, fresh=True) if name.isdigit()), default=0)
        while not self._share.claim(f"{TERMS}/{given + 1:010}", secrets.token_bytes(8)):
            given += 1
        for old in range(max(1, given - 2 * _KEPT), given - _KEPT):
            self._share.remove(f"{TERMS}/{old:010}")
        return given + 1


def _name(shard: int, number: int) -> str:
    return f"{CLAIMS}/{shard:04}-{number:010}"


class Peers:
    """The workers of a job, as one of them, or a visitor, sees them."""

    def __init__(self, share: SharedFolder, *, lease_seconds: float, every_seconds: float) -> None:
        self._share = share
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._seen: dict[str, tuple[int, float]] = {}
        """Session -> the number of its last heartbeat, and for how long it was watched since then."""
        self._looked_at = -1e18
        self.beats: dict[str, Beat] = {}
        self.live: frozenset[str] = frozenset()

    def look(self, *, monotonic: float, epoch: float) -> None:
        """Read all heartbeats, and tell the living from the dead.

        A worker that has looked away for long, since it was stopped itself, cannot tell: the others may have been
        stopped with it, and get the time to send a heartbeat first."""
        gap, self._looked_at = monotonic - self._looked_at, monotonic
        if gap > 2 * self._every_seconds:
            gap = self._every_seconds / 2
        beats: dict[str, Beat] = {}
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

    def tell(self, beat: Beat) -> float:
        """Let the others know; the server's time."""
        return self._share.put(f"{WORKERS}/{beat.session}", _encode(beat))

    def forget(self, session: str) -> None:
        """A life is over: its claims do not stand any more."""
        self._share.remove(f"{WORKERS}/{session}")
        self._share.remove(f"{TOLD}/{session}")
        self.beats.pop(session, None)
        self.live -= {session}

    def sweep(self, *, epoch: float, older_than_seconds: float, needed: frozenset[str]) -> None:
        """Forget those who have been silent for long and hold nothing."""
        for session, beat in list(self.beats.items()):
            if session not in self.live and session not in needed and epoch - beat.at > older_than_seconds:
                self.forget(session)

    def holders(self, newest: Mapping[int, Standing]) -> dict[int, str]:
        """The living owner of each shard that has one."""
        return {shard: found.claim.session for shard, found in newest.items() if found.claim.session in self.live}
