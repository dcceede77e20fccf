"""Near-duplicate pages: SimHash fingerprints of the main text, and which pages count as copies."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, NamedTuple

from siphashc import siphash

from gossamer import urls
from gossamer.cut import drops_text
from gossamer.engine.traps import place_of, prefix_of
from gossamer.extract.page import Page
from gossamer.extract.text import main_text, text_outside_links
from gossamer.model import Lease
from gossamer.settings import Settings

NEAR = 3
"""Max bits in which the SimHashes of two near-duplicates differ."""
_KEY = b"gossamer simhash"
_WORD = re.compile(r"\w+")
_MOST_WORDS = 1024
_BITS = (1 << 64) - 1


def text_digest(text: str) -> str:
    """Return a short digest of a text; empty for no text."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest() if text else ""


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without those that contain a digit (dates, prices, session ids)."""
    return [word for word in _WORD.findall(text.lower()) if word.isalpha()]


def simhash(text: str) -> int | None:
    """Return a 64-bit SimHash over the pairs of neighboring words; None for a text without words.

    Texts that differ in a few words differ in a few bits; those that differ in numbers only are equal."""
    return simhash_of(some_words(text))


def some_words(text: str) -> list[str]:
    """Return the words of a text that go into its SimHash: about the first thousand."""
    return words(text[: _MOST_WORDS * 16])[:_MOST_WORDS]


def simhash_of(found: list[str]) -> int | None:
    """Return the SimHash of these words."""
    if not found:
        return None
    hashes = [int(siphash(_KEY, " ".join(pair))) for pair in zip(found, [*found[1:], ""], strict=True)]
    return _majority(hashes)


def _majority(hashes: list[int]) -> int:
    """Return the bits that are set in more than half of the numbers.

    All 64 bits are counted at once with full adders: a column of numbers of one weight becomes one number of that
    weight and a column of twice the weight. That takes a third of the time of counting bit by bit."""
    wanted, counts, column = len(hashes) // 2 + 1, [], hashes
    while column:
        carried: list[int] = []
        while len(column) > 1:
            if len(column) == 2:
                column.append(0)
            whole = len(column) - len(column) % 3
            kept = column[whole:]
            for start in range(0, whole, 3):
                one, two, three = column[start : start + 3]
                either = one ^ two
                kept.append(either ^ three)
                carried.append((one & two) | (either & three))
            column = kept
        counts.append(column[0])
        column = carried
    above, equal = 0, _BITS
    for weight in reversed(range(max(len(counts), wanted.bit_length()))):
        bits = counts[weight] if weight < len(counts) else 0
        if wanted >> weight & 1:
            equal &= bits
        else:
            above |= equal & bits
            equal &= ~bits
    return above | equal


def are_near(one: int, other: int) -> bool:
    """Return whether two SimHashes belong to near-duplicates."""
    return (one ^ other).bit_count() <= NEAR


_MOST_PATHS = 10_000


_FEWEST_WORDS = 32
"""Min words of a near-duplicate: a page with less text may be all images or numbers."""


class TextFingerprint(NamedTuple):
    """Fingerprints of a page's main text; empty and None where they were not computed."""

    digest: str = ""
    path_simhash: int | None = None
    """SimHash of the main text, if the page may be a copy of the last page of its path."""
    query_simhash: int | None = None
    """SimHash of the text outside links, if the page's query may be one of an endless series of its path."""
    simhash: int | None = None
    """SimHash of the main text, if near-duplicates are searched among all pages."""
    has_enough_text: bool = False
    """Whether there is enough text to call the page a copy."""


class TextFingerprints:
    """Stores the last title of each path: pages whose titles differ by more than numbers are no copies."""

    def __init__(self, settings: Settings) -> None:
        self._for_changes = bool(settings.recrawl)
        self._for_copies = settings.alike_pages > 0
        self._for_all = settings.dedupe
        self._titles: dict[str, str] = {}

    def at(self, page: Page) -> TextFingerprint:
        """Return the fingerprints of a page's text."""
        if not page.is_html or drops_text(page.cut):
            # Two pages that were cut near their beginning would look like copies of one another.
            return TextFingerprint()
        is_like_last, query_simhash = False, None
        if self._for_copies:
            target, origin = urls.path_query(page.url), urls.origin(page.url)
            is_like_last = self._has_last_title(page, origin + prefix_of(target))
            if (place := place_of(target)) and self._has_last_title(page, f"?{origin}{place}"):
                query_simhash = simhash(text_outside_links(page.tree))
        if not is_like_last and not self._for_changes and not self._for_all:
            return TextFingerprint(query_simhash=query_simhash)
        text = main_text(page.tree)
        digest = text_digest(text) if self._for_changes else ""
        if not is_like_last and not self._for_all:
            return TextFingerprint(digest, query_simhash=query_simhash)
        words = some_words(text)
        bits = simhash_of(words)
        return TextFingerprint(
            digest,
            bits if is_like_last else None,
            query_simhash,
            bits if self._for_all else None,
            self._for_all and len(words) >= _FEWEST_WORDS,
        )

    def _has_last_title(self, page: Page, place: str) -> bool:
        title = " ".join(words(page.title))
        last = self._titles.get(place)
        if last is None and len(self._titles) >= _MOST_PATHS:
            self._titles.clear()
        self._titles[place] = title
        return last == title


_STATE_NAME = "kept"
_MOST = 256
_UNSAVED = 8
_STATE_KEY = 0xFFFF_FFFF


class NearDuplicates:
    """The SimHashes of the last pages stored for a leased site, each with half of its page's key.

    Each lane has its own entry in the memo, so that it has one writer: SimHash and key in 24 hexadecimal digits, most
    recently seen last. Pages stored by other lanes are visible with the next lease."""

    def __init__(self, lease: Lease) -> None:
        self._name = f"{_STATE_NAME}.{lease.lane}"
        self._own = _read(lease.memo.get(self._name, ""))
        self._others = [
            pair
            for name, text in lease.memo.items()
            if name.startswith(f"{_STATE_NAME}.") and name != self._name
            for pair in _read(text)
        ]
        self._unsaved = 0
        self._last = lease.requests[-1].key if lease.requests else 0

    def saw(self, key: int, simhash: int | None) -> int | None:
        """Return the SimHash of the page that this page is a copy of; None for a page to store.

        A page is no copy of its own last version, and a page without a SimHash is no copy."""
        if simhash is None:
            return None
        key &= _STATE_KEY
        found = next((pair for pair in self._own if are_near(pair[0], simhash)), None)
        if found is not None:
            self._own.remove(found)
            self._own.append((simhash, key) if found[1] == key else found)
            return None if found[1] == key else found[0]
        found = next((pair for pair in self._others if are_near(pair[0], simhash)), None)
        if found is not None and found[1] != key:
            return found[0]
        self._own = [pair for pair in self._own if pair[1] != key][-_MOST + 1 :]
        self._own.append((simhash, key))
        self._unsaved += 1
        return None

    def note(self, key: int) -> dict[str, Any]:
        """Return the changes to the memo; not after every page, but at the latest with the last one of the lease."""
        if not self._unsaved or (self._unsaved < _UNSAVED and key != self._last):
            return {}
        self._unsaved = 0
        return {self._name: "".join(f"{simhash:016x}{half:08x}" for simhash, half in self._own)}


def _read(text: Any) -> list[tuple[int, int]]:
    if not isinstance(text, str):
        return []
    return [(int(text[i : i + 16], 16), int(text[i + 16 : i + 24], 16)) for i in range(0, len(text) - 23, 24)]
