"""Shared by the parser fuzzers: texts made of a format's tokens, and a test for linear time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

LINE_ENDS = ("\n", "\r", "\r\n", "\n\n")
QUICK_SECONDS = 0.5
ODD = (
    "",
    "\0",
    "\ufeff",
    "\ud800",
    "\u202e",
    "é",
    "日",
    "😀",
    "%",
    "%00",
    "%2e",
    "\x7f",
    "\x1b",
    " ",
    "\t",
    "\\",
    "9" * 25,
)


def texts(*pieces: str, most: int = 30) -> st.SearchStrategy[str]:
    """Texts of the given pieces, odd characters, numbers and whatever comes to hypothesis' mind."""
    piece = st.one_of(st.sampled_from(pieces or ODD), st.sampled_from(ODD), st.text(max_size=8), st.integers().map(str))
    return st.lists(piece, max_size=most).map("".join)


def octets(*pieces: bytes, most: int = 30) -> st.SearchStrategy[bytes]:
    """The same in bytes."""
    piece = st.one_of(
        st.sampled_from(pieces),
        st.binary(max_size=8),
        st.sampled_from(ODD).map(lambda text: text.encode("utf-8", "replace")),
    )
    return st.lists(piece, max_size=most).map(b"".join)


def pumped(pieces: Sequence[str]) -> st.SearchStrategy[Callable[[int], str]]:
    """Makers of long texts: a beginning, a few pieces again and again up to a length, and an end."""
    some = st.lists(st.sampled_from((*pieces, *ODD[:1], "a", " ", "\x01")), min_size=1, max_size=3).map("".join)

    def make(first: str, again: str, last: str) -> Callable[[int], str]:
        return lambda size: first + again * (size // max(1, len(again))) + last

    return st.builds(make, some, some, some)


def takes_linear_work(parse: Callable[[str], Any], text: Callable[[int], str], *, size: int = 40_000) -> None:
    """Fails if four times the text costs much more than four times the CPU; what is quick anyway is not looked at.

    Quadratic work costs sixteen times as much. The bound is half of that, and has to be passed three times: other
    programs on the machine make single times longer."""
    if _cpu(parse, text(2 * size)) < QUICK_SECONDS:
        return
    for _ in range(3):
        small = min(_cpu(parse, text(size // 2)) for _ in range(3))
        large = min(_cpu(parse, text(2 * size)) for _ in range(2))
        if large < 8 * small:
            return
    raise AssertionError(
        f"{small:.3f} s of CPU for {size // 2} characters, {large:.3f} s for four times as many: {text(60)!r}"
    )


def _cpu(parse: Callable[[str], Any], text: str) -> float:
    began = time.process_time()
    parse(text)
    return time.process_time() - began
