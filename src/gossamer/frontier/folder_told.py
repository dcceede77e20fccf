"""What workers on a folder tell of their sites now and then, so that who looks at the job need not read its logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Any

import msgspec

from gossamer.frontier.folder_share import SharedFolder

if TYPE_CHECKING:
    from gossamer.frontier.folder_owner import FolderSession

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
