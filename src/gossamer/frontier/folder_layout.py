"""Which shard a site is in, for the whole life of a job: a row of shards for each region, the first for the others."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from gossamer.frontier.regions import region_of
from gossamer.model import Request

_REMEMBERED = 1 << 16


class Layout:
    """`each` shards in a row. The rules are those that the job was made with: with others, sites that are known would
    be looked for in shards that know nothing of them."""

    def __init__(self, each: int, regions: Mapping[str, Sequence[str]] | None = None) -> None:
        self._each = each
        self._rules = regions or {}
        self._rows = ["", *sorted(self._rules)]
        self.count = each * len(self._rows)
        self.shard_of = lru_cache(_REMEMBERED)(self._shard_of)

    def _shard_of(self, site: str) -> int:
        place = zlib.crc32(site.encode("utf-8", "surrogatepass")) % self._each
        return self._each * self._rows.index(region_of(self._rules, site)) + place

    def region(self, shard: int) -> str:
        """The region of a shard's sites; empty if anybody may fetch them."""
        return self._rows[shard // self._each]

    def rows(self, region: str) -> list[tuple[str, range]]:
        """The shards that a worker of this region may have, row by row."""
        found = [(name, range(self._each * row, self._each * (row + 1))) for row, name in enumerate(self._rows)]
        return [(name, shards) for name, shards in found if name in ("", region)]

    def by_shard(self, requests: Iterable[Request]) -> dict[int, list[Request]]:
        """Requests by the shard of their site."""
        sorted_out: dict[int, list[Request]] = defaultdict(list)
        for request in requests:
            sorted_out[self.shard_of(request.site)].append(request)
        return sorted_out

    def may_have(self, shard: int, region: str) -> bool:
        """Whether a shard is for workers of this region."""
        return self.region(shard) in ("", region)
