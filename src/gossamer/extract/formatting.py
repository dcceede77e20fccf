"""A guard for the two places where HTML makes much of little: formatting that is left open, and repeated `<html>` and
`<body>` tags.

The standard opens unclosed formatting (`<b>`, `<font ...>`) again in every later block, cell and paragraph, so 2,000
tags of `<b x=1>` before 4,000 of `<p>` are eight million elements from 34 KB. Browsers build them all. A page that
could do that is read by the tokenizer first, and where it would, its formatting tags are left out: the text and all
other elements stay.

Each further `<html>` or `<body>` adds its attributes to those of the first, and the parser copies the whole list:
66,000 tags of `<html a1>`, `<html a2>`, ... are 1 MB of markup and more than 18 GB of memory. On a page that could do
that, all but the first few of these tags are left out."""

from __future__ import annotations

import re
from collections import Counter

from turbohtml import TokenType, tokenize

MOST_REOPENED = 2_000_000
"""Elements that a page may have beyond its own tags."""
MOST_MERGED = 4_000_000
"""Attributes that repeated `<html>` and `<body>` tags may copy, of 24 bytes each."""
_MOST_ROOTS = 8
"""So many of these tags any page may have."""
_ATTRIBUTE_BYTES = 3
"""An attribute of a long list takes no fewer bytes of markup."""
_DROPPED = "</>"
"""What stands for a tag that is left out. A parser ignores it, but what is around it does not become one tag."""
_BARE = 36
"""How many open tags without attributes are opened again at most: three of each of the twelve names."""
_NAMES = "b|big|code|em|font|i|s|small|strike|strong|tt|u"
_TAG = re.compile(rf"</?(?:{_NAMES})(?:[\t\n\f\r /][^>]*+)?(?:>|\Z)", re.IGNORECASE)
_START = re.compile(
    rb"<(?:[bBiIuUsS]|[bB][iI][gG]|[eE][mM]|[tT]{2}|[fF][oO][nN][tT]|[cC][oO][dD][eE]|[sS][mM][aA][lL]{2}"
    rb"|[sS][tT][rR](?:[iI][kK][eE]|[oO][nN][gG]))([\t\n\f\r />])"
)
_ROOT = re.compile(rb"<[hHbB][tToO][mMdD][lLyY][\t\n\f\r /]")
_ROOT_TAG = re.compile(r"<(?:html|body)(?:[\t\n\f\r /][^>]*+)?(?:>|\Z)", re.IGNORECASE)
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
    """Whether a body could make too many elements or attributes, by a count that is cheap and rather too high."""
    tags = body.count(b"<")
    if _merges_too_many(tags, len(body)) and _merges_too_many(len(_ROOT.findall(body)), len(body)):
        return True
    if tags * tags <= 4 * MOST_REOPENED:
        return False
    ends = _START.findall(body)
    bare = ends.count(b">")
    return (len(ends) - bare + min(bare, _BARE)) * tags > MOST_REOPENED


def without_excess(markup: str) -> tuple[str, int]:
    """The markup without the tags that would make too many elements or attributes, and how many tags that are."""
    markup, roots = _without_roots(markup)
    if count_reopened(markup) <= MOST_REOPENED:
        return markup, roots
    markup, dropped = _TAG.subn(_DROPPED, markup)
    return markup, roots + dropped


def _merges_too_many(roots: int, size: int) -> bool:
    return roots > _MOST_ROOTS and roots * size > _ATTRIBUTE_BYTES * MOST_MERGED


def _without_roots(markup: str) -> tuple[str, int]:
    """The markup without all but the first `<html>` and `<body>` tags, if their attributes would be too many."""
    raw = markup.encode("utf-8", "replace")
    if not _merges_too_many(len(_ROOT.findall(raw)), len(raw)) or merged(markup) <= MOST_MERGED:
        return markup, 0
    left = iter(range(_MOST_ROOTS))
    dropped = 0

    def drop(found: re.Match[str]) -> str:
        nonlocal dropped
        if next(left, None) is not None:
            return found[0]
        dropped += 1
        return _DROPPED

    return _ROOT_TAG.sub(drop, markup), dropped


def merged(markup: str) -> int:
    """How many attributes repeated `<html>` and `<body>` tags would copy, at most; it ends where they are too many."""
    names: set[str] = set()
    total = hidden = 0
    is_foreign = False
    for token in tokenize(markup):
        kind, name = token.type, token.tag or ""
        if kind is TokenType.START_TAG:
            if name in ("html", "body"):
                names.update(each for each, _ in token.attrs or ())
                total += len(names) + hidden
            is_foreign = is_foreign or name in _FOREIGN
        elif kind is TokenType.TEXT and is_foreign and "<" in (text := token.data or ""):
            # In pictures the tokenizer may see text where the parser sees tags.
            hidden += len(text) // 2
            total += len(_ROOT_TAG.findall(text)) * (len(names) + hidden)
        if total > MOST_MERGED:
            break
    return total


def count_reopened(markup: str) -> int:
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
        if total > MOST_REOPENED:
            break
    return total


def _leave(frames: list[tuple[str, dict[str, list[str]]]]) -> None:
    """End a fence. What is open inside of it stays, since the parser may not have seen a fence here at all."""
    _, inside = frames.pop()
    for name, tags in inside.items():
        frames[-1][1].setdefault(name, []).extend(tags)
