"""The page: what a spider sees of an answer, each part made when it is first asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lxml import etree
from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

from gossamer.errors import ExtractError
from gossamer.extract import bounds, forms, links, paging, selectors
from gossamer.extract.encoding import decode, detect
from gossamer.extract.links import LinkMemo
from gossamer.extract.markdown import main_part
from gossamer.extract.metadata import Metadata, metadata
from gossamer.extract.selectors import Selection
from gossamer.extract.sniff import is_html
from gossamer.extract.text import title_of, visible_text
from gossamer.model import Headers, Request, Response, Secret

WITHOUT_EVENTS = int(LexborDocumentOptions.WO_EVENTS)
Target = str | Selection


class Page:
    """One fetched page. Reading a part twice costs nothing; reading none of them costs no parsing."""

    __slots__ = (
        "_base",
        "_document",
        "_encoding",
        "_html",
        "_is_html",
        "_markdown",
        "_memo",
        "_metadata",
        "_text",
        "_title",
        "_tree",
        "cut",
        "items",
        "request",
        "response",
    )

    def __init__(self, response: Response, request: Request, *, memo: LinkMemo | None = None) -> None:
        self.response = response
        self.request = request
        self.items: list[Any] = []
        """What the spider yielded here, for those who iterate over a crawl."""
        self.cut = False
        """Whether the tree, or the list of links, is only a part: the rest was beyond a limit."""
        self._memo = memo
        self._encoding: str | None = None
        self._html: str | None = None
        self._is_html: bool | None = None
        self._tree: LexborHTMLParser | None = None
        self._document: etree._Element | None = None
        self._title: str | None = None
        self._text: str | None = None
        self._markdown: str | None = None
        self._metadata: Metadata | None = None
        self._base: str | None = None

    def __repr__(self) -> str:
        return f"<Page {self.status} {self.url}>"

    @property
    def url(self) -> str:
        """The URL that answered."""
        return self.response.url

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status

    @property
    def headers(self) -> Headers:
        """The headers as they came, names in lower case."""
        return self.response.headers

    @property
    def body(self) -> bytes:
        """The body, decoded by its Content-Encoding."""
        return self.response.body

    @property
    def depth(self) -> int:
        """How many links away from a seed the page is."""
        return self.request.depth

    @property
    def label(self) -> str:
        """The label of the request, which chose the handler."""
        return self.request.label

    @property
    def meta(self) -> dict[str, Any]:
        """What the spider gave along with the request."""
        return self.request.meta or {}

    @property
    def referrer(self) -> str:
        """The page on which this one was found; empty for a seed."""
        return self.request.referrer

    def header(self, name: str, default: str = "") -> str:
        """The first header of that name, in any case."""
        return self.response.header(name.lower(), default)

    @property
    def is_html(self) -> bool:
        """Whether the body is HTML by its type, and by its first bytes as far as types lie."""
        if self._is_html is None:
            self._is_html = is_html(self.body, self.header("content-type"))
        return self._is_html

    @property
    def encoding(self) -> str:
        """The name of the encoding that the body is in, as a browser finds it."""
        if self._encoding is None:
            self._encoding = detect(self.body, self.header("content-type"))
        return self._encoding

    @property
    def html(self) -> str:
        """The body as text."""
        if self._html is None:
            self._html = decode(self.body, self.encoding)
        return self._html

    @property
    def tree(self) -> LexborHTMLParser:
        """The tree of the page; an empty one where the body is not HTML."""
        if self._tree is None:
            self._tree = LexborHTMLParser(self._markup(), options=WITHOUT_EVENTS)
        return self._tree

    @property
    def title(self) -> str:
        """The text of `<title>`, white space made single."""
        if self._title is None:
            self._title = title_of(self.tree)
        return self._title

    @property
    def text(self) -> str:
        """The text that a reader sees, white space made single, one line per block."""
        if self._text is None:
            self._text = visible_text(self.tree)
        return self._text

    @property
    def markdown(self) -> str:
        """The main part of the page as Markdown, without menus and the like; needs the extra `text`."""
        if self._markdown is None:
            self._markdown = main_part(self.tree)
        return self._markdown

    @property
    def main_text(self) -> str:
        """The main part of the page as plain text; needs the extra `text`."""
        return main_part(self.tree, form="txt")

    @property
    def metadata(self) -> Metadata:
        """What the page says of itself: author, dates, language, Open Graph, JSON-LD, microdata."""
        if self._metadata is None:
            self._metadata = metadata(self.tree, title=self.title, language=self.header("content-language"))
        return self._metadata

    @property
    def base(self) -> str:
        """The URL that the page's relative links start from."""
        if self._base is None:
            self._base = links.base_url(self.tree, self.url)
        return self._base

    def json(self) -> Any:
        """The body as JSON; an ExtractError if it is not."""
        try:
            return json.loads(self.html)
        except (ValueError, RecursionError) as error:
            raise ExtractError(f"{self.url} is not JSON: {error}") from error

    def css(self, query: str) -> Selection:
        """What a CSS selector finds; `::text` and `::attr(name)` give strings."""
        return selectors.css(self.tree.root, query)

    def xpath(self, query: str) -> Selection:
        """What an XPath expression finds."""
        if self._document is None and self.is_html:
            self._document = selectors.document(decode(self._markup(), "utf-8"))
        return Selection(selectors.xpath(self._document, query))

    def links(self, region: str = "", *, nofollow: bool = True, max_links: int = 5000) -> list[str]:
        """The http(s) URLs that the page links to, each once, in its order.

        `region` takes only those inside what a CSS selector finds. `nofollow` obeys the page's wish not to follow all,
        or some, of its links."""
        if not self.is_html:
            return []
        found = links.links(
            self.tree,
            self.url,
            encoding=self.encoding,
            region=region,
            nofollow=nofollow,
            robots=[value for name, value in self.response.headers if name == "x-robots-tag"],
            max_links=max_links,
            memo=self._memo,
        )
        self._base = found.base
        self.cut = self.cut or found.cut
        return found.urls

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
        """A request for a link of this page: an href, or a selection whose first element has one.

        `json` is posted as JSON, unless another method is named."""
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
        """Requests for many links, each URL once: hrefs, selections, or what a CSS selector (also given first) finds.

        Without any of these, all links of the page. What is not a URL to follow is left out."""
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
        """The request for the next page of a list, None on the last: by its Link header or an element with rel=next.

        Where the site says neither, a CSS selector finds the link."""
        target: Target = paging.next_href(
            self.tree if self.is_html else None, [value for name, value in self.headers if name == "link"]
        )
        if not target and query:
            target = self.css(query)
        if not target:
            return None
        request = self.follow(target, label=label or self.label, meta=meta)
        return request if request.url != self.url else None

    def with_query(self, **changes: object) -> str:
        """The URL of this page with other parameters: `page.follow(page.with_query(offset=40))`; None drops one."""
        return paging.with_query(self.url, changes)

    def file(self, target: Target, *, meta: dict[str, Any] | None = None) -> Request:
        """A request for a file to be kept as it is: up to `max_file_bytes` long, and handled by `parse_file`."""
        return self.follow(target, label="file", meta=meta)

    def form(
        self,
        query: str = "",
        fields: forms.Given | None = None,
        *,
        click: str | None = None,
        label: str = "",
        meta: dict[str, Any] | None = None,
        priority: int = 0,
    ) -> Request:
        """The request that submits a form of this page, with the values it has and those that are given.

        Without a CSS selector it is the form with a password, else the first. A value of None takes a field away, a
        list gives several. The first submit button goes along; `click` names another by name or id, or "" for none."""
        found = forms.submission(self.tree, query, fields or {}, click=click, encoding=self.encoding)
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
            raise ExtractError("a secret does not go into a URL", hint="the form is sent with GET")
        address = (found.action or self.url).partition("#")[0].partition("?")[0]
        target = f"{address}?{forms.urlencoded(found.fields, found.charset)}"
        return self.follow(target, label=label, meta=meta, priority=priority)

    def _markup(self) -> bytes:
        """The body in UTF-8, as far as it is safe to parse."""
        if not self.is_html:
            return b""
        body = self.body
        if self.encoding != "utf-8":
            body = self.html.encode("utf-8", "replace")
        elif body.startswith(b"\xef\xbb\xbf"):
            body = body[3:]
        length = bounds.safe_length(body)
        if length < len(body):
            self.cut = True
            body = body[:length]
        return body


def _href(target: Target) -> str:
    if isinstance(target, str):
        return target
    if not target:
        raise ExtractError("nothing to follow: the selection is empty")
    attributes = target.attrib
    found = attributes.get("href") or attributes.get("src") or ("" if target.tag else target.get(""))
    if not found:
        raise ExtractError(f"nothing to follow: {target!r} has no href")
    return found
