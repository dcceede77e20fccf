"""A guard against two HTML amplification attacks: unclosed formatting, and repeated `<html>` and `<body>` tags.

The standard reopens unclosed formatting (`<b>`, `<font ...>`) in every later block, cell, and paragraph: 2,000 tags of
`<b x=1>` before 4,000 of `<p>` are eight million elements from 34 KB. Browsers build them all. A page that could do
this is tokenized first. If it would, its formatting tags are dropped; the text and all other elements stay.

Each further `<html>` or `<body>` adds its attributes to those of the first, and the parser copies the whole list:
66,000 tags of `<html a1>`, `<html a2>`, ... are 1 MB of markup and more than 18 GB of memory. On a page that could do
this, all but the first few of these tags are dropped."""

from __future__ import annotations

import re
from collections import Counter

from turbohtml import TokenType, tokenize

MAX_REOPENED = 2_000_000
"""Max elements that reopened formatting may add to a page."""
MAX_MERGED = 4_000_000
"""Max attributes, of 24 bytes each, that repeated `<html>` and `<body>` tags may copy."""
_MOST_ROOTS = 8
"""Number of these tags that is always allowed."""
_ATTRIBUTE_BYTES = 3
"""Min bytes of markup for an attribute in a long list."""
_DROPPED = "</>"
"""Replaces a dropped tag. The parser ignores it, and the text around it does not join into one tag."""
_BARE = 36
"""Max number of open tags without attributes that are reopened: three of each of the twelve names."""
_NAMES = "b|big|code|em|font|i|s|small|strike|strong|tt|u"
_TAG = re.compile(rf"</?(?:{_NAMES})(?:[\t\n\f\r /][^>]*+)?(?:>|\Z)", re.IGNORECASE)
_START = re.compile(
    rb"<(?:[bBiIuUsS]|[bB][iI][gG]|[eE][mM]|[tT]{2}|[fF][oO][nN][tT]|[cC][oO][dD][eE]|[sS][mM][aA][lL]{2}"
    rb"|[sS][tT][rR](?:[iI][kK][eE]|[oO][nN][gG]))([\t\n\f\r />])"
)
_WITH_ATTRIBUTES = re.compile(rb"<(?:([hHbB][tToO][mMdD][lLyY])|[bBcCeEfFiIsStTuU][a-zA-Z]{0,5})[\t\n\f\r /]")
"""All formatting tags that may have attributes, and many others; as a group, `<html>` and `<body>` tags."""
_TAG_BYTES = 3
"""The bytes that the shortest tag takes."""
_ROOT = re.compile(rb"<[hHbB][tToO][mMdD][lLyY][\t\n\f\r /]")
_ROOT_TAG = re.compile(r"<(?:html|body)(?:[\t\n\f\r /][^>]*+)?(?:>|\Z)", re.IGNORECASE)
_FORMATTING = frozenset(_NAMES.split("|"))
_FENCE_NAMES = """
    table td th caption template object marquee applet select svg math foreignobject desc title mi mo mn ms mtext
    annotation-xml
"""
_FENCES = frozenset(_FENCE_NAMES.split())
"""An end tag inside one of these closes no formatting outside it."""
_CELLS = frozenset({"td", "th", "caption"})
_FOREIGN = frozenset({"svg", "math"})
_MADE = frozenset({"p", "br"})
"""End tags that create an element on their own."""


def is_suspicious(body: bytes) -> bool:
    """Whether a body might create too many elements or attributes, by a cheap upper bound.

    Parsing a page takes little longer than looking at each of its tags, so one look has to do for nearly all pages."""
    found = _WITH_ATTRIBUTES.findall(body)
    roots = len(found) - found.count(b"")
    if _merges_too_many(roots, len(body)):
        return True
    most = len(found) - roots + _BARE
    if most * len(body) <= _TAG_BYTES * MAX_REOPENED:
        return False
    tags = body.count(b"<")
    if most * tags <= MAX_REOPENED:
        return False
    ends = _START.findall(body)
    bare = ends.count(b">")
    return (len(ends) - bare + min(bare, _BARE)) * tags > MAX_REOPENED


def drop_excess_tags(markup: str) -> tuple[str, int]:
    """Drop the tags that would create too many elements or attributes; return the markup and how many were dropped."""
    markup, roots = _drop_repeated_roots(markup)
    if count_reopened(markup) <= MAX_REOPENED:
        return markup, roots
    markup, dropped = _TAG.subn(_DROPPED, markup)
    return markup, roots + dropped


def _merges_too_many(roots: int, size: int) -> bool:
    return roots > _MOST_ROOTS and roots * size > _ATTRIBUTE_BYTES * MAX_MERGED


def _drop_repeated_roots(markup: str) -> tuple[str, int]:
    """Drop all but the first `<html>` and `<body>` tags if their attributes would be too many."""
    raw = markup.encode("utf-8", "replace")
    if not _merges_too_many(len(_ROOT.findall(raw)), len(raw)) or count_merged(markup) <= MAX_MERGED:
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


def count_merged(markup: str) -> int:
    """Count, at most, the attributes copied by repeated `<html>` and `<body>` tags; stops once there are too many."""
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
            # In SVG and MathML the tokenizer may see text where the parser sees tags.
            hidden += len(text) // 2
            total += len(_ROOT_TAG.findall(text)) * (len(names) + hidden)
        if total > MAX_MERGED:
            break
    return total


def count_reopened(markup: str) -> int:
    """Count, at most, the elements created by reopened formatting; stops once there are too many."""
    # One frame for each fence: the open formatting inside it, by name and by the whole tag.
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
                # The standard keeps at most three equal tags open.
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
                # In SVG and MathML the tokenizer may see tags where the parser sees text.
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
        if total > MAX_REOPENED:
            break
    return total


def _leave(frames: list[tuple[str, dict[str, list[str]]]]) -> None:
    """End a fence. Formatting opened inside stays open, since the parser may not have seen a fence here."""
    _, inside = frames.pop()
    for name, tags in inside.items():
        frames[-1][1].setdefault(name, []).extend(tags)
