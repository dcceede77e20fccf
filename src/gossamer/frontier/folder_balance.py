"""Which shards a worker gives away and which it takes, as pure functions of what all workers can see."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

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
