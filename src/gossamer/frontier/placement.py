"""Where things are: which shard a site belongs to, and which server a shard; pure, and the same everywhere for ever."""

from __future__ import annotations

from collections.abc import Iterable

from siphashc import siphash

_KEY = b"gossamer: shards"


def shard_of(site: str, shards: int) -> int:
    """The shard of a site."""
    return int(siphash(_KEY, site)) % shards if shards > 1 else 0


def server_of(shard: int, servers: Iterable[str]) -> str:
    """The server of a shard, by rendezvous hashing: a further server takes shards from the others, no more."""
    return max(servers, key=lambda server: (int(siphash(_KEY, f"{shard} {server}")), server))
