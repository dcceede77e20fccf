"""Reads the XML of sitemaps and feeds in one pass over the bytes, without a tree.

A parser of XML has to give up at the first mistake, and sitemaps are full of them: an `&` that is not escaped, a space
before the declaration, an element that is not closed. It also knows what to do with entities, which nobody wants. So
only the few elements that matter are looked for, and each byte is passed once or twice, whatever it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.entities import html5
from typing import Literal

_LONGEST_TEXT = 16_384
_LONGEST_TAG = 4096
_MOST_BRACKETS = 4
_MOST_SECTIONS = 1000
_MOST_TOKENS = 1_000_000
_MOST_EXTRAS, _MOST_EXTRAS_OF_ONE = 200_000, 1000
_NAMES = """
    urlset sitemapindex rss rdf feed url sitemap item entry loc lastmod changefreq priority link guid pubdate date
    updated modified published issued publication_date title content_loc player_loc content source summary
"""
_PREFIX = rb"(?:([A-Za-z_][\w.\-]{0,63}):)?"
# Most elements have a plain text and an end, which are taken along.
_TOKEN = re.compile(
    rb"<(?=[/!?A-Za-z_])(?:"
    + (_PREFIX + b"(" + "|".join(_NAMES.split()).encode() + rb")(?:>([^<>]{0,2048})(?=</)|(?=[\s/>]))")
    + (rb"|/" + _PREFIX + rb"(url|sitemap|item|entry|content|source|summary)\s*>")
    + rb"|!(?:--|\[CDATA\[|DOCTYPE)|\?)",
    re.IGNORECASE,
)
_SUBSET_END = re.compile(rb"\]\s*>")
_ATTRIBUTE = re.compile(rb"(?<![\w.\-:])([\w.\-:]{1,64}+)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'>]{1,4096}))")
_REFERENCE = re.compile(r"&(?:#(\d{1,8})|#[xX]([0-9a-fA-F]{1,7})|([A-Za-z][A-Za-z0-9]{0,31}));")
_ROOTS = {b"urlset": "urlset", b"sitemapindex": "index", b"rss": "rss", b"rdf": "rss", b"feed": "atom"}
_ENTRIES = {b"url": "urlset", b"sitemap": "index", b"item": "rss", b"entry": "atom"}
_OTHERS_INSIDE = frozenset((b"content", b"source", b"summary"))
_NAMESPACES = {
    b"sitemap-image": b"image",
    b"sitemap-video": b"video",
    b"sitemap-news": b"news",
    b"1999/xhtml": b"xhtml",
}
_MODIFIED = {
    "rss": (b"pubdate", b"date", b"updated", b"modified", b"published", b"issued"),
    "atom": (b"updated", b"modified", b"published", b"issued"),
}

Kind = Literal["", "urlset", "index", "rss", "atom", "text"]


@dataclass(slots=True)
class XmlEntry:
    """One entry as it is written; without a URL it only says what kind of file this is."""

    kind: Kind = ""
    url: str = ""
    base: str = ""
    is_sitemap: bool = False
    lastmod: str = ""
    changefreq: str = ""
    priority: str = ""
    title: str = ""
    others: list[str] = field(default_factory=list)
    """More URLs of the same entry."""
    alternates: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)


def read_xml(data: bytes | bytearray, problems: dict[str, int]) -> Iterator[XmlEntry]:
    """The entries of a sitemap, an index, or a feed, in their order; `problems` counts what could not be read."""
    return _Reader(data, problems).read()


class _Reader:
    """One pass over one file."""

    def __init__(self, data: bytes | bytearray, problems: dict[str, int]) -> None:
        self._data = data
        self._problems = problems
        self._kind: Kind = ""
        self._own = b""
        self._base = ""
        self._prefixes: dict[bytes, bytes] = {}
        self._entry: XmlEntry | None = None
        self._loose = self._identity = self._linked = ""
        self._ranked = 99
        self._inside = b""
        self._refused = False
        self._has_entities = False
        self._extras = 0
        self._position = 0
        self._ready: bytes | bytearray | None = None
        """The text of the element at hand, where it was plain to see."""

    def read(self) -> Iterator[XmlEntry]:
        search, data = _TOKEN.search, self._data
        for _ in range(_MOST_TOKENS):
            token = search(data, self._position)
            if token is None:
                break
            prefix, name, self._ready, closing_prefix, closing = token.groups()
            if closing is not None:
                self._position = token.end()
                yield from self._closed((closing_prefix or b"").lower(), closing.lower())
            elif name is None:
                if not self._passed(token[0], token.end()):
                    break
            elif self._inside:
                self._position = token.end()
            else:
                start = token.end(2)
                end = self._tag_end(start) if self._ready is None else start
                if end < 0:
                    self._count("unclosed")
                    break
                self._position = token.end() if self._ready is not None else end + 1
                yield from self._opened((prefix or b"").lower(), bytes(name).lower(), start, end)
        else:
            self._count("too-many")
        yield from self._finished()

    def _closed(self, prefix: bytes, name: bytes) -> Iterator[XmlEntry]:
        if self._inside:
            self._inside = b"" if name == self._inside else self._inside
        elif name in _ENTRIES and self._begins(bytes(prefix), bytes(name)):
            yield from self._finished()

    def _opened(self, prefix: bytes, name: bytes, start: int, end: int) -> Iterator[XmlEntry]:
        prefix = bytes(prefix)
        if name in _ROOTS:
            if not self._kind:
                yield self._root(prefix, name, start, end)
        elif name in _ENTRIES:
            if self._begins(prefix, name):
                yield from self._finished()
                if self._data[end - 1] != 0x2F:
                    self._begin(name, start, end)
        elif self._data[end - 1] != 0x2F or name == b"link":
            yield from self._child(self._meaning(prefix), name, start, end)

    def _passed(self, token: bytes | bytearray, start: int) -> bool:
        """Pass over a comment, a section, an instruction or a document type; False if it does not end."""
        token = bytes(token).upper()
        if token == b"<!DOCTYPE":
            end = self._data.find(b">", start)
            bracket = self._data.find(b"[", start, end if end >= 0 else len(self._data))
            if bracket >= 0:
                # What is declared in there is not taken up, and what refers to it is refused.
                match = _SUBSET_END.search(self._data, bracket)
                self._has_entities = self._data.find(b"<!ENTITY", bracket, match.end() if match else None) >= 0
                end = match.end() - 1 if match else -1
            if self._has_entities:
                self._count("entity")
        else:
            mark = {b"<!--": b"-->", b"<![CDATA[": b"]]>", b"<?": b"?>"}[token]
            end = self._data.find(mark, start)
            end = end + len(mark) - 1 if end >= 0 else -1
        if end < 0:
            self._count("unclosed")
            return False
        self._position = end + 1
        return True

    def _tag_end(self, start: int) -> int:
        """Where the tag ends: at a `>` that is not inside of quotes, if it has one within reason."""
        first = end = self._data.find(b">", start)
        for _ in range(_MOST_BRACKETS):
            if end < 0 or end - start > _LONGEST_TAG:
                break
            tag = self._data[start:end]
            if tag.count(b'"') % 2 == 0 and (tag.count(b"'") % 2 == 0 or b'"' in tag):
                return end
            end = self._data.find(b">", end + 1, start + _LONGEST_TAG)
        return first

    def _root(self, prefix: bytes, name: bytes, start: int, end: int) -> XmlEntry:
        self._kind = _ROOTS[name]  # type: ignore[assignment]
        self._own = prefix
        for attribute, value in self._attributes(start, end).items():
            if attribute.startswith(b"xmlns:"):
                self._declare(attribute[6:], value.encode())
            elif attribute == b"xml:base":
                self._base = value
        return XmlEntry(kind=self._kind)

    def _declare(self, prefix: bytes, namespace: bytes) -> None:
        lowered = namespace.lower()
        for part, meaning in _NAMESPACES.items():
            if part in lowered:
                self._prefixes[prefix] = meaning
        if b"schemas/sitemap/" in lowered and self._kind in ("urlset", "index"):
            self._prefixes[prefix] = b""

    def _meaning(self, prefix: bytes) -> bytes:
        """What a prefix stands for: empty for the format itself, else the extension's usual prefix."""
        if prefix == self._own:
            return b""
        return self._prefixes.get(prefix, prefix)

    def _begins(self, prefix: bytes, name: bytes) -> bool:
        """Whether an element of that name is an entry here; an RSS channel has an `<image>` with a `<url>`."""
        kind = self._kind or _ENTRIES[name]
        fits = _ENTRIES[name] == kind or (kind in ("urlset", "index") and name in (b"url", b"sitemap"))
        return fits and self._meaning(prefix) == b""

    def _begin(self, name: bytes, start: int, end: int) -> None:
        if not self._kind:
            self._kind = _ENTRIES[name]  # type: ignore[assignment]
        self._entry = XmlEntry(kind=self._kind, base=self._base, is_sitemap=name == b"sitemap")
        self._loose = self._identity = self._linked = ""
        self._ranked, self._refused = 99, False
        if name in (b"url", b"sitemap"):
            # Some forget the <loc>.
            self._loose = self._text()
        elif name == b"entry":
            self._entry.base = self._attributes(start, end).get(b"xml:base", self._base)

    def _finished(self) -> Iterator[XmlEntry]:
        """The entry that is open, if it has a URL."""
        entry, self._entry = self._entry, None
        if entry is None:
            return
        if self._refused:
            self._count("entity")
            entry.url, entry.others = "", []
        elif not entry.url:
            entry.url = next((text for text in (self._loose, self._identity) if text[:4].lower() == "http"), "")
            if not entry.url:
                self._count("no-url")
        others, entry.others = entry.others, []
        yield entry
        for url in others:
            yield replace(entry, url=url, alternates=[], images=[], videos=[])

    def _child(self, meaning: bytes, name: bytes, start: int, end: int) -> Iterator[XmlEntry]:
        if self._kind in ("urlset", "index", ""):
            yield from self._of_sitemap(meaning, name, start, end)
        elif self._entry is not None:
            self._of_feed(self._entry, meaning, name, start, end)

    def _of_sitemap(self, meaning: bytes, name: bytes, start: int, end: int) -> Iterator[XmlEntry]:
        entry = self._entry
        if entry is None:
            if name == b"loc" and meaning == b"" and self._kind:
                # A list of <loc> without what should be around each.
                self._refused = False
                url = self._text()
                yield XmlEntry(kind=self._kind, url="" if self._refused else url, is_sitemap=self._kind == "index")
        elif meaning == b"":
            if name == b"loc":
                url = self._text()
                if entry.url and url and url != entry.url:
                    self._extra(entry.others, url)
                entry.url = entry.url or url
            elif name == b"lastmod":
                entry.lastmod = entry.lastmod or self._text()
            elif name == b"changefreq":
                entry.changefreq = self._text()
            elif name == b"priority":
                entry.priority = self._text()
        elif meaning == b"xhtml" and name == b"link":
            attributes = self._attributes(start, end)
            if "alternate" in attributes.get(b"rel", "").lower().split():
                self._extra(entry.alternates, attributes.get(b"href", ""))
        elif meaning == b"image" and name == b"loc":
            self._extra(entry.images, self._text())
        elif meaning == b"video" and name in (b"content_loc", b"player_loc"):
            self._extra(entry.videos, self._text())
        elif meaning == b"news" and name == b"title":
            entry.title = self._text()
        elif meaning == b"news" and name == b"publication_date":
            entry.lastmod = entry.lastmod or self._text()

    def _of_feed(self, entry: XmlEntry, meaning: bytes, name: bytes, start: int, end: int) -> None:
        if name == b"link":
            # An Atom link stands in feeds of RSS too, and is recognised by its attribute.
            attributes = self._attributes(start, end)
            href = attributes.get(b"href", "")
            if href and (self._kind == "atom" or not meaning or not entry.url):
                if attributes.get(b"rel", "alternate").lower() == "alternate" and not entry.url:
                    entry.url = href
                    entry.base = attributes.get(b"xml:base", entry.base)
            elif self._kind == "rss" and meaning == b"" and self._data[end - 1] != 0x2F and not self._linked:
                # The first is the item's own; an <image> in it has another.
                self._linked = self._text()
                entry.url = self._linked or entry.url
        elif name == b"guid" and self._kind == "rss":
            # It is a link unless it says otherwise.
            is_link = self._attributes(start, end).get(b"ispermalink", "").lower() != "false"
            self._identity = self._text() if is_link else self._identity
        elif self._kind == "atom" and name in _OTHERS_INSIDE and meaning == b"":
            # What is inside has links and times of its own.
            self._inside = name
        elif name in (ranks := _MODIFIED[self._kind]) and ranks.index(name) < self._ranked:
            self._ranked = ranks.index(name)
            entry.lastmod = self._text()

    def _extra(self, kept: list[str], text: str) -> None:
        if not text:
            return
        self._extras += 1
        if self._extras > _MOST_EXTRAS or len(kept) >= _MOST_EXTRAS_OF_ONE or len(text) > 2048:
            self._count("too-many-extras")
        else:
            kept.append(text)

    def _text(self) -> str:
        """The text from here to the next tag, without comments; empty if the file ends before that."""
        if self._ready is not None:
            raw, self._ready = self._ready, None
            return self._resolved(raw).strip()
        data, position, pieces = self._data, self._position, []
        for _ in range(_MOST_SECTIONS):
            end = data.find(b"<", position)
            is_section = end >= 0 and data[end : end + 9] == b"<![CDATA["
            is_comment = end >= 0 and data[end : end + 4] == b"<!--"
            close = data.find(b"]]>" if is_section else b"-->", end) if is_section or is_comment else end
            if close < 0:
                self._count("unclosed")
                self._position = len(data)
                return ""
            pieces.append(self._resolved(data[position : min(end, position + _LONGEST_TEXT)]))
            if not is_section and not is_comment:
                position = end
                break
            if is_section:
                pieces.append(data[end + 9 : min(close, end + _LONGEST_TEXT)].decode("utf-8", "replace"))
            position = close + 3
        self._position = position
        return "".join(pieces)[:_LONGEST_TEXT].strip()

    def _attributes(self, start: int, end: int) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for name, double, single, bare in _ATTRIBUTE.findall(self._data[start : min(end, start + 4 * _LONGEST_TAG)]):
            found.setdefault(bytes(name).lower(), self._resolved(double or single or bare).strip())
        return found

    def _resolved(self, raw: bytes | bytearray) -> str:
        """Text with its references replaced; one that needs an entity of the document type costs its entry."""
        text = raw.decode("utf-8", "replace")
        return _REFERENCE.sub(self._character, text) if "&" in text else text

    def _character(self, match: re.Match[str]) -> str:
        decimal, hexadecimal, name = match.groups()
        if name is None:
            number = int(decimal) if decimal else int(hexadecimal, 16)
            return chr(number) if 0 < number < 0xD800 or 0xDFFF < number < 0x110000 else "\ufffd"
        known = html5.get(f"{name};")
        if known is None and self._has_entities:
            self._refused = True
        return match[0] if known is None else known

    def _count(self, problem: str) -> None:
        self._problems[problem] = self._problems.get(problem, 0) + 1
