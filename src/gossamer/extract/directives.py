"""Directives for robots: what a page asks of crawlers by X-Robots-Tag headers and `<meta name=robots>`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from time import gmtime, strftime

import msgspec

from gossamer.extract.timestamps import http_time, w3c_time

MAX_LENGTH = 8192
_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_DEFAULTS = frozenset({"", "all", "index", "follow"})
_AGENT = re.compile(r"[A-Za-z0-9_*.-]+(?: bot)?")
_SEPARATOR = re.compile("[,;]")
_DATE_LIKE = re.compile(r"\s*\d")


class Directives(msgspec.Struct, frozen=True):
    """What a page asks of us: `noindex`, `nofollow`, `noarchive`, `nosnippet`, `max-snippet:20` ..., in lower case."""

    words: tuple[str, ...] = ()
    """Each once, in the order they came; `none` is `noindex` and `nofollow`."""
    unavailable_after: float | None = None
    """Epoch seconds after which the page is not to be shown any more: from then on, `noindex` is among the words."""

    def __str__(self) -> str:
        return ", ".join(self.words)

    def __contains__(self, word: str) -> bool:
        return word.lower() in self.words

    @property
    def noindex(self) -> bool:
        """Whether the page is not to be shown in search results."""
        return "noindex" in self.words

    @property
    def nofollow(self) -> bool:
        """Whether none of the page's links is to be followed."""
        return "nofollow" in self.words


NONE = Directives()


def read(headers: Sequence[str], metas: Iterable[tuple[str, str]], *, agent: str, now: float) -> Directives:
    """The sum of what X-Robots-Tag headers, and `<meta>` elements (name in lower case, content), ask of all or `agent`.

    As search engines do, the more restrictive wish counts, whether it is for all robots or for this one."""
    ours = {"", "*", "robots", agent.lower()}
    found: dict[str, None] = {}
    until: float | None = None
    parts = [part for header in headers for part in _header_parts(header[:MAX_LENGTH])]
    for name, content in metas:
        # A page has a dozen of them, and few are for robots.
        if name and name in ours:
            parts += [(name, *part) for part in _content_parts(content[:MAX_LENGTH])]
    for name, word, value in parts:
        if name not in ours:
            continue
        if word == "unavailable_after":
            at = _time(value)
            until = at if until is None or (at is not None and at < until) else until
        elif word == "none":
            found |= {"noindex": None, "nofollow": None}
        elif word not in _DEFAULTS:
            found[f"{word}:{value}" if value else word] = None
    if until is not None:
        found[f"unavailable_after:{_iso(until)}"] = None
        if until <= now:
            found["noindex"] = None
    return Directives(tuple(found), until) if found else NONE


def _header_parts(header: str) -> list[tuple[str, str, str]]:
    """(agent, word, value) of each rule of a header; an agent's name holds up to the next one, or the end."""
    found: list[tuple[str, str, str]] = []
    agent = ""
    for piece in _pieces(header):
        name, colon, rest = piece.partition(":")
        while colon and name.strip().lower() not in _WITH_VALUE and _AGENT.fullmatch(name.strip()):
            agent, piece = name.strip().lower(), rest
            name, colon, rest = piece.partition(":")
        found += [(agent, word, value) for word, value in _rules(piece)]
    return found


def _content_parts(content: str) -> list[tuple[str, str]]:
    return [rule for piece in _pieces(content) for rule in _rules(piece)]


def _pieces(text: str) -> list[str]:
    """The text cut at its commas, but not inside of a date: `unavailable_after: Sunday, 06-Nov-94 08:49:37 GMT`."""
    found: list[str] = []
    is_dated = False
    for piece in _SEPARATOR.split(text):
        if is_dated and _DATE_LIKE.match(piece):
            found[-1] += "," + piece
        else:
            found.append(piece)
            is_dated = "unavailable_after" in piece.lower()
    return found


def _rules(piece: str) -> list[tuple[str, str]]:
    """The rules between two commas: one with a value, or several words, which some put blanks between."""
    name, colon, value = piece.strip().partition(":")
    if colon:
        return [(name.strip().lower(), value.strip().lower())]
    return [(word, "") for word in name.lower().split()]


def _time(text: str) -> float | None:
    """Epoch seconds of a date in the formats of RFC 822, RFC 850 and ISO 8601."""
    return w3c_time(text.upper()) or http_time(text)


def _iso(at: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(at))
