"""Fingerprints of a page's main text: one that is equal for equal texts, and one that is close for similar ones."""

from __future__ import annotations

import re
from hashlib import blake2b

from siphashc import siphash

NEAR = 3
"""Bits in which the SimHashes of two near-duplicates differ at most."""
_KEY = b"gossamer simhash"
_WORD = re.compile(r"\w+")
_MOST_WORDS = 1024
_LANE = 16
"""Bits in which the votes on one bit of a SimHash are counted: enough for as many words."""


def _spread(byte: int) -> int:
    return sum(1 << (_LANE * bit) for bit in range(8) if byte >> bit & 1)


_SPREAD = tuple(map(_spread, range(256)))


def text_digest(text: str) -> str:
    """A short digest of a text; empty for no text."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest() if text else ""


def words(text: str) -> list[str]:
    """The words of a text, in lower case. What holds a digit is none: dates, prices and session ids are left out."""
    return [word for word in _WORD.findall(text.lower()) if word.isalpha()]


def simhash(text: str) -> int | None:
    """A 64-bit SimHash over the pairs of neighbouring words; None for a text without words.

    Texts that differ in a few words differ in a few bits; those that differ in numbers only are equal."""
    return simhash_of(some_words(text))


def some_words(text: str) -> list[str]:
    """The words of a text that its SimHash goes by: about the first thousand."""
    return words(text[: _MOST_WORDS * 16])[:_MOST_WORDS]


def simhash_of(found: list[str]) -> int | None:
    """The SimHash of such words."""
    if not found:
        return None
    votes = [0] * 8
    features = 0
    for pair in zip(found, [*found[1:], ""], strict=True):
        features += 1
        for place, byte in enumerate(int(siphash(_KEY, " ".join(pair))).to_bytes(8, "little")):
            votes[place] += _SPREAD[byte]
    bits = 0
    for place, counted in enumerate(votes):
        for bit in range(8):
            if 2 * (counted >> (_LANE * bit) & 0xFFFF) > features:
                bits |= 1 << (8 * place + bit)
    return bits


def are_near(one: int, other: int) -> bool:
    """Whether two SimHashes are those of near-duplicates."""
    return (one ^ other).bit_count() <= NEAR
