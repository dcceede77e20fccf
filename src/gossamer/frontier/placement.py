"""Placement: pure functions that map a site to its region, shard, and server."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from siphashc import siphash

from gossamer import urls
from gossamer.errors import ConfigError

_KEY = b"gossamer: shards"


def shard_of(site: str, shards: int) -> int:
    """Return the shard of a site."""
    return int(siphash(_KEY, site)) % shards if shards > 1 else 0


def placement(shards: int, servers: Sequence[str]) -> list[str]:
    """Return the server of each shard: rendezvous hashing with equal shares.

    A shard whose best server is full goes to the next best. An added server takes its share from the others, and few
    other shards move."""
    share, rest = divmod(shards, len(servers))
    has = dict.fromkeys(servers, 0)
    found = []
    for shard in range(shards):
        ranked = sorted(servers, key=lambda server: (int(siphash(_KEY, f"{shard} {server}")), server), reverse=True)
        server = next(one for one in ranked if has[one] < share + (rest > 0))
        rest -= has[server] == share
        has[server] += 1
        found.append(server)
    return found


NEAR_SECONDS = 0.05
"""Sites that answer within this time stay: another region could not be much faster."""
FACTOR = 1.5
MARGIN_SECONDS = 0.03
MOST_REGIONS = 64
MOST_SHARDS = 16_384
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PART = re.compile(r"(?:(\d{1,9})(?:-(\d{1,9}))?/)?(\d{1,9})")
_PATTERN = re.compile(r"\*|(?:\*?\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*(?::\d{1,5})?|\[[0-9a-f:.]+\](?::\d{1,5})?")


class ShardRange(NamedTuple):
    """The shards `first` to `last` of `of` in all."""

    first: int
    last: int
    of: int

    @property
    def shards(self) -> range:
        """Return the numbers of these shards."""
        return range(self.first, self.last + 1)

    @property
    def is_all(self) -> bool:
        """Return whether the range covers all shards."""
        return self.first == 0 and self.last == self.of - 1

    def __str__(self) -> str:
        if self.is_all:
            return str(self.of)
        return f"{self.first}{'' if self.first == self.last else f'-{self.last}'}/{self.of}"


def parse_part(text: str) -> ShardRange:
    """Parse a part of the shards: `0-63/256` is a quarter of 256 shards, `7/16` one shard, `256` all of them."""
    found = _PART.fullmatch(text.strip())
    hint = "write FIRST-LAST/TOTAL: --shards 0-63/256"
    if found is None:
        raise ConfigError(f"--shards {text!r}: not a range of shards", hint=hint)
    of = int(found[3])
    if not 1 <= of <= MOST_SHARDS:
        raise ConfigError(f"--shards {text!r}: a job has between 1 and {MOST_SHARDS:,} shards", hint=hint)
    if found[1] is None:
        return ShardRange(0, of - 1, of)
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if last < first:
        raise ConfigError(f"--shards {text!r}: {first} comes after {last}", hint=f"write {last}-{first}/{of}")
    if last >= of:
        raise ConfigError(f"--shards {text!r}: there is no shard {last}", hint=f"they are numbered 0 to {of - 1}")
    return ShardRange(first, last, of)


def region_of(regions: Mapping[str, Sequence[str]], site: str) -> str:
    """Return the region that the rules give a site; empty if no rule matches.

    The most specific pattern wins: the site or host itself, then the longest suffix, then `*`."""
    if not regions:
        return ""
    host = urls.host(site)
    for patterns in _candidates(site, host):
        for region, listed in regions.items():
            if any(pattern in listed for pattern in patterns):
                return region
    return ""


def _candidates(site: str, host: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [(site,), (host,)] if site != host else [(site,)]
    if not urls.is_address(host):
        labels = host.split(".")
        for first in range(len(labels)):
            suffix = ".".join(labels[first:])
            found.append((f".{suffix}", f"*.{suffix}"))
    found.append(("*",))
    return found


def check_regions(regions: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError for region rules that are invalid or contradict each other."""
    seen: dict[str, str] = {}
    for region, patterns in regions.items():
        check_region(region)
        for pattern in patterns:
            if _PATTERN.fullmatch(pattern) is None:
                raise ConfigError(
                    f"regions: {pattern!r} of {region} is not a pattern",
                    hint=_spelling(pattern) or "write .de, www.example.org, *.example.org, or * for the rest",
                )
            plain = pattern.removeprefix("*") if pattern != "*" else pattern
            if seen.setdefault(plain, region) != region:
                raise ConfigError(f"regions: {pattern!r} is listed in both {seen[plain]} and {region}")
    if len(regions) > MOST_REGIONS:
        raise ConfigError(f"regions: {len(regions)} of them; at most {MOST_REGIONS}")


def check_region(name: str) -> str:
    """Return the name of a region; ConfigError if it is invalid."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"region {name!r}: not a name", hint="letters, digits, and . _ - inside: as in eu or us-east")
    return name


def _spelling(pattern: str) -> str:
    """Return the pattern in lower case and punycode, the form in which hosts are compared."""
    star, host = re.fullmatch(r"(\*?\.)?(.*)", pattern, re.DOTALL).groups("")  # type: ignore[union-attr]
    url = urls.normal(f"http://{host}/") if "/" not in host else None
    found = f"{star}{urls.host_port(url)}" if url else ""
    return f"write {found}" if found != pattern and _PATTERN.fullmatch(found) else ""


class RegionMeasure(NamedTuple):
    """What was measured of a site: its times by region, the region it settled in, and the number of moves since."""

    seconds: Mapping[str, float] = {}
    home: str = ""
    moves: int = 0


def place(
    site: str, standing: RegionMeasure, *, here: str, seconds: float, live: Collection[str]
) -> tuple[str, RegionMeasure]:
    """Return the region that should fetch a site that answered `here` within `seconds`, and its new measurements.

    A near site stays. Any other site is tried once from each region with live workers, then settles where it is
    fastest. After that it moves only to a region that is faster by a factor and a margin, and each move doubles the
    factor for the next, so a site cannot move back and forth. A site never moves to a region without live workers."""
    known = {**standing.seconds, here: seconds}
    home, moves = standing.home, standing.moves
    reachable = set(live) | {here}
    if seconds <= NEAR_SECONDS:
        return here, RegionMeasure(known, here, moves)
    untried = sorted(reachable - known.keys())
    if untried and len(known) < MOST_REGIONS:
        # Spread the first moves over the regions.
        return untried[crc32(site.encode()) % len(untried)], RegionMeasure(known, home, moves)
    best = min(sorted(reachable & known.keys()), key=lambda region: (known[region], region != here))
    if home not in reachable:
        # The workers of its region are gone. This move and the move back do not count against the site.
        return best, RegionMeasure(known, best, max(0, moves - 1) if home else 0)
    there, now = known[best], known.get(home, seconds)
    if best != home and now > there * FACTOR * 2.0**moves and now > there + MARGIN_SECONDS:
        return best, RegionMeasure(known, best, moves + 1)
    return home, RegionMeasure(known, home, moves)
