"""Arguments and answers of the Redis scripts as bytes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from gossamer.frontier.packing import as_text, unpack
from gossamer.frontier.placement import region_of
from gossamer.model import Lease, SiteNote
from gossamer.settings import Settings

log = logging.getLogger("gossamer.frontier")


class PackedLinks:
    """The links of one call in wire form, and numbers for the sites that the call mentions.

    Sites and ranks are sent once and referred to by number: most links of a page share a few of them."""

    def __init__(self, unknown: set[int] | None) -> None:
        self.unknown = unknown
        self.names: dict[str, int] = {}
        self.groups: dict[tuple[str, str], int] = {}
        """Site and rank -> the number that stands for them."""
        self.standings: dict[tuple[str, int, int, int], int] = {}
        """Site, priority, depth and hops -> the group that links with these belong to."""
        self.keys: list[int] = []
        self.group_of: list[int] = []
        """The group of each link."""
        self.entries: list[bytes] = []

    def number(self, site: str) -> int:
        """The number that stands for a site in this call."""
        return self.names.setdefault(site, len(self.names) + 1)

    def arguments(self) -> dict[str, Any]:
        """The arguments that describe the links, beside their entries."""
        groups = [part for site, rank in self.groups for part in (self.number(site), rank)]
        return {
            **key_arguments(self.keys),
            "group_of": self.group_of,
            "ends": list(accumulate(map(len, self.entries))),
            "groups": groups,
            "names": list(self.names),
        }


def key_arguments(keys: Sequence[int]) -> dict[str, Any]:
    """Keys in the form of the script.

    Lua numbers are doubles, which cannot hold 63 bits: keys are decimal text there, and the last nine digits travel as
    a number that selects the bucket of the seen set."""
    return {"keys": list(map(str, keys)), "digits": [key % 1_000_000_000 for key in keys]}


def first_values(settings: Settings, site: str) -> dict[str, Any]:
    """The initial values of a site that differ from the defaults: its own settings, and its region."""
    found: dict[str, Any] = {}
    if site in settings.sites:
        own = settings.for_site(site)
        found = {"delay": own.delay, "lanes": own.lanes, "budget": own.budget}
    if settings.regions:
        found["region"] = region_of(settings.regions, site) or None
    return {name: value for name, value in found.items() if value is not None}


def read_lease(found: list[Any], seconds: float) -> tuple[Lease, list[msgspec.Raw]]:
    """Decode a lease; also return the keys of entries that cannot be decoded, which the caller parks."""
    site, lane, token, entries, delay, lanes, robots, memo, suspect = found
    name = text(site)
    requests, unreadable = [], []
    for entry in entries:
        try:
            requests.append(unpack(entry, name))
        except ValueError as error:
            log.error("a request of %s cannot be read and is parked: %s: %.200r", name, error, entry)
            unreadable.append(as_text(entry[:8]))
    lease = Lease(
        site=name,
        lane=int(lane),
        token=int(token),
        requests=tuple(requests),
        ttl=seconds,
        delay=float(delay),
        lanes=int(lanes),
        robots={text(robots[i]): data(robots[i + 1]) for i in range(0, len(robots), 2)},
        memo={text(memo[i]): msgspec.json.decode(memo[i + 1]) for i in range(0, len(memo), 2)},
        suspect=bool(suspect),
    )
    return lease, unreadable


def packed_note(note: SiteNote) -> list[Any]:
    """A note as a list of arguments."""
    robots = [part for origin, rules in (note.robots or {}).items() for part in (origin, as_text(rules))]
    memo = [part for name, value in (note.memo or {}).items() for part in (name, as_text(msgspec.json.encode(value)))]
    packed = [
        str(note.token),
        "" if note.hold is None else str(note.hold),
        "" if note.delay is None else str(note.delay),
        robots,
        memo,
        note.close or "",
    ]
    return packed if note.region is None else [*packed, note.region]


def text(value: Any) -> Any:
    """A string of an answer."""
    return value.decode() if isinstance(value, bytes) else value


def data(value: Any) -> bytes:
    """Bytes of an answer."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
