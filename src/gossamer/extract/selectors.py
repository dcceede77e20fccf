"""Selections: what `page.css(...)` and `page.xpath(...)` find, and how to read values out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from re import Pattern
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from gossamer.errors import ExtractError

if TYPE_CHECKING:
    from lxml import etree

    Match = LexborNode | etree._Element | str
Default = TypeVar("Default")

_PSEUDO = re.compile(r"::(?:(text)|attr\(\s*([^\s()]+)\s*\))\s*\Z", re.IGNORECASE)
_ANY_PSEUDO = re.compile(r"::[a-zA-Z-]+(?:\([^)]*\))?")
_QUOTES = "\"'"
_COMBINATORS = (">", "+", "~")
EXAMPLE = "as in 'div.price > span::text'"


class Part(NamedTuple):
    """One selector of a comma list: which elements, and what of them."""

    query: str
    text: bool = False
    attribute: str = ""
    deep: bool = False
    """`p ::text` takes the text of all that is inside, `p::text` only what stands directly in the element."""


class Selection(Sequence["Selection"]):
    """A list of elements, or of the strings that `::text`, `::attr(name)` and XPath give, in the order of the page.

    `get` and `getall` give strings: the value, or an element's HTML."""

    __slots__ = ("_found",)

    def __init__(self, found: Sequence[Match] = ()) -> None:
        self._found = list(found)

    def css(self, query: str) -> Selection:
        """What a CSS selector finds in the elements of this selection, themselves included."""
        return Selection(
            _unique(hit for found in self._found if not isinstance(found, str) for hit in _css(found, query))
        )

    def xpath(self, query: str) -> Selection:
        """What an XPath expression finds from each element; from one found by CSS, it sees only what is inside."""
        elements = [found for found in self._found if not isinstance(found, str)]
        return Selection([hit for element in elements for hit in xpath(_tree(element), query)._found])

    @overload
    def get(self) -> str | None: ...
    @overload
    def get(self, default: Default) -> str | Default: ...
    def get(self, default: Any = None) -> Any:
        """The first result as a string; `default` if there is none."""
        return _string(self._found[0]) if self._found else default

    def getall(self) -> list[str]:
        """All results as strings."""
        return [_string(found) for found in self._found]

    def re(self, pattern: str | Pattern[str]) -> list[str]:
        """What the pattern finds in each result: the group `extract`, else all groups, else the whole match."""
        expression = _pattern(pattern)
        return [
            text for found in self._found for match in expression.finditer(_string(found)) for text in _groups(match)
        ]

    @overload
    def re_first(self, pattern: str | Pattern[str]) -> str | None: ...
    @overload
    def re_first(self, pattern: str | Pattern[str], default: Default) -> str | Default: ...
    def re_first(self, pattern: str | Pattern[str], default: Any = None) -> Any:
        """The first string that `re` would give; `default` if there is none."""
        expression = _pattern(pattern)
        for found in self._found:
            for match in expression.finditer(_string(found)):
                for text in _groups(match):
                    return text
        return default

    @property
    def attrib(self) -> dict[str, str]:
        """The attributes of the first element; empty if there is none."""
        return next((_attributes(found) for found in self._found if not isinstance(found, str)), {})

    @property
    def tag(self) -> str:
        """The name of the first result's element; empty for strings."""
        first = self._found[0] if self._found else ""
        return "" if isinstance(first, str) else str(first.tag)

    @overload
    def __getitem__(self, index: int) -> Selection: ...
    @overload
    def __getitem__(self, index: slice) -> Selection: ...
    def __getitem__(self, index: int | slice) -> Selection:
        return Selection(self._found[index] if isinstance(index, slice) else [self._found[index]])

    def __iter__(self) -> Iterator[Selection]:
        return (Selection([found]) for found in self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def __repr__(self) -> str:
        shown = ", ".join(f"{_string(found)[:40]!r}" for found in self._found[:3])
        return f"<Selection of {len(self._found)}: {shown}{', ...' if len(self._found) > 3 else ''}>"


def css(root: LexborNode | None, query: str) -> Selection:
    """What a CSS selector finds below, and at, a node; an ExtractError names a bad selector."""
    return Selection(_css(root if root is not None else _empty(), query))


def xpath(root: etree._Element | None, query: str) -> Selection:
    """What an XPath expression finds from an element."""
    from gossamer.extract import trees

    return Selection(trees.xpath(root, query))


def check(query: str) -> str:
    """The selector itself, if it is one; otherwise an ExtractError that names it."""
    _css(_empty(), query)
    return query


def _empty() -> LexborNode | None:
    return LexborHTMLParser("").root


def _css(found: LexborNode | etree._Element | None, query: str) -> list[Match]:
    if found is None:
        return []
    hits: list[Match] = []
    for part in _parts(query):
        elements = _lexbor_css(found, part.query) if isinstance(found, LexborNode) else None
        if elements is None:
            # What the one parser does not know, as :scope and :lang(), the other may.
            hits += _lxml_css(found, part, query)
        elif part.text:
            hits += _texts(elements, deep=part.deep)
        elif part.attribute:
            hits += [value for element in elements if (value := _attribute(element, part.attribute)) is not None]
        else:
            hits += elements
    return hits


def _lexbor_css(node: LexborNode, query: str) -> list[LexborNode] | None:
    """The elements that a selector finds, each once; None if the parser does not understand it."""
    if not query:
        return [node]
    try:
        found = node.css(query)
    except SelectolaxError:
        return None
    except ValueError as error:
        raise ExtractError(f"bad CSS selector {query!r}", hint=EXAMPLE) from error
    # An element that matches two selectors of a list is reported twice.
    return list({hit.mem_id: hit for hit in found}.values()) if "," in query else found


def _lxml_css(found: LexborNode | etree._Element, part: Part, query: str) -> list[Match]:
    from gossamer.extract import trees

    path = trees.path_of(part.query, query) if part.query else "."
    element = _tree(found)
    if part.text:
        path = f"({path}){'//' if part.deep else '/'}text()"
    elif part.attribute:
        path = f"({path})/@*[name() = '{part.attribute}']"
    return [*trees.xpath(element, path)]


@lru_cache(maxsize=512)
def _parts(query: str) -> tuple[Part, ...]:
    """A comma list in parts; those that want the same of their elements are one part, to keep the page's order."""
    parts: dict[tuple[bool, str, bool], list[str]] = {}
    for one in _split(query):
        pseudo = _PSEUDO.search(one)
        if pseudo is None:
            if _ANY_PSEUDO.search(_without_quotes(one)) or not one.strip():
                raise ExtractError(
                    f"bad CSS selector {query!r}",
                    hint="of pseudo-elements there are ::text and ::attr(name), at the end",
                )
            parts.setdefault((False, "", False), []).append(one.strip())
            continue
        before = one[: pseudo.start()]
        bare = before.strip()
        if bare.endswith(_COMBINATORS):
            before = bare = f"{bare} *"
        deep = bool(pseudo[1]) and (not bare or before != before.rstrip())
        if pseudo[2] and before != before.rstrip() and bare:
            bare = f"{bare} *"
        key = (bool(pseudo[1]), (pseudo[2] or "").strip(_QUOTES).lower(), deep)
        parts.setdefault(key, []).append(bare or ("" if pseudo[1] else "*"))
    return tuple(Part("" if "" in queries else ", ".join(queries), *key) for key, queries in parts.items())


def _split(query: str) -> list[str]:
    """A selector list cut at its commas, but not inside brackets or quotes."""
    found, depth, quote, start = [], 0, "", 0
    for index, letter in enumerate(query):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(query[start:index])
            start = index + 1
    return [*found, query[start:]]


def _without_quotes(query: str) -> str:
    return re.sub(r"\"[^\"]*\"|'[^']*'", "", query)


def _texts(elements: list[LexborNode], *, deep: bool) -> list[str]:
    if not deep:
        return [
            node.text_content or ""
            for element in elements
            for node in element.iter(include_text=True)
            if node.is_text_node
        ]
    # An element inside another that matches too would give its text twice.
    nodes = {
        node.mem_id: node for element in elements for node in element.traverse(include_text=True) if node.is_text_node
    }
    return [node.text_content or "" for node in nodes.values()]


def _attributes(element: LexborNode | etree._Element) -> dict[str, str]:
    if isinstance(element, LexborNode):
        return {name: value or "" for name, value in element.attributes.items()} if element.is_element_node else {}
    return {str(name): str(value) for name, value in element.items()}


def _attribute(element: LexborNode, name: str) -> str | None:
    """The value of an attribute, given in lower case; those of pictures have capitals, as in `viewBox`."""
    attributes = _attributes(element)
    if name in attributes:
        return attributes[name]
    return next((value for own, value in attributes.items() if own.lower() == name), None)


def _string(found: Match) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, LexborNode):
        return found.html or ""
    from gossamer.extract import trees

    return trees.markup(found)


def _tree(found: LexborNode | etree._Element) -> etree._Element | None:
    if not isinstance(found, LexborNode):
        return found
    from gossamer.extract import trees

    return trees.fragment(found.html or "", found.tag or "div")


def _unique(hits: Iterator[Match]) -> list[Match]:
    """Without the elements that are found from two nested ones; strings may well repeat."""
    seen: set[int] = set()
    kept: list[Match] = []
    for hit in hits:
        mark = hit.mem_id if isinstance(hit, LexborNode) else 0
        if not mark or mark not in seen:
            seen.add(mark)
            kept.append(hit)
    return kept


def _pattern(pattern: str | Pattern[str]) -> Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ExtractError(f"bad regular expression {pattern!r}: {error}") from None


def _groups(match: re.Match[str]) -> list[str]:
    if "extract" in match.re.groupindex:
        return [match["extract"] or ""]
    return [group or "" for group in match.groups()] if match.re.groups else [match[0]]
