"""Microdata by the HTML standard: what a page marks with itemscope, itemtype, itemid, itemprop and itemref."""

from __future__ import annotations

from typing import Any

from turbohtml import Document, Element, Node

MOST_VISITS = 50_000
"""Elements that are looked at: with itemref, a few may stand for very many."""
_MOST_TEXT = 8 * 1024 * 1024
_MOST_MARKED, _DEEPEST, _FARTHEST = 50_000, 32, 512
_LONGEST_VALUE = 100_000
_SOURCES = {
    "meta": "content", "a": "href", "area": "href", "link": "href", "img": "src", "audio": "src", "video": "src",
    "source": "src", "iframe": "src", "embed": "src", "track": "src", "object": "data", "data": "value",
    "meter": "value", "time": "datetime",
}  # fmt: skip


def microdata(tree: Document) -> list[dict[str, Any]]:
    """The top items: `type`, `id` if they have one, and a value for each property.

    A property that is repeated is a list, and so is the type of an item of several; an item is a mapping. One that is
    inside of itself is "ERROR", as the standard has it."""
    marked = tree.select("[itemscope], [itemprop]")
    return _Reader(tree, marked[:_MOST_MARKED]).read() if marked else []


class _Marked:
    """An element that says something of items, and those below it."""

    __slots__ = ("below", "node", "order")

    def __init__(self, node: Element, order: int) -> None:
        self.node, self.order = node, order
        self.below: list[_Marked] = []


class _Reader:
    """One page."""

    def __init__(self, tree: Document, nodes: list[Element]) -> None:
        self._left, self._text_left = MOST_VISITS, _MOST_TEXT
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
                # Made anew for each name: what is written twice takes its room twice.
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
        """The elements that are properties of an item: below it, or below what its itemref names."""
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
