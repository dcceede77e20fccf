"""Fuzzing of pages: links, titles, texts, forms; and of URLs."""

from __future__ import annotations

from collections.abc import Callable

from fuzz_texts import octets, pumped, takes_linear_work, texts
from hypothesis import given
from hypothesis import strategies as st

from gossamer import urls
from gossamer.download.guard import check_url
from gossamer.engine.scope import Scope
from gossamer.engine.traps import has_far_date, prefix_of
from gossamer.errors import ExtractError, Forbidden
from gossamer.extract.encoding import NAMES
from gossamer.extract.links import LinkCache, encode_query, resolve
from gossamer.extract.page import Page
from gossamer.extract.text import MAX_TITLE, main_text
from gossamer.model import Request, Response
from gossamer.settings import build

HTML = (
    *(
        "<html>",
        "<head>",
        "<title>",
        "</title>",
        "<base href='",
        "http://b.example/x/",
        "<a href=",
        "/1",
        "'",
        '"',
        ">",
        "</a>",
    ),
    *(
        "<a rel=nofollow href=/2>",
        "<area href=3>",
        "<link rel=next href=4>",
        "<meta name=robots content=",
        "nofollow",
        "none",
    ),
    *(
        "<meta http-equiv=refresh content='0;url=/5'>",
        "<iframe src=6>",
        "<div>",
        "</div>",
        "<p>",
        "<b>",
        "<table><tr><td>",
    ),
    *(
        "<svg><title>",
        "<script>",
        "</script>",
        "<!--",
        "-->",
        "<style>",
        "<textarea>",
        "<template>",
        "<![CDATA[",
        "&amp;",
        "&#0;",
    ),
    *(
        "<svg>",
        "</svg>",
        "<math><mtext>",
        "<foreignObject>",
        "<a xlink:href=7>",
        "<link rel=next xlink:href=8>",
        "<base xlink:href=9>",
        "<frame xlink:src=/1>",
        "<form><form>",
        "<template shadowrootmode=open>",
        "</template>",
        "<noframes>",
        " :href=/x @click=y xml:lang=z xmlns:a=b xlink:rel=next rel href",
        "<meta xlink:content=0 name http-equiv=refresh>",
        "<script type=application/ld+json>[{,}]",
        "<div itemscope itemref=a id=a itemprop=b>",
    ),
    *(
        "javascript:x",
        "data:,x",
        "mailto:x",
        "\\\\evil.example",
        "//c.example",
        "?q=",
        "#f",
        "..",
        "/./",
        "<plaintext>",
        "<br/>",
    ),
)
FORMS = (
    *(
        "<form action=",
        "/go",
        " method=post",
        " method=get",
        ">",
        "<input name=a value=b>",
        "<input type=password name=p>",
    ),
    *(
        "<input type=submit name=s>",
        "<select name=x>",
        "<option selected>",
        "<option value=1>",
        "<textarea name=t>",
        "</textarea>",
    ),
    *(
        "<button name=k>",
        "</form>",
        "<fieldset disabled>",
        "</fieldset>",
        " accept-charset=gbk",
        " enctype=multipart/form-data",
    ),
    *(
        "<input type=checkbox name=c checked>",
        "<form id=f>",
        "<input form=f name=g>",
        "${secret:X}",
        "</select>",
        "<div>",
    ),
)
URLS = (
    *(
        "http:",
        "https:",
        "/",
        "//",
        "\\",
        "a.example",
        "127.0.0.1",
        "0x7f.1",
        "[::1]",
        "@",
        ":",
        "80",
        "65536",
        "?",
        "#",
        "=",
    ),
    *(
        "&",
        ".",
        "..",
        "utm_source=x",
        "2026/01/",
        "month=1",
        "xn--",
        "%2e",
        "%0d%0a",
        "a/a/a/a/",
        ".jpg",
        "localhost",
        "ß",
        ".",
    ),
)
TYPES = st.sampled_from(
    ["text/html", "text/html; charset=gbk", "text/html; charset=utf-16le", "", "text/plain", "image/png"]
)
ORIGIN = "http://a.example/dir/page?x=y"


def page(body: bytes, content_type: str = "text/html", *headers: tuple[str, str]) -> Page:
    every = (("content-type", content_type), *headers)
    return Page(Response(url=ORIGIN, status=200, headers=every, body=body), Request(url=ORIGIN))


@given(octets(*(piece.encode() for piece in HTML), most=80), TYPES, texts("nofollow", "none", ":", ",", "bot", " "))
def test_a_page_gives_normal_links_and_plain_text(body: bytes, content_type: str, said: str) -> None:
    one = page(body, content_type, ("x-robots-tag", said))
    links = one.links(max_links=10)
    assert len(links) <= 10
    assert len(set(links)) == len(links)
    assert all(urls.normal(url) == url for url in links)
    assert links == page(body, content_type, ("x-robots-tag", said)).links(max_links=10)
    assert set(links) <= set(page(body, content_type).links(nofollow=False))
    assert len(one.title) <= MAX_TITLE
    assert one.title == " ".join(one.title.split())
    for text in (one.text, main_text(one.tree)):
        assert all(line and line == " ".join(line.split()) for line in text.split("\n") if text)
    assert isinstance(one.xpath("//a/@href").getall(), list)
    assert isinstance(one.metadata.microdata, list)
    assert isinstance(one.relations, tuple)
    assert len(one.follow_all("a, link, base, meta, svg *")) <= body.count(b"<")
    assert (one.prev, one.alternates, one.base) == (one.prev, one.alternates, one.base)
    following = one.next_page("a")
    assert following is None or urls.normal(following.url) == following.url


@given(
    octets(*(piece.encode() for piece in FORMS), most=40),
    st.dictionaries(texts("a", "p", "t", most=2), texts(most=3), max_size=3),
)
def test_form_is_submitted_or_raises_extract_error(body: bytes, fields: dict[str, str]) -> None:
    try:
        request = page(b"<form>" + body).form("", fields)
        again = page(b"<form>" + body).form("", fields)
    except ExtractError:
        return
    assert urls.normal(request.url) == request.url
    assert (request.url, request.body, request.headers) == (again.url, again.body, again.headers)
    assert b"${secret:" not in request.body
    assert "${secret:" not in request.url


@given(st.text(max_size=10), texts("css", "::text", "[", "]", "a", ">", ":not(", ")", "//", "@href", "'", '"', "*"))
def test_invalid_selector_raises_extract_error(text: str, query: str) -> None:
    for select in (page(text.encode("utf-8", "replace")).css, page(b"<p>x").xpath):
        try:
            select(query).getall()
        except ExtractError:
            pass


@given(texts(*URLS), texts(*URLS))
def test_a_url_has_one_normal_form(first: str, second: str) -> None:
    url = urls.normal(first)
    if url is not None:
        assert urls.normal(url) == url
        clean = urls.clean_query(url)
        assert urls.clean_query(clean) == clean
        assert urls.join(url, second) == resolve(url, second) == LinkCache().resolve(url, [second])[0]
        assert url.startswith(urls.origin(url))
        assert urls.registered_domain(urls.host_port(url))
        assert isinstance(prefix_of(urls.path_query(url)), str)
        assert has_far_date(urls.path_query(url), year=2026, settings=build({})) in (True, False)
        try:
            target = check_url(url)
        except Forbidden:
            return
        assert target.host == urls.host(urls.host_port(url)).strip("[]")


WORDS = {None, "depth", "length", "scope", "deny", "allow", "extension", "segments", "repeats"}


@given(texts(*URLS), texts(*URLS), st.integers(0, 9), st.sampled_from(["site", "domain", "any"]))
def test_scope_gives_a_reason_for_every_refusal(first: str, second: str, depth: int, kind: str) -> None:
    base, scope = "http://a.example/", Scope(build({"scope": kind, "max_depth": 5, "deny": ["x="]}))
    for url in (urls.join(base, first), urls.normal(second)):
        if url is not None:
            word = scope.refuse(url, base, depth)
            assert word in WORDS
            assert kind == "any" or word or urls.registered_domain(urls.host_port(url)) == "a.example"


@given(texts("?", "a=", "é", "日", "#", "&"), st.sampled_from(sorted(NAMES)))
def test_a_query_in_another_encoding_is_still_one_reference(reference: str, encoding: str) -> None:
    written = encode_query(reference, encoding)
    assert encode_query(written, encoding) == written
    assert written.count("#") == reference.strip("\t\n\f\r ").translate(dict.fromkeys(map(ord, "\t\n\r"))).count(
        "#"
    ) or (written == reference)


@given(pumped(HTML))
def test_h31_h35_a_page_takes_linear_work(text: Callable[[int], str]) -> None:
    def read(body: str) -> None:
        one = page(body.encode("utf-8", "replace"), "text/html; charset=utf-8")
        assert one.title is not None
        assert len(one.links()) <= 5000
        assert one.text is not None

    takes_linear_work(read, text, size=50_000)


@given(pumped(FORMS))
def test_h35_a_form_takes_linear_work(text: Callable[[int], str]) -> None:
    def fill_in(body: str) -> None:
        try:
            page(b"<form>" + body.encode("utf-8", "replace")).form()
        except ExtractError:
            pass

    takes_linear_work(fill_in, text, size=50_000)


@given(pumped(URLS))
def test_h35_a_url_takes_linear_work(text: Callable[[int], str]) -> None:
    scope = Scope(build({"max_url_length": 10_000_000, "scope": "any"}))

    def look(body: str) -> None:
        url = urls.join("http://a.example/", body)
        if url is not None:
            urls.clean_query(url)
            scope.refuse(url, "http://a.example/", 1)
            has_far_date(urls.path_query(url), year=2026, settings=build({}))
            prefix_of(urls.path_query(url))

    takes_linear_work(look, text)
