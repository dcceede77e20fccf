"""Which pages of a site are near-duplicates of pages that were kept, as far back as the site's memo goes."""

from __future__ import annotations

from typing import Any

from gossamer.extract.fingerprint import are_near
from gossamer.model import Lease

COPIES = "kept"
_MOST = 256
_UNSAVED = 8
_STATE_KEY = 0xFFFF_FFFF


class NearDuplicates:
    """The SimHashes of the last pages of a leased site that were kept, each with half of its page's key.

    A lane has an entry of its own in the memo, so that it has one writer: SimHash and key in 24 hexadecimal digits,
    the one that was met last at the end. What other lanes keep meanwhile is known with the next lease."""

    def __init__(self, lease: Lease) -> None:
        self._name = f"{COPIES}.{lease.lane}"
        self._own = _read(lease.memo.get(self._name, ""))
        self._others = [
            pair
            for name, text in lease.memo.items()
            if name.startswith(f"{COPIES}.") and name != self._name
            for pair in _read(text)
        ]
        self._unsaved = 0
        self._last = lease.requests[-1].key if lease.requests else 0

    def saw(self, key: int, simhash: int | None) -> int | None:
        """The SimHash of the page that the page with this one is a copy of; None for a page that is to be kept.

        A page is no copy of its own last version, and one without a SimHash of none."""
        if simhash is None:
            return None
        likeness, key = simhash, key & _STATE_KEY
        found = next((pair for pair in self._own if are_near(pair[0], likeness)), None)
        if found is not None:
            self._own.remove(found)
            self._own.append((likeness, key) if found[1] == key else found)
            return None if found[1] == key else found[0]
        found = next((pair for pair in self._others if are_near(pair[0], likeness)), None)
        if found is not None and found[1] != key:
            return found[0]
        self._own = [pair for pair in self._own if pair[1] != key][-_MOST + 1 :]
        self._own.append((likeness, key))
        self._unsaved += 1
        return None

    def note(self, key: int) -> dict[str, Any]:
        """What of the memo changes; not for every page, but never later than with the last one of the lease."""
        if not self._unsaved or (self._unsaved < _UNSAVED and key != self._last):
            return {}
        self._unsaved = 0
        return {self._name: "".join(f"{likeness:016x}{half:08x}" for likeness, half in self._own)}


def _read(text: Any) -> list[tuple[int, int]]:
    if not isinstance(text, str):
        return []
    return [(int(text[i : i + 16], 16), int(text[i + 16 : i + 24], 16)) for i in range(0, len(text) - 23, 24)]
