"""The page: what a spider sees of an answer, each part made when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import turbohtml
from turbohtml import Document

from gossamer.cut import parse_cut
from gossamer.errors import ExtractError
from gossamer.extract import directives, formatting, forms, links, paging, selectors, sitemap, xml
from gossamer.extract.answer import DecodedResponse
from gossamer.extract.directives import Directives
from gossamer.extract.links import LinkMemo, Links
from gossamer.extract.main_part import MainPart, main_part
from gossamer.extract.markdown import to_markdown
from gossamer.extract.metadata import Metadata, read_metadata
from gossamer.extract.relations import Relation, element_relations, header_relations
from gossamer.extract.selectors import Selection
from gossamer.extract.text import title_of, visible_text
from gossamer.extract.xhtml import spelled_out
from gossamer.model import Request, Response, Secret

Target = str | Selection
# Far more than pages have, and cheap to ask; then the depth from which on a parser nests no deeper.
_DEEP, _DEEPEST = turbohtml.XPath("/*" * 40), turbohtml.XPath("/*" * 513)
_HREFS = ("href", "xlink:href", "src")


class Page(DecodedResponse):
    """One fetched page. Reading a part twice costs nothing; reading none of them costs no parsing."""

    __slots__ = (
        "_base",
        "_main",
        "_markdown",
        "_max_links",
        "_memo",
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
        memo: LinkMemo | None = None,
        robot: str = "",
        nofollow: bool = True,
        max_links: int = links.MAX_LINKS,
    ) -> None:
        super().__init__(response, request)
        self.items: list[Any] = []
        """What the spider yielded here, for those who iterate over a crawl."""
        self.cut: dict[str, int | None] = parse_cut(response.cut)
        """What is missing of the body, the tree or the list of links, by the limit that dropped it; empty if nothing
        is. The number is how much was lost, None where nobody knows."""
        self._memo = memo
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
        """The tree of the page, of HTML or XML; one without a root where the body is neither."""
        if self._tree is None:
            if not self.is_html:
                self._tree = xml.parse(self.html) if self.is_xml else xml.empty()
                return self._tree
            self._tree = tree = turbohtml.parse(
                self._markup(), encoding="utf-8", positions=False, allow_declarative_shadow_roots=False
            )
            # What is in a declarative shadow root is on the page, and in the tree a part of its host like any other.
            for template in tree.select("template[shadowrootmode]"):
                template.replace_with(*(node for content in template for node in content))
            if _DEEP(tree) and _DEEPEST(tree):
                self.cut["tree_depth"] = None
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
        """The main part of the page as Markdown, without menus and the like; its links are absolute."""
        if self._markdown is None:
            self._markdown = self.to_markdown()
        return self._markdown

    def to_markdown(self, *, main: bool = True) -> str:
        """The page as Markdown: its main part, or with `main=False` all that a reader sees."""
        part = self._main_part if main else None
        return to_markdown(self.tree, self.base, main=part, encoding=self.encoding)

    @property
    def main_text(self) -> str:
        """The main part of the page as plain text, a line per block."""
        return self._main_part.text

    @property
    def main_share(self) -> float:
        """How much of the visible text is in the main part, from 0 to 1; 1 where there is none."""
        return self._main_part.share

    @property
    def metadata(self) -> Metadata:
        """What the page says of itself: author, dates, language, and the structured data in it."""
        if self._metadata is None:
            self._metadata = read_metadata(
                self.tree, title=self.title, language=self.header("content-language"), base=self.base
            )
        return self._metadata

    @property
    def base(self) -> str:
        """The URL that the page's relative links start from."""
        if self._base is None:
            self._base = links.base_url(self.tree, self.url)
        return self._base

    @property
    def robots(self) -> Directives:
        """What the page asks of robots, by `<meta>` and X-Robots-Tag, of all or of ours: `page.robots.noindex`."""
        if self._robots is None:
            self._robots = self._directives(links.find(self.tree).metas if self.is_html else [])
        return self._robots

    @property
    def relations(self) -> tuple[Relation, ...]:
        """What the page says of other URLs, in its Link headers, then in the `<link>` elements of its head."""
        if self._relations is None:
            elements = element_relations(self.tree, self.base, encoding=self.encoding) if self.is_html else ()
            self._relations = (*header_relations(self._all("link"), self.url), *elements)
        return self._relations

    @property
    def canonical(self) -> str | None:
        """The URL that the page calls its own; None if it names none."""
        return self._related("canonical")

    @property
    def next(self) -> str | None:
        """The URL of the next page of a series, by rel=next; None on the last. `next_page` makes a request of it."""
        return self._related("next") or self._linked("next")

    @property
    def prev(self) -> str | None:
        """The URL of the page before, by rel=prev; None on the first."""
        return self._related("prev") or self._related("previous") or self._linked("prev")

    @property
    def alternates(self) -> dict[str, str]:
        """Language -> URL of the page in other languages, by hreflang, in lower case; `x-default` for the rest."""
        found: dict[str, str] = {}
        for relation in self.relations:
            language = relation.attributes.get("hreflang", "").strip().lower()
            if language and "alternate" in relation.rels:
                found.setdefault(language, relation.url)
        return found

    def css(self, query: str) -> Selection:
        """What a CSS selector finds; `::text` and `::attr(name)` give strings."""
        return selectors.css(self.tree, query, is_xml=self.is_xml)

    def xpath(
        self, query: str, *, namespaces: Mapping[str, str] | None = None, **variables: selectors.Variable
    ) -> Selection:
        """What an XPath expression finds; `$name` in it is a variable, as in `page.xpath("//a[@id=$id]", id="x")`."""
        return selectors.xpath(self.tree, query, namespaces, variables, is_xml=self.is_xml)

    def links(self, region: str = "", *, nofollow: bool | None = None, max_links: int | None = None) -> list[str]:
        """The http(s) URLs that the page links to, each once: those of its headers, then its own in their order.

        `region` takes only those inside what a CSS selector finds. `nofollow` obeys the page's wish not to follow all,
        or some, of its links. Without it, or without `max_links`, the job's setting counts; `cut` has what that limit,
        in the last call, left out."""
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
            memo=self._memo,
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
        target: Target = self.next or ""
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

    @property
    def _main_part(self) -> MainPart:
        if self._main is None:
            self._main = main_part(self.tree)
        return self._main

    def _xml_links(self, nofollow: bool, max_links: int) -> list[str]:
        """The pages that a feed lists; of other documents, their links."""
        if nofollow and self.robots.nofollow:
            return []
        feed = sitemap.parse(self.body, self.url, self.header("content-type"))
        found = [entry.url for entry in feed.pages] if feed.kind in ("rss", "atom") else xml.links(self.tree)
        nothing = links.PageLinks(None, found, [])
        return self._taken(
            links.links(self.tree, nothing, self.url, also=self._header_links(), max_links=max_links, memo=self._memo)
        )

    def _taken(self, listed: Links) -> list[str]:
        for reason in links.LOST:
            self.cut.pop(reason, None)
        self.cut.update(listed.cut)
        return listed.urls

    def _directives(self, metas: list[tuple[str, str]]) -> Directives:
        headers = self._all("x-robots-tag")
        if not metas and not headers:
            return directives.NONE
        return directives.read(headers, metas, agent=self._robot, now=self.response.fetched_at)

    def _header_links(self) -> list[str]:
        """The pages that Link and Refresh headers lead to."""
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
        href = paging.href_of(self.tree, rel) if self.is_html else ""
        return links.resolve(self.base, links.encode_query(href, self.encoding)) if href else None

    def _markup(self) -> bytes | str:
        """What the parser reads: UTF-8 as it is, all else decoded."""
        is_plain = self.encoding == "utf-8" and self.mime_type == "text/html"
        markup: bytes | str = self.body if is_plain else self.html
        if self.mime_type != "text/html":
            markup = spelled_out(self.html)
        if formatting.is_suspicious(markup if isinstance(markup, bytes) else markup.encode("utf-8", "replace")):
            markup, dropped = formatting.without_excess(self.html if isinstance(markup, bytes) else markup)
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
