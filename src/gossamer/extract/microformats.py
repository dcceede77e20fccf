"""Microformats: items that a page marks by classes (h-card, p-name), by the microformats2 parsing specification.

Classes of the first generation (vcard, hentry) are read as their successors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

from turbohtml import Document, Element, Node, Text

_ROOT = re.compile(r"h-(?:[a-z0-9]+-)?[a-z]+(?:-[a-z]+)*")
_PROPERTY = re.compile(r"(p|u|dt|e)-((?:[a-z0-9]+-)?[a-z]+(?:-[a-z]+)*)")
_PROPERTIES = '[class*="p-"], [class*="u-"], [class*="dt-"], [class*="e-"]'
_DEEPEST, _MOST_MARKED, _MOST_TEXT, _LONGEST = 32, 20_000, 8 * 1024 * 1024, 50_000
_A_NODE = 32
"""Cost of visiting a node, charged to the text budget: elements inside one another are visited many times."""
_UNSEEN = frozenset({"script", "style", "template"})

_PERSON = """
    fn:p-name honorific-prefix:p-honorific-prefix given-name:p-given-name additional-name:p-additional-name
    family-name:p-family-name honorific-suffix:p-honorific-suffix nickname:p-nickname email:u-email logo:u-logo
    photo:u-photo url:u-url uid:u-uid category:p-category extended-address:p-extended-address
    street-address:p-street-address locality:p-locality region:p-region postal-code:p-postal-code
    country-name:p-country-name label:p-label latitude:p-latitude longitude:p-longitude tel:p-tel note:p-note
    bday:dt-bday key:u-key org:p-org organization-name:p-organization-name organization-unit:p-organization-unit
    title:p-job-title role:p-role adr:p-adr geo:p-geo
"""
_OLD = {
    "vcard": ("h-card", _PERSON),
    "adr": (
        "h-adr",
        """post-office-box:p-post-office-box extended-address:p-extended-address street-address:p-street-address
        locality:p-locality region:p-region postal-code:p-postal-code country-name:p-country-name""",
    ),
    "geo": ("h-geo", "latitude:p-latitude longitude:p-longitude"),
    "hfeed": ("h-feed", "author:p-author url:u-url photo:u-photo category:p-category"),
    "hentry": (
        "h-entry",
        """entry-title:p-name entry-summary:p-summary entry-content:e-content published:dt-published
        updated:dt-updated author:p-author category:p-category""",
    ),
    "vevent": (
        "h-event",
        """summary:p-name dtstart:dt-start dtend:dt-end duration:dt-duration description:p-description url:u-url
        category:p-category location:p-location geo:p-location attendee:p-attendee contact:p-contact
        organizer:p-organizer last-modified:dt-updated""",
    ),
    "hreview": (
        "h-review",
        """summary:p-name item:p-item reviewer:p-author dtreviewed:dt-published rating:p-rating best:p-best
        worst:p-worst description:e-content""",
    ),
    "hreview-aggregate": (
        "h-review-aggregate",
        """summary:p-name item:p-item rating:p-rating best:p-best worst:p-worst average:p-average count:p-count
        votes:p-votes""",
    ),
    "hproduct": (
        "h-product",
        """fn:p-name photo:u-photo brand:p-brand category:p-category description:p-description identifier:u-identifier
        url:u-url review:p-review price:p-price""",
    ),
    "hrecipe": (
        "h-recipe",
        """fn:p-name ingredient:p-ingredient yield:p-yield instructions:e-instructions duration:dt-duration
        photo:u-photo summary:p-summary author:p-author nutrition:p-nutrition category:p-category
        published:dt-published""",
    ),
    "hresume": (
        "h-resume",
        """summary:p-summary contact:p-contact education:p-education experience:p-experience skill:p-skill
        affiliation:p-affiliation""",
    ),
    "hnews": ("h-news", "entry:p-entry geo:p-geo latitude:p-latitude longitude:p-longitude source-org:p-source-org"),
}
"""First-generation classes: their successors, and the successors of their properties."""
_OLD_QUERY = ", ".join(f".{name}" for name in _OLD)
_TIME = re.compile(
    r"(\d{1,2})(?::(\d\d))?(?::(\d\d))?\s*([ap])?\.?(?:m\.?)?\s*(Z|[+-]\d\d?:?(?:\d\d)?)?", re.IGNORECASE
)
_CLOCK = re.compile(r"\d{1,2}:\d\d.*|\d{1,2}\s*[ap]\.?m\.?", re.IGNORECASE)
_ZONE = re.compile(r"Z|[+-]\d\d?:?(?:\d\d)?", re.IGNORECASE)
_DAY = re.compile(r"\d{4}-\d\d-\d\d|\d{4}-\d{3}|\d{4}-\d\d|\d{4}")

Item = dict[str, Any]


def microformats(tree: Document, base: str) -> list[Item]:
    """Return the top-level items: `type`, `properties` with a list of values each, `children`, and `id` if present.

    A value is a string, an item with its `value`, `html` with its `value`, or an image as `value` with `alt`. URLs
    are absolute."""
    roots = {node for node in tree.select('[class*="h-"]') if _roots_of(node)}
    old = {node for node in tree.select(_OLD_QUERY) if node not in roots}
    if not roots and not old:
        return []
    query = f'{_PROPERTIES}, [class*="h-"]'
    marked = tree.select(f"{query}, {_OLD_QUERY}" if not old else "[class], a[rel]")[:_MOST_MARKED]
    return _Reader(base, roots, old).read(marked)


def _roots_of(node: Element) -> list[str]:
    return sorted({name for name in (node.attr("class") or "").split() if _ROOT.fullmatch(name)})


class _Open:
    """An item whose element is being read."""

    __slots__ = ("depth", "element", "has_nested", "item", "names", "prefixes")

    def __init__(
        self, element: Element, types: list[str], names: dict[str, tuple[str, str]] | None, depth: int
    ) -> None:
        self.element, self.names, self.depth = element, names, depth
        self.item: Item = {"type": types, "properties": {}}
        if name := (element.attr("id") or "").strip():
            self.item["id"] = name[:_LONGEST]
        self.has_nested = False
        self.prefixes: set[str] = set()

    def add(self, name: str, value: Any) -> None:
        self.item["properties"].setdefault(name, []).append(value)


class _Reader:
    """Reads one page. Marked elements come in document order; each belongs to the nearest item around it."""

    def __init__(self, base: str, roots: set[Element], old: set[Element]) -> None:
        self._base, self._roots, self._old = base, roots, old
        self._text_left = _MOST_TEXT
        self._item_of: dict[Node, _Open | None] = {}
        self._opened: list[_Open] = []
        self._nested: list[tuple[_Open, str, Any, Item]] = []

    def read(self, marked: list[Element]) -> list[Item]:
        top = []
        for node in marked:
            if self._text_left <= 0:
                break
            above = self._around(node)
            opened = self._open(node, above)
            properties = _properties_of(node, above.names) if above is not None else []
            if opened is None:
                if above is not None:
                    self._add(node, above, properties)
                continue
            self._item_of[node] = opened
            self._opened.append(opened)
            if above is None:
                top.append(opened.item)
                continue
            above.has_nested = True
            for prefix, name in properties:
                above.prefixes.add(prefix)
                # A placeholder, replaced by the item once it is complete.
                place: Item = {}
                above.add(name, place)
                self._nested.append((opened, prefix, self._parsed(node, prefix), place))
            if not properties:
                above.item.setdefault("children", []).append(opened.item)
        for opened in self._opened:
            if opened.names is None:
                self._imply(opened)
        for opened, prefix, parsed, place in reversed(self._nested):
            place.update({**opened.item, **_value_of(prefix, opened.item["properties"], parsed)})
        return top

    def _around(self, node: Element) -> _Open | None:
        """Return the item that contains an element. Visited ancestors are cached, so that none is walked twice."""
        passed: list[Node] = []
        one: Node | None = node.parent
        while one is not None and one not in self._item_of:
            passed.append(one)
            one = one.parent
        found = self._item_of[one] if one is not None else None
        self._item_of.update(dict.fromkeys(passed, found))
        return found

    def _open(self, node: Element, above: _Open | None) -> _Open | None:
        depth = above.depth + 1 if above is not None else 0
        if depth > _DEEPEST:
            return None
        if node in self._roots:
            return _Open(node, _roots_of(node), None, depth)
        if node not in self._old:
            # In old markup an author is a card, with or without its class.
            is_author = above is not None and ("p", "author") in _properties_of(node, above.names or {})
            return _Open(node, ["h-card"], None, depth) if is_author else None
        classes = [name for name in (node.attr("class") or "").split() if name in _OLD]
        names = {}
        for name in classes:
            for pair in _OLD[name][1].split():
                old, _, new = pair.partition(":")
                prefix, _, name_now = new.partition("-")
                names[old] = (prefix, name_now)
        return _Open(node, sorted({_OLD[name][0] for name in classes}), names, depth)

    def _add(self, node: Element, above: _Open, properties: list[tuple[str, str]]) -> None:
        for prefix, name in properties:
            above.prefixes.add(prefix)
            above.add(name, self._parsed(node, prefix))
        rels = (node.attr("rel") or "").split() if above.names and node.tag == "a" else []
        if "bookmark" in rels and "url" not in above.item["properties"]:
            above.add("url", self._url(node.attr("href") or ""))
        if "tag" in rels and "category" in {name for _, name in (above.names or {}).values()}:
            path = self._url(node.attr("href") or "").partition("?")[0]
            above.add("category", unquote(path.rstrip("/").rpartition("/")[2]))

    # Values

    def _parsed(self, node: Element, prefix: str) -> Any:
        if prefix == "e":
            html = node.inner_html.strip()
            self._text_left -= len(html)
            return {"html": html[:_LONGEST], "value": self._text(node)}
        if prefix == "u":
            return self._parsed_url(node)
        if prefix == "dt":
            return self._moment(node) or self._named_or_text(node)
        pieces = [self._plain(part) for part in self._value_parts(node)]
        return "".join(pieces) if pieces else self._named_or_text(node)

    def _named_or_text(self, node: Element) -> str:
        names = {
            "abbr": "title", "link": "title", "data": "value", "input": "value", "img": "alt", "area": "alt",
            "time": "datetime", "ins": "datetime", "del": "datetime",
        }  # fmt: skip
        given = node.attr(names[node.tag]) if node.tag in names else None
        return given.strip()[:_LONGEST] if given is not None else self._text(node)

    def _parsed_url(self, node: Element) -> Any:
        tag, given = node.tag, None
        if tag in {"a", "area", "link"}:
            given = node.attr("href")
        elif tag == "img" and node.attr("src") is not None:
            return self._image(node)
        elif tag in {"audio", "video", "source", "iframe"}:
            given = node.attr("src")
        elif tag == "object":
            given = node.attr("data")
        if given is None and tag == "video":
            given = node.attr("poster")
        if given is None:
            pieces = [self._plain(part) for part in self._value_parts(node)]
            given = "".join(pieces) if pieces else self._named_or_text(node)
        return self._url(given)

    def _image(self, node: Element) -> Any:
        url, alt = self._url(node.attr("src") or ""), node.attr("alt")
        return url if alt is None else {"value": url, "alt": alt[:_LONGEST]}

    def _url(self, reference: str) -> str:
        try:
            return urljoin(self._base, reference.strip())[:_LONGEST]
        except ValueError:
            return reference.strip()[:_LONGEST]

    def _plain(self, node: Element) -> str:
        """Return the value of one part of the value class pattern."""
        if "value-title" in (node.attr("class") or "").split():
            return node.attr("title") or ""
        if node.tag in {"img", "area"}:
            return node.attr("alt") or ""
        given = node.attr("value") if node.tag == "data" else node.attr("title") if node.tag == "abbr" else None
        if given is None and node.tag in {"time", "ins", "del"}:
            given = node.attr("datetime")
        return given if given is not None else self._text(node)

    def _moment(self, node: Element) -> str:
        """Combine date, time, and zone from several elements, by the value class pattern."""
        parts = [" ".join(self._plain(part).split()) for part in self._value_parts(node)]
        day = clock = zone = ""
        for part in parts:
            if re.match(r"\d{4}-\d\d-\d\d[T ]\d", part):
                return part
            if not day and _DAY.fullmatch(part):
                day = part
            elif not clock and _CLOCK.fullmatch(part):
                clock = _time(part)
            elif not zone and _ZONE.fullmatch(part):
                zone = part
        return f"{day}{' ' if day and clock else ''}{clock}{zone if clock else ''}"

    def _value_parts(self, node: Element) -> list[Element]:
        """Return the parts that the value class pattern combines."""
        found = []
        pending = [iter(node)]
        while pending and len(pending) < _DEEPEST and self._text_left > 0:
            for one in pending[-1]:
                self._text_left -= _A_NODE
                if isinstance(one, Element):
                    classes = (one.attr("class") or "").split()
                    if "value" in classes or "value-title" in classes:
                        found.append(one)
                    elif not any(_ROOT.fullmatch(name) or _PROPERTY.fullmatch(name) for name in classes):
                        pending.append(iter(one))
                        break
            else:
                pending.pop()
        return found

    def _text(self, node: Element) -> str:
        """Return the text without scripts and styles, with images replaced by their alternative text."""
        pieces = []
        inside: list[Iterator[Node]] = [iter(node)]
        while inside and self._text_left > 0:
            for one in inside[-1]:
                self._text_left -= _A_NODE
                if type(one) is Text:
                    pieces.append(one.data)
                elif type(one) is Element:
                    if one.tag == "img":
                        alt = one.attr("alt")
                        pieces.append(alt if alt is not None else f" {self._url(one.attr('src') or '')} ")
                    elif one.tag not in _UNSEEN:
                        inside.append(iter(one))
                        break
            else:
                inside.pop()
        text = "".join(pieces)
        self._text_left -= len(text)
        return text.strip()[:_LONGEST]

    def _imply(self, opened: _Open) -> None:
        """Add implied name, photo, and URL to an item that has none."""
        properties, node = opened.item["properties"], opened.element
        if "name" not in properties and not opened.has_nested and opened.prefixes.isdisjoint({"p", "e"}):
            found = _implied(node, {"img": "alt", "area": "alt", "abbr": "title"}, deep=True)
            named = found.attr(_NAMES[found.tag]) if found is not None else None
            properties["name"] = [named.strip() if named else self._text(node)]
        if opened.has_nested or "u" in opened.prefixes:
            return
        if "photo" not in properties:
            found = _implied(node, {"img": "src", "object": "data"}, deep=True)
            if found is not None:
                properties["photo"] = [
                    self._image(found) if found.tag == "img" else self._url(found.attr("data") or "")
                ]
        if "url" not in properties:
            found = _implied(node, {"a": "href", "area": "href"}, deep=True)
            if found is not None:
                properties["url"] = [self._url(found.attr("href") or "")]


_NAMES = {"img": "alt", "area": "alt", "abbr": "title"}


def _implied(node: Element, names: dict[str, str], *, deep: bool) -> Element | None:
    """Return the element that implies a property: itself, its only child of that kind, or that child's only child."""
    if node.tag in names:
        return node if node.attr(names[node.tag]) else None
    children = [below for below in node if isinstance(below, Element)]
    if "alt" in names.values() and len(children) != 1:
        return None
    for tag, attribute in names.items():
        of_kind = [below for below in children if below.tag == tag]
        if len(of_kind) == 1 and of_kind[0].attr(attribute) and not _roots_of(of_kind[0]):
            return of_kind[0]
    if deep and len(children) == 1 and not _roots_of(children[0]) and children[0].tag not in names:
        return _implied(children[0], names, deep=False)
    return None


def _properties_of(node: Element, names: dict[str, tuple[str, str]] | None) -> list[tuple[str, str]]:
    """Return the prefixes and names of an element's properties, each once."""
    classes = dict.fromkeys((node.attr("class") or "").split())
    if names is not None:
        return [names[name] for name in classes if name in names]
    found = (_PROPERTY.fullmatch(name) for name in classes)
    return [(match[1], match[2]) for match in found if match is not None]


def _value_of(prefix: str, properties: dict[str, list[Any]], parsed: Any) -> Item:
    """Return the value of a nested item: its name or URL where that applies, else the element's parsed value."""
    if prefix == "e":
        return dict(parsed)
    wanted = properties.get({"p": "name", "u": "url"}.get(prefix, ""), [parsed])[0]
    if isinstance(wanted, dict):
        return {name: wanted[name] for name in ("value", "alt") if name in wanted}
    return {"value": wanted}


def _time(text: str) -> str:
    """Convert a time of day to 24 hours: 1:05pm becomes 13:05."""
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    hour, half = int(found[1]), (found[4] or "").lower()
    hour = hour % 12 + (12 if half == "p" else 0) if half else hour
    seconds = f":{found[3]}" if found[3] else ""
    return f"{hour:02}:{found[2] or '00'}{seconds}{found[5] or ''}"
