"""Metadata of a page: title, author, dates, JSON-LD, microdata, and robots directives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import gmtime, strftime
from typing import Any

import msgspec
from turbohtml import Document, Element, Node

from gossamer.extract.dates import http_time, w3c_time
from gossamer.extract.microformats import microformats
from gossamer.extract.rdfa import rdfa

MAX_VISITS = 50_000
"""Limit of visited elements: with itemref, a few may stand for very many."""
_MOST_TEXT = 8 * 1024 * 1024
_MOST_MARKED, _DEEPEST, _FARTHEST = 50_000, 32, 512
_LONGEST_VALUE = 100_000
_SOURCES = {
    "meta": "content", "a": "href", "area": "href", "link": "href", "img": "src", "audio": "src", "video": "src",
    "source": "src", "iframe": "src", "embed": "src", "track": "src", "object": "data", "data": "value",
    "meter": "value", "time": "datetime",
}  # fmt: skip


def microdata(tree: Document) -> list[dict[str, Any]]:
    """Return the top-level items: `type`, `id` if present, and a value for each property.

    A repeated property is a list, and so is `type` with several types; a nested item is a mapping. An item nested in
    itself is "ERROR", as in the standard."""
    marked = tree.select("[itemscope], [itemprop]")
    return _Reader(tree, marked[:_MOST_MARKED]).read() if marked else []


class _Marked:
    """An element with microdata attributes, and such elements below it."""

    __slots__ = ("below", "node", "order")

    def __init__(self, node: Element, order: int) -> None:
        self.node, self.order = node, order
        self.below: list[_Marked] = []


class _Reader:
    """One page."""

    def __init__(self, tree: Document, nodes: list[Element]) -> None:
        self._left, self._text_left = MAX_VISITS, _MOST_TEXT
        self._ids: dict[str, Element] = {}
        wanted = {name for node in nodes for name in (node.attr("itemref") or "").split()}
        if wanted:
            known, named = set(nodes), []
            for node in tree.select("[itemscope], [itemprop], [id]"):
                name = node.attr("id") or ""
                is_wanted = name in wanted and name not in self._ids
                if is_wanted:
                    self._ids[name] = node
                if is_wanted or node in known:
                    named.append(node)
            nodes = named
        self._marked: dict[Node, _Marked] = {node: _Marked(node, order) for order, node in enumerate(nodes)}
        for one in self._marked.values():
            above = self._above(one.node)
            if above is not None:
                above.below.append(one)

    def read(self) -> list[dict[str, Any]]:
        found = []
        for one in self._marked.values():
            if not self._has_room:
                break
            if one.node.attr("itemscope") is not None and one.node.attr("itemprop") is None:
                found.append(self._item(one, ()))
        return found

    def _above(self, node: Element) -> _Marked | None:
        above: Node | None = node.parent
        for _ in range(_FARTHEST):
            if above is None:
                return None
            found = self._marked.get(above)
            if found is not None:
                return found
            above = above.parent
        return None

    def _item(self, one: _Marked, around: tuple[_Marked, ...]) -> dict[str, Any]:
        types = (one.node.attr("itemtype") or "").split()
        item: dict[str, Any] = {"type": types if len(types) > 1 else "".join(types)}
        if identity := (one.node.attr("itemid") or "").strip():
            item["id"] = identity[:_LONGEST_VALUE]
        around = (*around, one)
        for each in self._properties(one):
            for name in dict.fromkeys((each.node.attr("itemprop") or "").split()):
                if not self._has_room:
                    return item
                self._left -= 1
                # A new value for each name: shared values would be serialized several times, beyond the size limit.
                _add(item, name, self._value(each, around))
        return item

    @property
    def _has_room(self) -> bool:
        return self._left > 0 and self._text_left > 0

    def _value(self, one: _Marked, around: tuple[_Marked, ...]) -> str | dict[str, Any]:
        if one.node.attr("itemscope") is not None:
            return "ERROR" if one in around or len(around) >= _DEEPEST else self._item(one, around)
        attribute = _SOURCES.get(one.node.tag)
        given = one.node.attr(attribute) if attribute else None
        text = given if given is not None else one.node.text
        self._text_left -= len(text)
        return " ".join(text.split())[:_LONGEST_VALUE]

    def _properties(self, item: _Marked) -> list[_Marked]:
        """Return the elements that are properties of an item: its descendants, and those named by its itemref."""
        refs = dict.fromkeys((item.node.attr("itemref") or "").split())
        pending = [*item.below, *(self._marked[self._ids[name]] for name in refs if name in self._ids)]
        met, found = {item.node}, []
        while pending and self._left > 0:
            one = pending.pop()
            if one.node in met:
                continue
            met.add(one.node)
            self._left -= 1
            if one.node.attr("itemscope") is None:
                pending += one.below
            if one.node.attr("itemprop") is not None:
                found.append(one)
        return sorted(found, key=lambda one: one.order)


def _add(item: dict[str, Any], name: str, value: Any) -> None:
    if name not in item:
        item[name] = value
    elif isinstance(item[name], list):
        item[name].append(value)
    else:
        item[name] = [item[name], value]


MAX_LENGTH = 8192
_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_DEFAULTS = frozenset({"", "all", "index", "follow"})
_AGENT = re.compile(r"[A-Za-z0-9_*.-]+(?: bot)?")
_SEPARATOR = re.compile("[,;]")
_DATE_LIKE = re.compile(r"\s*\d")


class Directives(msgspec.Struct, frozen=True):
    """The robots directives of a page: `noindex`, `nofollow`, `noarchive`, `max-snippet:20` ..., in lower case."""

    words: tuple[str, ...] = ()
    """Each directive once, in order; `none` is `noindex` and `nofollow`."""
    unavailable_after: float | None = None
    """Epoch seconds of `unavailable_after`, from which on the directives include `noindex`."""

    def __str__(self) -> str:
        return ", ".join(self.words)

    def __contains__(self, word: str) -> bool:
        return word.lower() in self.words

    @property
    def noindex(self) -> bool:
        """Whether the page must not appear in search results."""
        return "noindex" in self.words

    @property
    def nofollow(self) -> bool:
        """Whether no link of the page may be followed."""
        return "nofollow" in self.words


NONE = Directives()


def read(headers: Sequence[str], metas: Iterable[tuple[str, str]], *, agent: str, now: float) -> Directives:
    """Combine the directives of X-Robots-Tag headers and `<meta>` elements that apply to all agents or to `agent`.

    As in search engines, the more restrictive directive wins. `metas` are pairs of name (in lower case) and content."""
    ours = {"", "*", "robots", agent.lower()}
    found: dict[str, None] = {}
    until: float | None = None
    parts = [part for header in headers for part in _header_parts(header[:MAX_LENGTH])]
    for name, content in metas:
        # A page has about a dozen metas, few of them for robots.
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
    """Split a header into (agent, word, value) rules; an agent applies up to the next one or the end."""
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
    """Split at commas, but not inside a date: `unavailable_after: Sunday, 06-Nov-94 08:49:37 GMT`."""
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
    """Return the rules between two commas: one with a value, or several words separated by spaces."""
    name, colon, value = piece.strip().partition(":")
    if colon:
        return [(name.strip().lower(), value.strip().lower())]
    return [(word, "") for word in name.lower().split()]


def _time(text: str) -> float | None:
    """Parse a date of RFC 822, RFC 850, or ISO 8601 to epoch seconds."""
    return w3c_time(text.upper()) or http_time(text)


def _iso(at: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(at))


# Each alternative runs to its end, closed or not, so that no character is scanned twice.
_COMMENT = re.compile(r"\"(?:[^\"\\]++|\\.)*+\"?|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?", re.DOTALL)
_COMMA = re.compile(r"\"(?:[^\"\\]++|\\.)*+\"?|,(?=\s*+[}\]])", re.DOTALL)
_OPENINGS, _CLOSINGS = ("<!--", "<![CDATA["), ("-->", "]]>")


def parse(text: str) -> Any:
    """Parse a JSON-LD block; None if it is not JSON.

    Tolerates common errors: line breaks in strings, comments, trailing commas, and wrappings of old scripts."""
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
    """Keep strings, and replace comments by a space."""
    return found[0] if found[0][0] == '"' else "" if found[0] == "," else " "


def _unwrapped(text: str) -> str:
    """Remove an HTML comment or a CDATA section around the text, also behind `//`."""
    text = text.strip().removeprefix("\ufeff")
    for _ in _OPENINGS:
        inner = text[2:].lstrip() if text.startswith("//") else text
        if inner.startswith(_OPENINGS):
            text = inner[9 if inner[2] == "[" else 4 :].lstrip()
        inner = text.removesuffix(";").rstrip()
        if inner.endswith(_CLOSINGS):
            text = inner[:-3].rstrip().removesuffix("//").rstrip()
    return text


_MOST_BLOCKS, _BLOCK_CHARS, _MOST_THINGS = 32, 1_000_000, 256
_MOST_METAS, _LONGEST = 256, 5000
_OPEN = ("og:", "article:", "twitter:", "book:", "profile:")
_DUBLIN_CORE = ("dc.", "dcterms.")
_ARTICLES = re.compile(r"article|posting|page|report|product|recipe|event|book|video", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?:[T ]\d{2}:\d{2}\S*)?")


class Metadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of a page; fields are empty where the page says nothing. Dates are kept as written."""

    title: str = ""
    author: str = ""
    """Several are separated by commas."""
    date: str = ""
    """Date of publication."""
    modified: str = ""
    language: str = ""
    """For example en or pt-BR."""
    description: str = ""
    site_name: str = ""
    image: str = ""
    canonical: str = ""
    """The canonical URL, as written in the page."""
    keywords: str = ""
    open_graph: dict[str, str] = {}
    """Open Graph and similar properties; of repeated ones, the first."""
    json_ld: list[dict[str, Any]] = []
    """The objects of all JSON-LD blocks, with graphs flattened."""
    microdata: list[dict[str, Any]] = []
    """The top-level microdata items, each with `type`, `id` if present, and the values of its properties."""
    dublin_core: dict[str, str] = {}
    """The `<meta>` elements whose names start with `dc.` or `dcterms.`; of repeated ones, the first."""
    rdfa: list[dict[str, Any]] = []
    """The RDFa subjects as expanded JSON-LD: `@id`, `@type`, and a list of values for each property."""
    microformats: list[dict[str, Any]] = []
    """The top-level microformats items, old and new: `type`, `properties`, and `children` if any."""


def read_metadata(tree: Document, *, title: str = "", language: str = "", base: str = "") -> Metadata:
    """Read all metadata; `title` and `language` are fallbacks for pages that declare none.

    `base` resolves the URLs in RDFa and microformats; other URLs stay as written."""
    named = _metas(tree)
    graph = {name: value for name, value in named.items() if name.startswith(_OPEN)}
    things = list(_json_ld(tree))
    items = microdata(tree)
    article = next((one for one in things if _ARTICLES.search(_text(one.get("@type")))), {})
    marked = next((one for one in items if _ARTICLES.search(_text(one.get("type")))), {})
    return Metadata(
        title=_first(graph.get("og:title"), article.get("headline"), title, graph.get("twitter:title")),
        author=_author(article, marked, named, tree),
        date=_dated(
            article.get("datePublished"),
            graph.get("article:published_time"),
            marked.get("datePublished"),
            *(named.get(name) for name in ("date", "dc.date", "dc.date.issued", "dcterms.created", "pubdate")),
            *(named.get(name) for name in ("parsely-pub-date", "sailthru.date", "citation_publication_date")),
            _attribute(tree, "time[pubdate], article time[datetime], [itemprop=datePublished]", "datetime"),
        ),
        modified=_dated(
            article.get("dateModified"),
            graph.get("article:modified_time"),
            graph.get("og:updated_time"),
            marked.get("dateModified"),
            named.get("last-modified"),
        ),
        language=_language(
            _attribute(tree, "html", "lang"), graph.get("og:locale"), named.get("content-language"), language
        ),
        description=_first(graph.get("og:description"), named.get("description"), article.get("description")),
        site_name=_first(graph.get("og:site_name"), named.get("application-name")),
        image=_first(graph.get("og:image"), graph.get("twitter:image"), article.get("image")),
        canonical=_attribute(tree, "link[rel~=canonical]", "href"),
        keywords=_first(named.get("keywords"), article.get("keywords"), named.get("news_keywords")),
        open_graph=graph,
        json_ld=things,
        microdata=items,
        dublin_core={name: value for name, value in named.items() if name.startswith(_DUBLIN_CORE)},
        rdfa=rdfa(tree, base),
        microformats=microformats(tree, base),
    )


def _metas(tree: Document) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.select("meta[content]")[:_MOST_METAS]:
        name = node.attr("property") or node.attr("name") or node.attr("http-equiv") or ""
        value = " ".join((node.attr("content") or "").split())
        if name and value:
            found.setdefault(name.strip().lower()[:100], value[:_LONGEST])
    return found


def _json_ld(tree: Document) -> Iterator[dict[str, Any]]:
    left = _MOST_THINGS
    for node in tree.select('script[type="application/ld+json" i]')[:_MOST_BLOCKS]:
        text = node.text
        found = parse(text) if len(text) <= _BLOCK_CHARS else None
        for one in found if isinstance(found, list) else [found]:
            parts = one.get("@graph", [one]) if isinstance(one, dict) else []
            for part in parts if isinstance(parts, list) else [parts]:
                if isinstance(part, dict) and left:
                    left -= 1
                    yield part


def _author(article: Mapping[str, Any], marked: Mapping[str, Any], named: Mapping[str, str], tree: Document) -> str:
    for given in (article.get("author"), named.get("author"), marked.get("author"), named.get("article:author")):
        names = [_text(one) for one in (given if isinstance(given, list) else [given])]
        names = list(dict.fromkeys(name for name in names if name and "://" not in name))
        if names:
            return ", ".join(names[:20])
    node = tree.select_one("a[rel~=author]")
    return " ".join(node.text.split())[:200] if node is not None else ""


def _text(value: Any) -> str:
    """Convert a JSON-LD or microdata value to text: objects by their names, lists by their first value."""
    for _ in range(8):
        if isinstance(value, str):
            return " ".join(value.split())[:_LONGEST]
        if isinstance(value, Mapping):
            value = next((value[key] for key in ("name", "@value", "url", "@id") if value.get(key)), None)
        elif isinstance(value, list):
            value = value[0] if value else None
        else:
            break
    return "" if value is None or isinstance(value, Mapping | list) else str(value)[:_LONGEST]


def _first(*values: Any) -> str:
    return next((text for value in values if (text := _text(value))), "")


def _dated(*values: Any) -> str:
    """Return the first value that is a date, else the first value as it is."""
    texts = [text[:64] for value in values if (text := _text(value))]
    return next((text for text in texts if _DATE.match(text)), texts[0] if texts else "")


def _language(*values: str | None) -> str:
    for value in values:
        tag = (value or "").split(",")[0].strip().replace("_", "-")
        if re.fullmatch(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*", tag):
            return tag
    return ""


def _attribute(tree: Document, query: str, name: str) -> str:
    node = tree.select_one(query)
    return (node.attr(name) or "").strip()[:2048] if node is not None else ""
