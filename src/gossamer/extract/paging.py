"""The way through lists that span many pages: links to the next one, and counted or marked addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from selectolax.lexbor import LexborHTMLParser

MAX_HEADER = 65_536
# One link of a Link header: the target, then parameters whose values may be quoted. No part can match in two ways.
_LINK = re.compile(r'<([^<>]*)>((?:\s*;\s*[\w*!-]+\s*(?:=\s*(?:"[^"]*"|[^\s",;]*))?)*)')
_PARAMETER = re.compile(r';\s*([\w*!-]+)\s*(?:=\s*(?:"([^"]*)"|([^\s",;]*)))?')


def next_href(tree: LexborHTMLParser | None, link_headers: list[str]) -> str:
    """Where the next page is, as the page itself says: by its Link header, or by an element with rel=next."""
    for header in link_headers:
        for target, parameters in _LINK.findall(header[:MAX_HEADER]):
            for name, quoted, plain in _PARAMETER.findall(parameters):
                if name.lower() == "rel" and "next" in (quoted or plain).lower().split():
                    return str(target)
    for node in tree.css("link[rel][href], a[rel][href]") if tree is not None else ():
        if "next" in (node.attributes.get("rel") or "").lower().split():
            return node.attributes.get("href") or ""
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
