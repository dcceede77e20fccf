"""A guard for the one place where HTML makes much of little: formatting that is left open.

The standard opens unclosed formatting (`<b>`, `<font ...>`) again in every later block, cell and paragraph, so 2,000
tags of `<b x=1>` before 4,000 of `<p>` are eight million elements from 34 KB. Browsers build them all. A page that
could do that is read by the tokenizer first, and where it would, its formatting tags are left out: the text and all
other elements stay."""

from __future__ import annotations

import re
from collections import Counter

from turbohtml import TokenType, tokenize

MOST_COPIES = 2_000_000
"""Elements that a page may have beyond its own tags."""
_BARE = 36
"""How many open tags without attributes are opened again at most: three of each of the twelve names."""
_NAMES = "b|big|code|em|font|i|s|small|strike|strong|tt|u"
_TAG = re.compile(rf"</?(?:{_NAMES})(?:[\t\n\f\r /][^>]*+)?(?:>|\Z)", re.IGNORECASE)
_START = re.compile(
    rb"<(?:[bBiIuUsS]|[bB][iI][gG]|[eE][mM]|[tT]{2}|[fF][oO][nN][tT]|[cC][oO][dD][eE]|[sS][mM][aA][lL]{2}"
    rb"|[sS][tT][rR](?:[iI][kK][eE]|[oO][nN][gG]))([\t\n\f\r />])"
)
_FORMATTING = frozenset(_NAMES.split("|"))
_FENCE_NAMES = """
    table td th caption template object marquee applet select svg math foreignobject desc title mi mo mn ms mtext
    annotation-xml
"""
_FENCES = frozenset(_FENCE_NAMES.split())
"""An end tag inside of one of these closes no formatting outside of it."""
_CELLS = frozenset({"td", "th", "caption"})
_FOREIGN = frozenset({"svg", "math"})
_MADE = frozenset({"p", "br"})
"""Whose end tags alone make an element."""


def is_suspicious(body: bytes) -> bool:
    """Whether a body could make too many elements, by a count that is cheap and rather too high."""
    tags = body.count(b"<")
    if tags * tags <= 4 * MOST_COPIES:
        return False
    ends = _START.findall(body)
    bare = ends.count(b">")
    return (len(ends) - bare + min(bare, _BARE)) * tags > MOST_COPIES


def without_excess(markup: str) -> tuple[str, int]:
    """The markup without its formatting tags where these would make too many elements, and how many tags that are."""
    return _TAG.subn("", markup) if copies(markup) > MOST_COPIES else (markup, 0)


def copies(markup: str) -> int:
    """How many elements formatting would be opened again as, at most; the count ends where it is too many."""
    # One for each fence: the formatting that is open inside of it, by name, and by the whole tag.
    frames: list[tuple[str, dict[str, list[str]]]] = [("", {})]
    same: Counter[str] = Counter()
    total = opened = 0
    is_foreign = False
    for token in tokenize(markup, capture_source=True):
        kind, name = token.type, token.tag or ""
        if kind is TokenType.START_TAG:
            total += opened
            if name in _FORMATTING:
                tag = token.source or name
                # The standard keeps three of the same.
                if same[tag] < 3:
                    same[tag] += 1
                    frames[-1][1].setdefault(name, []).append(tag)
                    opened += 1
            elif name in _FENCES:
                is_foreign = is_foreign or name in _FOREIGN
                if name in _CELLS and frames[-1][0] in _CELLS:
                    _leave(frames)
                frames.append((name, {}))
        elif kind is TokenType.END_TAG:
            total += opened if name in _MADE else 0
            if name in _FORMATTING:
                # In pictures the tokenizer may see tags where the parser sees text.
                if not is_foreign and (tags := frames[-1][1].get(name)):
                    same[tags.pop()] -= 1
                    opened -= 1
            elif name in _FENCES:
                while name == "table" and frames[-1][0] in _CELLS:
                    _leave(frames)
                if frames[-1][0] == name:
                    _leave(frames)
        elif kind is TokenType.TEXT:
            total += opened
            if is_foreign and "<" in (token.data or ""):
                opened += len(_TAG.findall(token.data or ""))
        if total > MOST_COPIES:
            break
    return total


def _leave(frames: list[tuple[str, dict[str, list[str]]]]) -> None:
    """End a fence. What is open inside of it stays, since the parser may not have seen a fence here at all."""
    _, inside = frames.pop()
    for name, tags in inside.items():
        frames[-1][1].setdefault(name, []).extend(tags)
