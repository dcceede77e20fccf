"""What a page says of itself: author, dates, language, and structured data of all the usual kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from turbohtml import Document

from gossamer.extract import json_ld
from gossamer.extract.microdata import microdata
from gossamer.extract.microformats import microformats
from gossamer.extract.rdfa import rdfa

_MOST_BLOCKS, _BLOCK_CHARS, _MOST_THINGS = 32, 1_000_000, 256
_MOST_METAS, _LONGEST = 256, 5000
_OPEN = ("og:", "article:", "twitter:", "book:", "profile:")
_DUBLIN_CORE = ("dc.", "dcterms.")
_ARTICLES = re.compile(r"article|posting|page|report|product|recipe|event|book|video", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?:[T ]\d{2}:\d{2}\S*)?")


class Metadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a page says of itself; empty where it says nothing. Dates are as the page writes them."""

    title: str = ""
    author: str = ""
    """Several are separated by commas."""
    date: str = ""
    """When it was published."""
    modified: str = ""
    language: str = ""
    """As in en or pt-BR."""
    description: str = ""
    site_name: str = ""
    image: str = ""
    canonical: str = ""
    """The URL that the page wants to be known by, as it is written there."""
    keywords: str = ""
    open_graph: dict[str, str] = {}
    """The properties of Open Graph and its kin, of repeated ones the first."""
    json_ld: list[dict[str, Any]] = []
    """The objects of all JSON-LD blocks, graphs taken apart."""
    microdata: list[dict[str, Any]] = []
    """The top items, each with `type`, `id` if it has one, and the values of its properties."""
    dublin_core: dict[str, str] = {}
    """The `<meta>` elements whose names begin with `dc.` or `dcterms.`, of repeated ones the first."""
    rdfa: list[dict[str, Any]] = []
    """The subjects of RDFa, as expanded JSON-LD: `@id`, `@type`, and a list of values for each property."""
    microformats: list[dict[str, Any]] = []
    """The top items of microformats, old and new: `type`, `properties`, and `children` if there are any."""


def read_metadata(tree: Document, *, title: str = "", language: str = "", base: str = "") -> Metadata:
    """Read it all; `title` and `language` are what is known otherwise, and count where the page is silent.

    `base` is what URLs in RDFa and microformats are relative to; elsewhere they stay as they are written."""
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
        found = json_ld.parse(text) if len(text) <= _BLOCK_CHARS else None
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
    """A value of JSON-LD or microdata as text: things go by their names, lists by their first."""
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
    """The first that is a date; of those that are written otherwise, the first as it is."""
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
