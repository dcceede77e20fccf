"""Microdata: the items that a page marks with itemscope, itemtype and itemprop."""

from __future__ import annotations

from typing import Any

from selectolax.lexbor import LexborHTMLParser, LexborNode

_MOST_ITEMS, _MOST_PROPERTIES, _DEEPEST = 64, 512, 8
_LONGEST = 5000
_SOURCES = {
    "meta": "content", "a": "href", "area": "href", "link": "href", "img": "src", "audio": "src", "video": "src",
    "source": "src", "iframe": "src", "embed": "src", "track": "src", "object": "data", "data": "value",
    "meter": "value", "time": "datetime",
}  # fmt: skip


def microdata(tree: LexborHTMLParser) -> list[dict[str, Any]]:
    """The top items: `type`, and a value for each property; a list where it is repeated, a mapping for an item."""
    items: list[tuple[LexborNode, dict[str, Any]]] = []
    found: list[dict[str, Any]] = []
    left = _MOST_PROPERTIES
    # Nodes come in the order of the document: an item is met before what is in it.
    last = 0
    for node in tree.css("[itemscope], [itemprop]"):
        if node.mem_id == last:
            # It is found once for each of the two.
            continue
        last = node.mem_id
        attributes = node.attributes
        while items and not _is_inside(node, items[-1][0]):
            items.pop()
        is_item = "itemscope" in attributes
        value: Any = {"type": (attributes.get("itemtype") or "").split(" ")[0]} if is_item else None
        names = (attributes.get("itemprop") or "").split()
        if names and items:
            if not left:
                break
            left -= 1
            value = value if is_item else _value(node)
            for name in names:
                _add(items[-1][1], name, value)
        elif is_item and len(found) < _MOST_ITEMS:
            found.append(value)
        if is_item and len(items) < _DEEPEST:
            items.append((node, value))
    return found


def _add(item: dict[str, Any], name: str, value: Any) -> None:
    if name not in item:
        item[name] = value
    elif isinstance(item[name], list):
        item[name].append(value)
    else:
        item[name] = [item[name], value]


def _value(node: LexborNode) -> str:
    attribute = _SOURCES.get(node.tag or "")
    given = node.attributes.get(attribute) if attribute else None
    return " ".join((given if given is not None else node.text() or "").split())[:_LONGEST]


def _is_inside(node: LexborNode, other: LexborNode) -> bool:
    above = node.parent
    for _ in range(512):
        if above is None:
            return False
        if above.mem_id == other.mem_id:
            return True
        above = above.parent
    return False
