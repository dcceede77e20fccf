"""A fetched page: the decoded response with its selectors, links, forms, and pagination."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import turbohtml
from turbohtml import Document

from gossamer import urls
from gossamer.cut import parse_cut
from gossamer.errors import ExtractError
from gossamer.extract import formatting, forms, links, metadata, mime, selectors, sitemap, xml
from gossamer.extract.encoding import decode, detect
from gossamer.extract.links import LinkCache, Links, Relation, element_relations, header_relations
from gossamer.extract.markdown import to_markdown
from gossamer.extract.metadata import Directives, Metadata, read_metadata
from gossamer.extract.selectors import Selection
from gossamer.extract.text import MainPart, main_part, title_of, visible_text
from gossamer.model import Headers, Request, Response, Secret


class DecodedResponse:
    """A response with its request; properties decode and parse the body on first access."""

    __slots__ = ("_encoding", "_html", "_is_html", "_mime_type", "request", "response")

    def __init__(self, response: Response, request: Request) -> None:
        self.response = response
        self.request = request
        self._encoding: str | None = None
        self._html: str | None = None
        self._is_html: bool | None = None
        self._mime_type: str | None = None

    @property
    def url(self) -> str:
        """The URL of the response."""
        return self.response.url

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status

    @property
    def headers(self) -> Headers:
        """The response headers as received, with names in lower case."""
        return self.response.headers

    @property
    def body(self) -> bytes:
        """The body, after decoding its Content-Encoding."""
        return self.response.body

    @property
    def depth(self) -> int:
        """The number of links between a seed and this page."""
        return self.request.depth

    @property
    def label(self) -> str:
        """The label of the request, which selects the handler."""
        return self.request.label

    @property
    def meta(self) -> dict[str, Any]:
        """The values that the spider attached to the request."""
        return self.request.given or {}

    @property
    def referrer(self) -> str:
        """The URL of the page on which this one was found; empty for a seed."""
        return self.request.referrer

    def header(self, name: str, default: str = "") -> str:
        """Return the first header with this name, in any case."""
        return self.response.header(name.lower(), default)

    @property
    def mime_type(self) -> str:
        """The MIME type that a browser would use, such as `text/html`: declared by the server, or sniffed."""
        if self._mime_type is None:
            nosniff = self.header("x-content-type-options").partition(",")[0].strip().lower() == "nosniff"
            self._mime_type = mime.computed_type(self.body, self._all("content-type"), nosniff=nosniff)
        return self._mime_type

    @property
    def is_html(self) -> bool:
        """Whether the body is HTML by its type, and not another format by its first bytes."""
        if self._is_html is None:
            self._is_html = mime.is_html(self.body, self.mime_type)
        return self._is_html

    @property
    def is_xml(self) -> bool:
        """Whether the body is XML but not XHTML: a feed, SVG, or any other document."""
        return mime.is_xml(self.mime_type) and not self.is_html

    @property
    def is_text(self) -> bool:
        """Whether the body is text: HTML, XML, JSON, plain text ..."""
        return mime.is_text(self.mime_type)

    @property
    def encoding(self) -> str:
        """The name of the body's character encoding, detected like in a browser."""
        if self._encoding is None:
            self._encoding = detect(
                self.body, ", ".join(self._all("content-type")), host=urls.host(urls.host_port(self.url))
            )
        return self._encoding

    @property
    def html(self) -> str:
        """The body as text."""
        if self._html is None:
            self._html = decode(self.body, self.encoding)
        return self._html

    def json(self) -> Any:
        """Parse the body as JSON; raises ExtractError if it is invalid."""
        try:
            return json.loads(self.html)
        except (ValueError, RecursionError) as error:
            raise ExtractError(f"{self.url}: invalid JSON: {error}") from error

    def _all(self, name: str) -> list[str]:
        """Return all headers of a name in lower case."""
        return [value for key, value in self.response.headers if key == name]


def href_of(tree: Document, rel: str) -> str:
    """Return the href of the first element with this `rel`; empty if there is none."""
    for node in tree.select("a[rel], area[rel], link[rel]"):
        if rel in (node.attr("rel") or "").lower().split() and (href := links.href_of(node)) is not None:
            return href
    return ""


def with_query(url: str, changes: Mapping[str, object]) -> str:
    """Return the URL with query parameters changed or added; a value of None removes the parameter."""
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


_VOID_NAMES = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_VOID_NAMES.split())
# No alternative consumes a `<`, so that each character between a tag and its end is scanned once.
_EMPTY = re.compile(r"<([a-zA-Z][^\t\n\r <>/\"'=]*+)((?:[^<>/\"']++|\"[^\"<]*+\"|'[^'<]*+'|/(?!>))*+)/>")


def expand_self_closing(markup: str) -> str:
    """Expand self-closing elements: `<script/>` is a complete element in XML, but not in HTML.

    An HTML parser would take everything after it for the script's content."""
    return _EMPTY.sub(_closed, markup)


def _closed(found: re.Match[str]) -> str:
    name = found[1]
    return found[0] if name.lower() in _VOID else f"<{name}{found[2]}></{name}>"


Target = str | Selection
# Depths far beyond those of normal pages that are cheap to test; 513 is where parsers stop nesting.
_DEEP, _DEEPEST = turbohtml.XPath("/*" * 40), turbohtml.XPath("/*" * 513)
_HREFS = ("href", "xlink:href", "src")


class Page(DecodedResponse):
    """One fetched page. Properties are parsed on first access and cached."""

    __slots__ = (
        "_base",
        "_link_cache",
        "_main",
        "_markdown",
        "_max_links",
        "_metadata",
        "_nofollow",
        "_relations",
        "_robot",
        "_robots",
        "_text",
        "_title",
        "_tree",
        "cut",
        "items",
    )

    def __init__(
        self,
        response: Response,
        request: Request,
        *,
        link_cache: LinkCache | None = None,
        robot: str = "",
        nofollow: bool = True,
        max_links: int = links.MAX_LINKS,
    ) -> None:
        super().__init__(response, request)
        self.items: list[Any] = []
        """The items that the spider yielded for this page, for programs that iterate over a crawl."""
        self.cut: dict[str, int | None] = parse_cut(response.cut)
        """What limits dropped from the body, the tree, or the list of links: the name of each limit, and the amount
        dropped, None if unknown; empty if the page is complete."""
        self._link_cache = link_cache
        self._robot = robot
        self._nofollow = nofollow
        self._max_links = max_links
        self._relations: tuple[Relation, ...] | None = None
        self._robots: Directives | None = None
        self._tree: Document | None = None
        self._title: str | None = None
        self._text: str | None = None
        self._main: MainPart | None = None
        self._markdown: str | None = None
        self._metadata: Metadata | None = None
        self._base: str | None = None

    def __repr__(self) -> str:
        return f"<Page {self.status} {self.url}>"

    @property
    def tree(self) -> Document:
        """The tree of the page, parsed as HTML or XML; without a root if the body is neither."""
        if self._tree is None:
            if not self.is_html:
                self._tree = xml.parse(self.html) if self.is_xml else xml.empty()
                return self._tree
            self._tree = tree = turbohtml.parse(
                self._markup(), encoding="utf-8", positions=False, allow_declarative_shadow_roots=False
            )
            # Flatten declarative shadow roots: their content is on the page, and becomes part of their host.
            for template in tree.select("template[shadowrootmode]"):
                template.replace_with(*(node for content in template for node in content))
            if _DEEP(tree) and _DEEPEST(tree):
                self.cut["tree_depth"] = None
        return self._tree

    @property
    def title(self) -> str:
        """The text of `<title>`, with white space collapsed."""
        if self._title is None:
            self._title = title_of(self.tree)
        return self._title

    @property
    def text(self) -> str:
        """The visible text, with white space collapsed, one line per block."""
        if self._text is None:
            self._text = visible_text(self.tree)
        return self._text

    @property
    def markdown(self) -> str:
        """The main part of the page as Markdown, without menus and similar; links are absolute."""
        if self._markdown is None:
            self._markdown = self.to_markdown()
        return self._markdown

    def to_markdown(self, *, main: bool = True) -> str:
        """Return the page as Markdown: its main part, or with `main=False` all visible content."""
        part = self._main_part if main else None
        return to_markdown(self.tree, self.base, main=part, encoding=self.encoding)

    @property
    def main_text(self) -> str:
        """The main part of the page as plain text, one line per block."""
        return self._main_part.text

    @property
    def main_share(self) -> float:
        """The share of the visible text that is in the main part, from 0 to 1; 1 if there is no text."""
        return self._main_part.share

    @property
    def metadata(self) -> Metadata:
        """The page's metadata: author, dates, language, and structured data."""
        if self._metadata is None:
            self._metadata = read_metadata(
                self.tree, title=self.title, language=self.header("content-language"), base=self.base
            )
        return self._metadata

    @property
    def base(self) -> str:
        """The URL against which the page's relative links are resolved."""
        if self._base is None:
            self._base = links.base_url(self.tree, self.url)
        return self._base

    @property
    def robots(self) -> Directives:
        """The robots directives of `<meta>` and X-Robots-Tag that apply to this crawler: `page.robots.noindex`."""
        if self._robots is None:
            self._robots = self._directives(links.find(self.tree).metas if self.is_html else [])
        return self._robots

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations to other URLs, from Link headers and then from `<link>` elements in the head."""
        if self._relations is None:
            elements = element_relations(self.tree, self.base, encoding=self.encoding) if self.is_html else ()
            self._relations = (*header_relations(self._all("link"), self.url), *elements)
        return self._relations

    @property
    def canonical(self) -> str | None:
        """The canonical URL that the page declares; None if it declares none."""
        return self._related("canonical")

    @property
    def next(self) -> str | None:
        """The URL of the next page of a series, by rel=next; None on the last. `next_page` makes a request of it."""
        return self._related("next") or self._linked("next")

    @property
    def prev(self) -> str | None:
        """The URL of the previous page of a series, by rel=prev; None on the first."""
        return self._related("prev") or self._related("previous") or self._linked("prev")

    @property
    def alternates(self) -> dict[str, str]:
        """The URLs of translations by language (hreflang in lower case); `x-default` for other languages."""
        found: dict[str, str] = {}
        for relation in self.relations:
            language = relation.attributes.get("hreflang", "").strip().lower()
            if language and "alternate" in relation.rels:
                found.setdefault(language, relation.url)
        return found

    def css(self, query: str) -> Selection:
        """Select elements by a CSS selector; `::text` and `::attr(name)` give strings."""
        return selectors.css(self.tree, query, is_xml=self.is_xml)

    def xpath(
        self, query: str, *, namespaces: Mapping[str, str] | None = None, **variables: selectors.Variable
    ) -> Selection:
        """Select by an XPath expression; `$name` is a variable: `page.xpath("//a[@id=$id]", id="x")`."""
        return selectors.xpath(self.tree, query, namespaces, variables, is_xml=self.is_xml)

    def links(self, region: str = "", *, nofollow: bool | None = None, max_links: int | None = None) -> list[str]:
        """Return the http(s) URLs that the page links to, each once: from its headers, then in document order.

        `region` is a CSS selector that limits the search. `nofollow` obeys `nofollow` directives of the page and its
        links. The defaults of `nofollow` and `max_links` are the job's settings; `cut` holds what the limit dropped in
        the last call."""
        nofollow = self._nofollow if nofollow is None else nofollow
        max_links = self._max_links if max_links is None else max_links
        if not self.is_html:
            return self._xml_links(nofollow, max_links) if self.is_xml else []
        found = links.find(self.tree, nofollow=nofollow)
        self._base = links.effective_base(self.url, found.base)
        if self._robots is None:
            self._robots = self._directives(found.metas)
        if nofollow and self._robots.nofollow:
            return []
        listed = links.links(
            self.tree,
            found,
            self.url,
            encoding=self.encoding,
            region=region,
            nofollow=nofollow,
            also=() if region else self._header_links(),
            max_links=max_links,
            cache=self._link_cache,
        )
        return self._taken(listed)

    def follow(
        self,
        target: Target,
        *,
        label: str = "",
        meta: dict[str, Any] | None = None,
        priority: int = 0,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        json: Any = None,
    ) -> Request:
        """Create a request for a link of this page: an href, or a selection whose first element has one.

        `json` is sent as a JSON body, by POST unless you pass another method."""
        href = _href(target)
        if json is not None:
            body, method = forms.json_body(json), "POST" if method == "GET" else method
            headers = {"content-type": "application/json", "accept": "application/json", **(headers or {})}
        url = links.resolve(self.base, links.encode_query(href, self.encoding))
        if url is None:
            raise ExtractError(
                f"{href!r} on {self.url} is not a URL to follow", hint="only http and https are followed"
            )
        return Request(
            url=url,
            label=label,
            meta=meta,
            priority=priority,
            method=method.upper(),
            headers=dict(headers) if headers else None,
            body=body,
            referrer=self.url,
        )

    def follow_all(
        self,
        targets: Iterable[Target] | str = (),
        *,
        css: str = "",
        xpath: str = "",
        label: str = "",
        meta: dict[str, Any] | None = None,
        priority: int = 0,
    ) -> list[Request]:
        """Create requests for many links, one per URL: hrefs, selections, or a CSS selector (also as first argument).

        Without arguments, for all links of the page. Links that are not http(s) URLs are skipped."""
        if not targets and not css and not xpath:
            targets = self.links()
        if isinstance(targets, str):
            targets = self.css(targets)
        every = [*targets, *(self.css(css) if css else ()), *(self.xpath(xpath) if xpath else ())]
        found: dict[str, Request] = {}
        for target in every:
            try:
                request = self.follow(target, label=label, meta=meta, priority=priority)
            except ExtractError:
                continue
            found.setdefault(request.url, request)
        return list(found.values())

    def next_page(self, query: str = "", *, label: str = "", meta: dict[str, Any] | None = None) -> Request | None:
        """Create a request for the next page of a list, by a Link header or an element with rel=next; None on the last.

        For sites without rel=next, pass a CSS selector that finds the link."""
        target: Target = self.next or ""
        if not target and query:
            target = self.css(query)
        if not target:
            return None
        request = self.follow(target, label=label or self.label, meta=meta)
        return request if request.url != self.url else None

    def with_query(self, **changes: object) -> str:
        """Return this page's URL with other parameters: `page.follow(page.with_query(offset=40))`; None drops one."""
        return with_query(self.url, changes)

    def file(self, target: Target, *, meta: dict[str, Any] | None = None) -> Request:
        """Create a request to download a file: up to `max_file_bytes` long, and handled by `parse_file`."""
        return self.follow(target, label="file", meta=meta)

    def form(
        self,
        query: str = "",
        fields: forms.FieldValues | None = None,
        *,
        click: str | None = None,
        label: str = "",
        meta: dict[str, Any] | None = None,
        priority: int = 0,
    ) -> Request:
        """Create the request that submits a form of this page, with its current values and the given ones.

        Without a CSS selector it is the form with a password field, else the first form. A value of None removes a
        field, a list sends several. The first submit button is included; `click` names another by name or id, or ""
        for none."""
        found = forms.fill_form(self.tree, query, fields or {}, click=click, encoding=self.encoding)
        if found.method == "POST":
            kind, body = forms.URLENCODED, b""
            if found.enctype == forms.MULTIPART:
                kind, body = forms.multipart(found.fields, found.charset)
            else:
                body = forms.urlencoded(found.fields, found.charset).encode()
            return self.follow(
                found.action or self.url,
                label=label,
                meta=meta,
                priority=priority,
                method="POST",
                headers={"content-type": kind},
                body=body,
            )
        if any(isinstance(value, Secret) for _, value in found.fields):
            raise ExtractError("a secret cannot be sent in a URL", hint="the form uses GET")
        address = (found.action or self.url).partition("#")[0].partition("?")[0]
        target = f"{address}?{forms.urlencoded(found.fields, found.charset)}"
        return self.follow(target, label=label, meta=meta, priority=priority)

    @property
    def _main_part(self) -> MainPart:
        if self._main is None:
            self._main = main_part(self.tree)
        return self._main

    def _xml_links(self, nofollow: bool, max_links: int) -> list[str]:
        """Return the pages that a feed lists, or the links of another XML document."""
        if nofollow and self.robots.nofollow:
            return []
        feed = sitemap.parse(self.body, self.url, self.header("content-type"))
        found = [entry.url for entry in feed.pages] if feed.kind in ("rss", "atom") else xml.links(self.tree)
        nothing = links.PageLinks(None, found, [])
        return self._taken(
            links.links(
                self.tree,
                nothing,
                self.url,
                also=self._header_links(),
                max_links=max_links,
                cache=self._link_cache,
            )
        )

    def _taken(self, listed: Links) -> list[str]:
        for reason in links.LOST:
            self.cut.pop(reason, None)
        self.cut.update(listed.cut)
        return listed.urls

    def _directives(self, metas: list[tuple[str, str]]) -> Directives:
        headers = self._all("x-robots-tag")
        if not metas and not headers:
            return metadata.NONE
        return metadata.read(headers, metas, agent=self._robot, now=self.response.fetched_at)

    def _header_links(self) -> list[str]:
        """Return the URLs in Link and Refresh headers."""
        found = []
        for name, value in self.response.headers:
            if name == "link":
                related = header_relations((value,), self.url)
                found += [each.url for each in related if links.is_followed(each.rels, each.attributes.get("hreflang"))]
            elif name == "refresh" and (refresh := links.parse_refresh(value)) is not None and refresh[1]:
                found += [url for url in (links.resolve(self.url, refresh[1]),) if url is not None]
        return found

    def _related(self, rel: str) -> str | None:
        return next((relation.url for relation in self.relations if rel in relation.rels), None)

    def _linked(self, rel: str) -> str | None:
        href = href_of(self.tree, rel) if self.is_html else ""
        return links.resolve(self.base, links.encode_query(href, self.encoding)) if href else None

    def _markup(self) -> bytes | str:
        """Return the parser's input: UTF-8 bytes as they are, other encodings decoded."""
        is_plain = self.encoding == "utf-8" and self.mime_type == "text/html"
        markup: bytes | str = self.body if is_plain else self.html
        if self.mime_type != "text/html":
            markup = expand_self_closing(self.html)
        if formatting.is_suspicious(markup if isinstance(markup, bytes) else markup.encode("utf-8", "replace")):
            markup, dropped = formatting.drop_excess_tags(self.html if isinstance(markup, bytes) else markup)
            if dropped:
                self.cut["formatting"] = dropped
        return markup


def _href(target: Target) -> str:
    if isinstance(target, str):
        return target
    if not target:
        raise ExtractError("nothing to follow: the selection is empty")
    attributes = target.attrib
    found = next((attributes[name] for name in _HREFS if attributes.get(name)), "" if target.tag else target.get(""))
    if not found:
        raise ExtractError(f"nothing to follow: {target!r} has no href")
    return found
