"""Selectors that may be worth extracting, guessed from what repeats on a few pages."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from turbohtml import Element, Node, Text

from gossamer.extract.page import Page

_WHOLE_PAGE = {
    "title": "title::text",
    "heading": "h1::text",
    "description": "meta[name=description]::attr(content)",
    "published": "time::attr(datetime)",
}
_BY_TAG = {"h1": "heading", "h2": "heading", "h3": "heading", "h4": "heading", "time": "date", "a": "link_text"}
_CLASS = re.compile(r"[A-Za-z][A-Za-z_-]{1,30}")
_STATES = """
    active current first last odd even open hidden visible selected clearfix row col container wrapper left right
"""
_FURNITURE = frozenset(("nav", "header", "footer", "head", "script", "style", "form"))
_MOST_ELEMENTS = 5000
_MOST_INSIDE = 60
_MOST_CONTAINERS = 3
_MOST_FIELDS = 4
_SAMPLES = 3


class Suggestion(NamedTuple):
    """A field that could be extracted, and what it gave."""

    name: str
    selector: str
    pages: int
    samples: tuple[str, ...]


class SelectorSurvey:
    """Reads pages one by one and keeps only counts and a few samples of each."""

    def __init__(self) -> None:
        self._pages = 0
        self._whole: dict[str, _Seen] = defaultdict(_Seen)
        self._containers: Counter[str] = Counter()
        self._fields: dict[str, dict[str, _Seen]] = defaultdict(lambda: defaultdict(_Seen))

    def read(self, page: Page) -> None:
        """Take note of a page."""
        if not page.is_html:
            return
        self._pages += 1
        for selector in _WHOLE_PAGE.values():
            self._whole[selector].add(page.css(selector).getall()[:1])
        for container, members in _repeated(page).items():
            self._containers[container] += len(members)
            fields: dict[str, list[str]] = defaultdict(list)
            for member in members[:50]:
                for field, value in _texts(member).items():
                    fields[field].append(value)
            for field, values in fields.items():
                self._fields[container][field].add(values)

    def suggestions(self) -> list[Suggestion]:
        """The best guesses: what most pages have once, then the parts of what repeats."""
        found = [
            Suggestion(name, selector, seen.pages, tuple(seen.samples))
            for name, selector in _WHOLE_PAGE.items()
            if (seen := self._whole[selector]).pages * 2 > self._pages
        ]
        taken = {suggestion.name for suggestion in found}
        for container in self._best():
            for field, seen in self._full_fields(container)[:_MOST_FIELDS]:
                name = _free_name(field, taken)
                found.append(Suggestion(name, f"{container} {field}::text", seen.pages, tuple(seen.samples)))
        return found

    def _best(self) -> list[str]:
        """Containers with several fields; of two that hold the same, the one that comes more often."""
        worth = {
            container: count * len(fields)
            for container, count in self._containers.items()
            if len(fields := self._full_fields(container)) > 1
        }
        best: list[str] = []
        told: set[str] = set()
        for container in sorted(worth, key=lambda name: (-worth[name], name)):
            samples = {sample for _, seen in self._full_fields(container) for sample in seen.samples}
            if not samples <= told:
                best.append(container)
                told |= samples
        return best[:_MOST_CONTAINERS]

    def _full_fields(self, container: str) -> list[tuple[str, _Seen]]:
        least = 0.6 * self._containers[container]
        full = [(field, seen) for field, seen in self._fields[container].items() if seen.values >= least]
        return sorted(full, key=lambda pair: (-pair[1].values, pair[0]))


class _Seen:
    """How often something was found, and some of it."""

    def __init__(self) -> None:
        self.pages = 0
        self.values = 0
        self.samples: list[str] = []

    def add(self, values: list[str]) -> None:
        kept = [text for value in values if (text := " ".join(value.split()))]
        self.pages += bool(kept)
        self.values += len(kept)
        for text in kept:
            if len(self.samples) < _SAMPLES and text[:200] not in self.samples:
                self.samples.append(text[:200])


def _repeated(page: Page) -> dict[str, list[Element]]:
    """Elements that share parent, tag and class with another one, by `tag.class`, outside of menus and the like."""
    groups: dict[tuple[Node, str], list[Element]] = defaultdict(list)
    for node in page.tree.select("[class]")[:_MOST_ELEMENTS]:
        parent = node.parent
        if parent is None or node.tag in _FURNITURE:
            continue
        for name in _classes(node)[:2]:
            groups[parent, f"{node.tag}.{name}"].append(node)
    found: dict[str, list[Element]] = defaultdict(list)
    for (_, container), members in groups.items():
        if len(members) > 1 and not _in_furniture(members[0]):
            found[container] += members
    return found


def _texts(node: Element) -> dict[str, str]:
    """The texts inside an element by a short selector: a class where there is one, else a telling tag."""
    found: dict[str, str] = {}
    for inner in node.select("*")[:_MOST_INSIDE]:
        text = "".join(child.data for child in inner if isinstance(child, Text)).strip()
        if not text:
            continue
        names = _classes(inner)
        if names:
            found.setdefault(f"{inner.tag}.{names[0]}", text)
        elif inner.tag in _BY_TAG:
            found.setdefault(inner.tag, text)
    return found


def _classes(node: Element) -> list[str]:
    names = (node.attr("class") or "").split()
    return [name for name in names if _CLASS.fullmatch(name) and name.lower() not in _STATES.split()]


def _in_furniture(node: Element) -> bool:
    return any(isinstance(around, Element) and around.tag in _FURNITURE for around in node.ancestors)


def _free_name(field: str, taken: set[str]) -> str:
    tag, dot, kind = field.partition(".")
    name = re.sub(r"\W+", "_", kind if dot else _BY_TAG.get(tag, tag)).strip("_").lower() or tag
    number = 2
    free = name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    taken.add(free)
    return free


def options(suggestions: Iterable[Suggestion]) -> dict[str, str]:
    """Suggestions as the setting `extract`."""
    return {suggestion.name: suggestion.selector for suggestion in suggestions}
