"""Links that cross shards: files in the inbox of the job, named after the shard that they are for."""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from gossamer.frontier.folder_job import INBOX, REFUSED
from gossamer.frontier.folder_share import SharedFolder
from gossamer.model import Request

log = logging.getLogger("gossamer.frontier")
_MOST_LINKS = 5000
_LOOKED_AT = 16
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Request]).decode


class Post:
    """Sends requests to the owners of other shards, and fetches those that were sent to ours."""

    def __init__(self, share: SharedFolder) -> None:
        self._share = share
        self._number = 0

    def send(self, letters: dict[int, list[Request]], *, epoch: float) -> None:
        """Put requests where the owners of their shards will find them; it is durable when this returns."""
        for shard, requests in letters.items():
            for start in range(0, len(requests), _MOST_LINKS):
                self._number += 1
                # Read in this order: first sent, first queued.
                name = f"{shard:04}-{int(epoch * 1e6):017}-{self._number:06}-{secrets.token_hex(4)}"
                self._share.put(f"{INBOX}/{name}", _encode(requests[start : start + _MOST_LINKS]))

    def waiting(self, *, fresh: bool = False) -> dict[int, list[str]]:
        """The letters that nobody has taken yet, by shard."""
        found: dict[int, list[str]] = defaultdict(list)
        for name in self._share.names(INBOX, fresh=fresh):
            shard = name.partition("-")[0]
            found[int(shard) if shard.isdigit() else -1].append(name)
        return found

    def read(self, names: Iterable[str], most: int) -> tuple[list[Request], list[str]]:
        """The requests of letters, until there are so many, and which letters. One that cannot be read is put aside."""
        requests: list[Request] = []
        taken: list[str] = []
        for name in names:
            if len(requests) >= most:
                break
            requests += self._read(name)
            taken.append(name)
        return requests, taken

    def _read(self, name: str) -> Sequence[Request]:
        try:
            return _decode(self._share.read(f"{INBOX}/{name}"))
        except FileNotFoundError:
            return ()
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read and was put into %s: %s", name, self._share.root / REFUSED, error)
            (self._share.root / INBOX / name).replace(self._share.root / REFUSED / name)
            return ()

    def sites(self, shards: Iterable[int]) -> dict[int, int]:
        """How many sites the letters to these shards are about, as far as a few of them tell."""
        waiting = self.waiting()
        found = {}
        for shard in shards:
            sites: set[str] = set()
            for name in waiting.get(shard, [])[:_LOOKED_AT]:
                with suppress(FileNotFoundError, msgspec.MsgspecError):
                    sites |= {request.site for request in _decode(self._share.read(f"{INBOX}/{name}"))}
            found[shard] = len(sites)
        return found

    def done(self, names: Iterable[str]) -> None:
        """Throw away letters whose requests are written down."""
        for name in names:
            self._share.remove(f"{INBOX}/{name}")
