"""Where things are: which shard a site belongs to, and which server a shard; pure, and the same everywhere for ever."""

from __future__ import annotations

from collections.abc import Sequence

from siphashc import siphash

_KEY = b"gossamer: shards"


def shard_of(site: str, shards: int) -> int:
    """The shard of a site."""
    return int(siphash(_KEY, site)) % shards if shards > 1 else 0


def placement(shards: int, servers: Sequence[str]) -> list[str]:
    """The server of each shard, by rendezvous hashing in equal shares: a shard whose best server is full has its next.

    A further server takes its share from the others; few shards move besides."""
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
