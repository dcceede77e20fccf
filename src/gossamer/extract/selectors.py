"""Selections: the results of `page.css(...)` and `page.xpath(...)`, and methods to get values from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from re import Pattern
from typing import Any, NamedTuple, TypeVar, overload

from turbohtml import CData, Document, Element, Node, SelectorSyntaxError, Text, XPath
from turbohtml.convert import css_to_xpath

from gossamer.errors import ExtractError
from gossamer.extract import xml

Match = Node | str
Default = TypeVar("Default")
Variable = str | float | bool | Element | Iterable[Element]

_PSEUDO = re.compile(r"::(?:(text)|attr\(\s*([^\s()]+)\s*\))\s*\Z", re.IGNORECASE)
_ANY_PSEUDO = re.compile(r"::[a-zA-Z-]+(?:\([^)]*\))?")
_QUOTES = "\"'"
_COMBINATORS = (">", "+", "~")
_SPACES = " \t\n\f\r"
_IN_SCOPE = ":is(:scope, :scope *)"
_STRING = r"""(?:"[^"]*"|'[^']*')"""
_OWN = re.compile(rf"{_STRING}|:contains\(\s*({_STRING}|[\w-]+)\s*\)|:(empty)(?![\w-])", re.IGNORECASE)
_WORDS = re.compile(rf"attribute::\*\[name\(\) = '--contains'\] = ({_STRING}|concat\((?:{_STRING}|,)*\))")
_EMPTY = "attribute::*[name() = '--empty']"
EXAMPLE = "as in 'div.price > span::text'"
NAMESPACES = {
    "re": "http://exslt.org/regular-expressions",
    "set": "http://exslt.org/sets",
    "svg": "http://www.w3.org/2000/svg",
    "math": "http://www.w3.org/1998/Math/MathML",
}


# These return lists of strings; text inside two selected elements appears once.
_TEXT: Callable[..., list[str]] = XPath("$found/text()")  # type: ignore[assignment]
_DEEP_TEXT: Callable[..., list[str]] = XPath("$found//text()")  # type: ignore[assignment]


class SelectorPart(NamedTuple):
    """One selector of a comma list: the elements, and what to take from them."""

    query: str
    """Empty for the context itself."""
    inner: str
    """The selector relative to an element: its leftmost part is that element or a descendant."""
    path: str = ""
    """The equivalent XPath where CSS is not enough."""
    text: bool = False
    attribute: str = ""
    deep: bool = False
    """`p ::text` takes all descendant text, `p::text` only direct text of the element."""


class Selection(Sequence["Selection"]):
    """A list of elements, or of strings from `::text`, `::attr(name)`, and XPath, in document order.

    `get` and `getall` return strings: the value, or an element's HTML."""

    __slots__ = ("_found", "_is_xml")

    def __init__(self, found: Sequence[Match] = (), *, is_xml: bool = False) -> None:
        self._found = list(found)
        self._is_xml = is_xml

    def css(self, query: str) -> Selection:
        """Select by a CSS selector within the elements of this selection, including the elements themselves."""
        query = xml.css_of(query) if self._is_xml else query
        return self._with(
            _unique(hit for found in self._found if isinstance(found, Node) for hit in _css(found, query))
        )

    def xpath(self, query: str, *, namespaces: Mapping[str, str] | None = None, **variables: Variable) -> Selection:
        """Select by an XPath expression, evaluated from each element of this selection.

        `$name` is a variable: `row.xpath("//a[@id=$id]", id=wanted)` needs no quoting of `wanted`."""
        nodes = [found for found in self._found if isinstance(found, Node)]
        if self._is_xml and nodes:
            query = xml.xpath_of(query, nodes[0], namespaces)
        return self._with([hit for node in nodes for hit in _xpath(node, query, namespaces, variables)])

    @overload
    def get(self) -> str | None: ...
    @overload
    def get(self, default: Default) -> str | Default: ...
    def get(self, default: Any = None) -> Any:
        """Return the first result as a string; `default` if there is none."""
        return _string(self._found[0]) if self._found else default

    def getall(self) -> list[str]:
        """Return all results as strings."""
        return [_string(found) for found in self._found]

    def re(self, pattern: str | Pattern[str]) -> list[str]:
        """Apply a regular expression to each result: the group `extract`, else all groups, else the whole match."""
        expression = _pattern(pattern)
        return [
            text for found in self._found for match in expression.finditer(_string(found)) for text in _groups(match)
        ]

    @overload
    def re_first(self, pattern: str | Pattern[str]) -> str | None: ...
    @overload
    def re_first(self, pattern: str | Pattern[str], default: Default) -> str | Default: ...
    def re_first(self, pattern: str | Pattern[str], default: Any = None) -> Any:
        """Return the first string that `re` finds; `default` if there is none."""
        expression = _pattern(pattern)
        for found in self._found:
            for match in expression.finditer(_string(found)):
                for text in _groups(match):
                    return text
        return default

    @property
    def attrib(self) -> dict[str, str]:
        """The attributes of the first element; empty if there is none."""
        return next((_attributes(found) for found in self._found if isinstance(found, Node)), {})

    @property
    def tag(self) -> str:
        """The tag name of the first result; empty for strings."""
        first = self._found[0] if self._found else ""
        return first.tag if isinstance(first, Element) else ""

    @overload
    def __getitem__(self, index: int) -> Selection: ...
    @overload
    def __getitem__(self, index: slice) -> Selection: ...
    def __getitem__(self, index: int | slice) -> Selection:
        return self._with(self._found[index] if isinstance(index, slice) else [self._found[index]])

    def __iter__(self) -> Iterator[Selection]:
        return (self._with([found]) for found in self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def _with(self, found: Sequence[Match]) -> Selection:
        return Selection(found, is_xml=self._is_xml)

    def __repr__(self) -> str:
        shown = ", ".join(f"{_string(found)[:40]!r}" for found in self._found[:3])
        return f"<Selection of {len(self._found)}: {shown}{', ...' if len(self._found) > 3 else ''}>"


def css(document: Document, query: str, *, is_xml: bool = False) -> Selection:
    """Select by a CSS selector in a document; ExtractError names an invalid selector."""
    return Selection(_css(document, xml.css_of(query) if is_xml else query), is_xml=is_xml)


def xpath(
    document: Document,
    query: str,
    namespaces: Mapping[str, str] | None,
    variables: Mapping[str, Variable],
    *,
    is_xml: bool = False,
) -> Selection:
    """Select by an XPath expression from the root element of a document."""
    root = document.root
    return Selection([root] if root is not None else [], is_xml=is_xml).xpath(query, namespaces=namespaces, **variables)


def check(query: str) -> str:
    """Return the selector if it is valid; otherwise raise an ExtractError that names it."""
    _css(Element("p"), query)
    return query


def _css(node: Node, query: str) -> list[Match]:
    hits: list[Match] = []
    for part in _parts(query):
        elements = _elements(node, part, query)
        if part.text:
            hits += _DEEP_TEXT(node, found=elements) if part.deep else _TEXT(node, found=elements)
        elif part.attribute:
            hits += [value for element in elements if (value := _attribute(element, part.attribute)) is not None]
        else:
            hits += elements
    return hits


def _elements(node: Node, part: SelectorPart, query: str) -> list[Element]:
    """Select in a whole document, or at and below one of its elements."""
    try:
        if part.path:
            hits = node.xpath(part.path)
            return [hit for hit in hits if isinstance(hit, Element)] if isinstance(hits, list) else []
        if isinstance(node, Document):
            return node.select(part.query) if part.query else [node.root] if node.root is not None else []
        if not isinstance(node, Element):
            return []
        if not part.query:
            return [node]
        found = node.select(part.inner)
        return [node, *found] if node.matches(part.inner) else found
    except SelectorSyntaxError as error:
        raise ExtractError(f"invalid CSS selector {query!r}: {_reason(error)}", hint=EXAMPLE) from error


def _path(query: str) -> str:
    """Translate `:contains("words")`, which CSS lacks, or `:empty`, which counts blanks in browsers, to XPath.

    Both pass through the translation as attribute tests. Empty for other selectors."""
    marked = _OWN.sub(_mark, query)
    if marked == query:
        return ""
    try:
        path = css_to_xpath(marked)
    except SelectorSyntaxError:
        # Evaluating the original selector raises an error that shows it as written.
        return ""
    return _WORDS.sub(r"contains(., \1)", path).replace(_EMPTY, "(not(*) and not(text()))")


def _mark(found: re.Match[str]) -> str:
    if found[1]:
        return rf"[\--contains={found[1]}]"
    return r"[\--empty]" if found[2] else found[0]


def _reason(error: SelectorSyntaxError) -> str:
    """Return the reason of a syntax error without the selector, which may be a translated one."""
    return str(error).rpartition(": ")[2].partition(" at position")[0]


def _xpath(
    node: Node, query: str, namespaces: Mapping[str, str] | None, variables: Mapping[str, Variable]
) -> list[Match]:
    """Evaluate an expression: nodes, strings, or a single number or boolean as a string."""
    known = {**NAMESPACES, **namespaces} if namespaces else NAMESPACES
    try:
        found = node.xpath(query, namespaces=known, extensions=_EXTENSIONS, **variables)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise ExtractError(f"invalid XPath expression {query!r}: {str(error).removeprefix('xpath: ')}") from None
    if isinstance(found, bool):
        return ["true" if found else "false"]
    if isinstance(found, float):
        return [str(int(found)) if found.is_integer() else str(found)]
    return [found] if isinstance(found, str) else found


def _has_class(context: Any, *names: str) -> bool:
    """Whether the element has all these classes: `//p[has-class("a", "b")]`."""
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("has-class takes class names as strings")
    node = context.context_node
    return isinstance(node, Element) and set(names).issubset((node.attr("class") or "").split())


_EXTENSIONS: Any = {(None, "has-class"): _has_class}


@lru_cache(maxsize=512)
def _parts(query: str) -> tuple[SelectorPart, ...]:
    """Split a comma list; selectors that take the same from their elements become one part, in document order."""
    parts: dict[tuple[bool, str, bool], list[str]] = {}
    for one in _split(query):
        pseudo = _PSEUDO.search(one)
        if pseudo is None:
            if _ANY_PSEUDO.search(_without_quotes(one)) or not one.strip():
                raise ExtractError(
                    f"invalid CSS selector {query!r}",
                    hint="the supported pseudo-elements are ::text and ::attr(name), at the end",
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
    return tuple(_part(queries, key) for key, queries in parts.items())


def _part(queries: list[str], key: tuple[bool, str, bool]) -> SelectorPart:
    if "" in queries:
        return SelectorPart("", "", "", *key)
    query = ", ".join(queries)
    return SelectorPart(query, ", ".join(map(_scoped, queries)), _path(query), *key)


def _scoped(query: str) -> str:
    """Limit the leftmost part of a selector to the context or its descendants, as `inner` is: CSS looks further out."""
    depth, quote, escaped = 0, "", False
    for index, letter in enumerate(query):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif depth == 0 and (letter in _SPACES or letter in _COMBINATORS):
            return f"{query[:index]}{_IN_SCOPE}{query[index:]}" if index else query
    return query


def _split(query: str) -> list[str]:
    """Split a selector list at commas outside brackets and quotes."""
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


def _attributes(node: Node) -> dict[str, str]:
    return {name: node.attr(name) or "" for name in node.attrs} if isinstance(node, Element) else {}


def _attribute(element: Element, name: str) -> str | None:
    """Return the value of an attribute by lower-case name; SVG attributes have capitals, as in `viewBox`."""
    value = element.attr(name)
    if value is None:
        value = next((element.attr(own) or "" for own in element.attrs if own.lower() == name), None)
    return value


def _string(found: Match) -> str:
    if isinstance(found, str):
        return found
    return found.data if isinstance(found, Text | CData) else found.html


def _unique(hits: Iterator[Match]) -> list[Match]:
    """Drop elements found from two nested contexts; strings may repeat."""
    seen: set[Node] = set()
    kept: list[Match] = []
    for hit in hits:
        if isinstance(hit, str):
            kept.append(hit)
        elif hit not in seen:
            seen.add(hit)
            kept.append(hit)
    return kept


def _pattern(pattern: str | Pattern[str]) -> Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ExtractError(f"invalid regular expression {pattern!r}: {error}") from None


def _groups(match: re.Match[str]) -> list[str]:
    if "extract" in match.re.groupindex:
        return [match["extract"] or ""]
    return [group or "" for group in match.groups()] if match.re.groups else [match[0]]
