"""The way through lists that span many pages: links to the next one, and counted or marked addresses."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from turbohtml import Document

from gossamer.extract import links


def href_of(tree: Document, rel: str) -> str:
    """The href of the first link in the text of a page with this `rel`; empty if there is none."""
    for node in tree.select("a[rel], area[rel], link[rel]"):
        if rel in (node.attr("rel") or "").lower().split() and (href := links.href_of(node)) is not None:
            return href
    return ""


def with_query(url: str, changes: Mapping[str, object]) -> str:
    """The URL with these parameters of its query changed or added, or with None taken away; the others stay."""
    address, _, query = url.partition("#")[0].partition("?")
    pairs: list[tuple[str, str]] = []
    left = {name: str(value) for name, value in changes.items() if value is not None}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in changes:
            pairs.append((name, value))
        elif name in left:
            pairs.append((name, left.pop(name)))
    pairs += left.items()
    return f"{address}?{urlencode(pairs)}" if pairs else address
