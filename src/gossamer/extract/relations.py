"""Relations of a page: what its Link headers (RFC 8288) and its `<link>` elements say about other URLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from turbohtml import Document

from gossamer import urls
from gossamer.extract.links import encode_query

MAX_HEADER = 65_536
MAX_RELATIONS = 1000
_SPACES = " \t"


class Relation(NamedTuple):
    """One URL, how the page is related to it, and what else is said of it (hreflang, type, media, title ...)."""

    url: str
    rels: frozenset[str]
    attributes: dict[str, str]


def header_relations(headers: Iterable[str], url: str) -> Iterator[Relation]:
    """What the Link headers of the answer from `url` say of that URL itself, in their order.

    References are relative to the URL that answered, whatever a `<base>` says. A link with an `anchor` elsewhere is
    about another resource, and left out; so is what is not http(s)."""
    for header in headers:
        for target, parameters in parse_link(header[:MAX_HEADER]):
            rels = frozenset(parameters.pop("rel", "").lower().split())
            anchor = parameters.pop("anchor", None)
            if anchor is not None and urls.join(url, anchor) != urls.join(url, ""):
                continue
            parameters.pop("rev", None)
            found = urls.join(url, target) if rels else None
            if found is not None:
                yield Relation(found, rels, parameters)


def element_relations(tree: Document, base: str, *, encoding: str = "utf-8") -> Iterator[Relation]:
    """What the `<link>` elements in the head of a page say: in a body, anybody may have written them.

    Their queries are written in the encoding of the page."""
    for node in tree.select("head link[rel][href]")[:MAX_RELATIONS]:
        attributes = {name: node.attr(name) or "" for name in node.attrs}
        rels = frozenset(attributes.pop("rel", "").lower().split())
        href = attributes.pop("href", None)
        found = urls.join(base, encode_query(href, encoding)) if rels and href is not None else None
        if found is not None:
            yield Relation(found, rels, attributes)


def parse_link(value: str) -> list[tuple[str, dict[str, str]]]:
    """The targets of a Link header and their parameters, by the algorithm of RFC 8288; of each name the first counts.

    What follows a part that is no link is not read."""
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while len(found) < MAX_RELATIONS:
        position = _past(value, position, _SPACES + ",")
        end = value.find(">", position)
        if value[position : position + 1] != "<" or end < 0:
            break
        target = value[position + 1 : end]
        parameters, position = _parameters(value, end + 1)
        found.append((target, parameters))
    return found


def _parameters(value: str, position: int) -> tuple[dict[str, str], int]:
    found: dict[str, str] = {}
    extended: dict[str, str] = {}
    while True:
        position = _past(value, position, _SPACES)
        if value[position : position + 1] != ";":
            break
        start = position = _past(value, position + 1, _SPACES)
        position = _until(value, position, _SPACES + "=;,")
        name = value[start:position].lower()
        position = _past(value, position, _SPACES)
        text = ""
        if value[position : position + 1] == "=":
            position = _past(value, position + 1, _SPACES)
            if value[position : position + 1] == '"':
                text, position = _quoted(value, position + 1)
            else:
                start = position
                position = _until(value, position, ";,")
                text = value[start:position].rstrip(_SPACES)
        if not name.endswith("*"):
            found.setdefault(name, text)
        elif (decoded := _extended(text)) is not None:
            extended.setdefault(name[:-1], decoded)
    found.pop("", None)
    return {**found, **extended}, position


def _quoted(value: str, position: int) -> tuple[str, int]:
    """The text up to the closing quote, or to the end, without its backslashes; and what comes after it."""
    parts: list[str] = []
    while position < len(value):
        start = position
        position = _until(value, position, '"\\')
        parts.append(value[start:position])
        if value[position : position + 1] == '"':
            return "".join(parts), position + 1
        parts.append(value[position + 1 : position + 2])
        position += 2
    return "".join(parts), len(value)


def _extended(text: str) -> str | None:
    """A value as RFC 8187 writes it, `UTF-8'en'%e2%82%ac`; None if it is none."""
    charset, mark, rest = text.partition("'")
    _, second, escaped = rest.partition("'")
    if not mark or not second or charset.lower() not in ("utf-8", "iso-8859-1"):
        return None
    try:
        return unquote_to_bytes(escaped).decode(charset)
    except UnicodeDecodeError:
        return None


def _past(value: str, position: int, letters: str) -> int:
    while position < len(value) and value[position] in letters:
        position += 1
    return position


def _until(value: str, position: int, letters: str) -> int:
    while position < len(value) and value[position] not in letters:
        position += 1
    return position
