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
_BITS = (1 << 64) - 1


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
    hashes = [int(siphash(_KEY, " ".join(pair))) for pair in zip(found, [*found[1:], ""], strict=True)]
    return _majority(hashes)


def _majority(hashes: list[int]) -> int:
    """The bits that are set in more than half of the numbers.

    All 64 are counted at once: a column of numbers of one weight becomes, by full adders, one number of that weight and
    a column of twice the weight. That is a third of the work of counting bit by bit."""
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
    """Whether two SimHashes are those of near-duplicates."""
    return (one ^ other).bit_count() <= NEAR
