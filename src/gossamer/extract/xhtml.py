"""XHTML, made ready for a parser of HTML."""

from __future__ import annotations

import re

_VOID_NAMES = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_VOID_NAMES.split())
# No part of it takes a `<`, so that the way from each tag to its end is walked once.
_EMPTY = re.compile(r"<([a-zA-Z][^\t\n\r <>/\"'=]*+)((?:[^<>/\"']++|\"[^\"<]*+\"|'[^'<]*+'|/(?!>))*+)/>")


def spelled_out(markup: str) -> str:
    """The markup with an end tag for each element that closes itself: `<script/>` is all of it in XML, not in HTML.

    There, all that follows would be a script."""
    return _EMPTY.sub(_closed, markup)


def _closed(found: re.Match[str]) -> str:
    name = found[1]
    return found[0] if name.lower() in _VOID else f"<{name}{found[2]}></{name}>"
