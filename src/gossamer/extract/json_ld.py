"""JSON-LD: the text of a block as values, read as leniently as search engines read it."""

from __future__ import annotations

import json
import re
from typing import Any

# Each part runs to its end in one go, closed or not, so that nothing is looked at twice.
_COMMENT = re.compile(r"\"(?:[^\"\\]++|\\.)*+\"?|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?", re.DOTALL)
_COMMA = re.compile(r"\"(?:[^\"\\]++|\\.)*+\"?|,(?=\s*+[}\]])", re.DOTALL)
_OPENINGS, _CLOSINGS = ("<!--", "<![CDATA["), ("-->", "]]>")


def parse(text: str) -> Any:
    """The values of a block; None if it is no JSON.

    Line breaks in strings, comments, commas after the last value and the wrappings of old scripts are wrong, and
    everywhere."""
    text = _unwrapped(text)
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        return None
    except ValueError:
        pass
    plain = _COMMA.sub(_string, _COMMENT.sub(_string, text)).strip().removesuffix(";")
    try:
        return json.loads(plain, strict=False) if plain else None
    except (ValueError, RecursionError):
        return None


def _string(found: re.Match[str]) -> str:
    """What stays of a match: strings. A comment parts what stands around it."""
    return found[0] if found[0][0] == '"' else "" if found[0] == "," else " "


def _unwrapped(text: str) -> str:
    """The text without an HTML comment or a CDATA section around it, which may be hidden behind `//`."""
    text = text.strip().removeprefix("\ufeff")
    for _ in _OPENINGS:
        inner = text[2:].lstrip() if text.startswith("//") else text
        if inner.startswith(_OPENINGS):
            text = inner[9 if inner[2] == "[" else 4 :].lstrip()
        inner = text.removesuffix(";").rstrip()
        if inner.endswith(_CLOSINGS):
            text = inner[:-3].rstrip().removesuffix("//").rstrip()
    return text
