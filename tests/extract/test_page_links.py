from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer import urls
from gossamer.errors import ExtractError
from gossamer.extract import links as module
from gossamer.extract.links import LinkCache, encode_query, parse_refresh, parse_srcset, resolve
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.example/dir/page.html?q=1"


def page(
    html: str | bytes, *, url: str = URL, charset: str = "utf-8", link_cache: LinkCache | None = None, **headers: str
) -> Page:
    given = (("content-type", f"text/html; charset={charset}"), *((k.replace("_", "-"), v) for k, v in headers.items()))
    body = html if isinstance(html, bytes) else html.encode(charset)
    return Page(Response(url=url, status=200, headers=given, body=body), Request(url=url), link_cache=link_cache)


def test_links_of_all_kinds_are_found_in_order_and_once() -> None:
    html = """<head><link rel=canonical href=/canonical><link rel="NEXT" href=/next><link rel=stylesheet href=/s.css>
    <meta http-equiv=Refresh content="5; url='/refreshed'"></head><body>
    <a href=/one>1</a><map><area href="two"></map><a href="/one">again</a><a name=x>none</a><a href>self</a>
    <iframe src=/framed></iframe><img src=/no.png><script src=/no.js></script><svg><use href="/no.svg"></use></svg>"""
    assert page(html).links() == [
        "http://a.example/canonical",
        "http://a.example/next",
        "http://a.example/one",
        "http://a.example/dir/two",
        "http://a.example/dir/page.html?q=1",
        "http://a.example/refreshed",
        "http://a.example/framed",
    ]


@pytest.mark.parametrize(
    ("href", "url"),
    [
        (" \n/x\t ", "http://a.example/x"),
        ("/a&amp;b?c=1&amp;d=2", "http://a.example/a&b?c=1&d=2"),
        ("x#frag", "http://a.example/dir/x"),
        ("..\\up", "http://a.example/up"),
        ("/a\nb", "http://a.example/ab"),
        ("//B.example:80", "http://b.example/"),
        ("/%2e%2e/x", "http://a.example/x"),
        ("/a&#0;b", "http://a.example/a%EF%BF%BDb"),
        ("http://b&uuml;cher.example/", "http://xn--bcher-kva.example/"),
        ("?p=2", "http://a.example/dir/page.html?p=2"),
        ("http:x", "http://a.example/dir/x"),
        ("HTTPS://B.example/X", "https://b.example/X"),
    ],
)
def test_href_is_parsed_like_in_a_browser(href: str, url: str) -> None:
    """H34."""
    assert page(f'<a href="{href}">x</a>').links() == [url]


@pytest.mark.parametrize(
    "href", ["javascript:void(0)", "mailto:a@b.c", "ftp://x/", "data:,x", "http://[::1", "http://u:p@h/", "tel:1"]
)
def test_non_http_urls_are_skipped(href: str) -> None:
    """H34."""
    assert page(f'<a href="{href}">x</a><a href="/good">y</a>').links() == ["http://a.example/good"]


@pytest.mark.parametrize(
    ("bases", "url"),
    [
        ('<base href="http://b.example/x/">', "http://b.example/x/l"),
        ('<base href="/y/"><base href="/z/">', "http://a.example/y/l"),
        ('<base target=_top><base href="/z/">', "http://a.example/z/l"),
        ('<base href="javascript:x"><base href="/z/">', "http://a.example/dir/l"),
        ('<base href="data:,x">', "http://a.example/dir/l"),
        ('<base href="http://[bad">', "http://a.example/dir/l"),
        ('<base href="">', "http://a.example/dir/l"),
        ('<base href="?other">', "http://a.example/dir/l"),
    ],
)
def test_first_usable_base_is_used(bases: str, url: str) -> None:
    """H33."""
    assert page(f"{bases}<a href=l>x</a>").links() == [url]


def test_base_after_the_links_applies_to_them() -> None:
    assert page("<a href=l>x</a><p><base href=/late/>").links() == ["http://a.example/late/l"]


def test_a_base_of_another_scheme_leaves_only_absolute_links() -> None:
    """H33."""
    assert page('<base href="ftp://f.example/"><a href=l>x</a><a href="http://c.example/y">y</a>').links() == [
        "http://c.example/y"
    ]


def test_nofollow_links_are_skipped_on_request() -> None:
    """H47."""
    html = '<a href=/1>a</a><a href=/2 rel="x NoFollow">b</a><a href=/3 rel=ugc>c</a><a href=/4 rel=sponsored>d</a>'
    assert page(html).links() == ["http://a.example/1"]
    assert len(page(html).links(nofollow=False)) == 4


@pytest.mark.parametrize("content", ["nofollow", "noindex, NOFOLLOW", "none"])
def test_nofollow_page_has_no_links(content: str) -> None:
    """H47."""
    html = f'<meta name="ROBOTS" content="{content}"><a href=/1>a</a>'
    assert page(html).links() == []
    assert page(html).links(nofollow=False) == ["http://a.example/1"]
    assert page("<a href=/1>a</a>", x_robots_tag=content).links() == []


@pytest.mark.parametrize("header", ["noindex", "otherbot: nofollow", "otherbot: noindex, nofollow", "nofollowing"])
def test_rules_for_other_agents_are_ignored(header: str) -> None:
    """H47."""
    assert page("<a href=/1>a</a>", x_robots_tag=header).links() == ["http://a.example/1"]


def test_a_rule_with_a_value_does_not_hide_the_next() -> None:
    assert page("<a href=/1>a</a>", x_robots_tag="max-snippet: 20, nofollow").links() == []


def test_region_limits_links_but_not_the_base() -> None:
    html = (
        "<base href=/b/><nav><a href=no>n</a></nav><main><p><a href=yes>y</a></p></main><main><a href=too>t</a></main>"
    )
    assert page(html).links("main") == ["http://a.example/b/yes", "http://a.example/b/too"]
    assert page(html).links("aside") == []
    with pytest.raises(ExtractError, match=r"'main\['"):
        page(html).links("main[")


def test_links_in_templates_are_inert_and_in_noscript_are_not() -> None:
    html = "<template><a href=/t>t</a></template><noscript><a href=/n>n</a></noscript>"
    assert page(html).links() == ["http://a.example/n"]


def test_links_beyond_the_limit_are_marked_cut() -> None:
    one = page("".join(f"<a href=/{n}>x</a>" for n in range(30)))
    assert len(one.links(max_links=10)) == 10
    assert one.cut == {"max_links": 20}
    # Asked again for all of them, the page is whole.
    assert len(one.links()) == 30
    assert not one.cut
    assert not page("<a href=/1>x</a>").cut


def test_only_possible_pages_count_as_lost_links() -> None:
    several = "".join(f"<a href=/{n}>x</a>" for n in range(5))
    one = page(f"{several}<a href=/0>again</a><a href=mailto:a@b.example>m</a><a href=' JavaScript:x()'>j</a>")
    assert len(one.links(max_links=5)) == 5
    assert not one.cut
    assert len(one.links(max_links=2)) == 2
    assert one.cut == {"max_links": 3}


def test_data_url_is_not_an_overlong_link() -> None:
    one = page(f"<a href='data:image/png;base64,{'A' * 70_000}'>x</a><a href=/1>x</a>")
    assert one.links() == ["http://a.example/1"]
    assert not one.cut
    one = page(f"<a href='/{'A' * 70_000}'>x</a><a href=/1>x</a>")
    assert one.links() == ["http://a.example/1"]
    assert one.cut == {"long_links": 1}


def test_link_limit_is_a_setting() -> None:
    found = module.PageLinks(None, [f"/{n}/{'x' * 120}" for n in range(100_001)], [])
    listed = module.links(page("").tree, found, URL, max_links=100_000)
    assert (len(listed.urls), listed.cut) == (100_000, {"max_links": 1})
    assert module.links(page("").tree, found, URL, max_links=100_001).cut == {}


def test_page_inherits_the_cut_of_its_response() -> None:
    response = Response(url=URL, status=200, cut="disconnect:?", body=b"<a href=/1>x</a><a href=/2>y</a>")
    one = Page(response, Request(url=URL))
    one.links(max_links=1)
    assert one.cut == {"disconnect": None, "max_links": 1}


def test_query_is_encoded_in_the_page_encoding() -> None:
    one = page('<a href="/stra\u00dfe?q=stra\u00dfe&amp;x=\u20ac#\u00df">x</a>', charset="windows-1252")
    assert one.links() == ["http://a.example/stra%C3%9Fe?q=stra%DFe&x=%80"]
    assert page('<a href="?q=\u65e5">x</a>', charset="shift_jis").links() == ["http://a.example/dir/page.html?q=%93%FA"]


def test_unencodable_letters_become_character_references() -> None:
    assert encode_query("/x?q=a\u2603b", "windows-1252") == "/x?q=a%26%239731%3Bb"


def test_shared_link_cache_serves_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    link_cache = LinkCache()
    first = page("<a href=/x#top>x</a>", link_cache=link_cache).links()
    assert len(link_cache) == 1
    monkeypatch.delattr(module, "resolve")
    assert page("<a href=/x#top>x</a>", link_cache=link_cache).links() == first


def test_plain_links_of_the_own_host_bypass_the_link_cache() -> None:
    link_cache = LinkCache()
    found = page(
        "<a href=/x>1</a><a href=y?z=%20>2</a><a href=http://a.example/~w>3</a>", link_cache=link_cache
    ).links()
    assert found == ["http://a.example/x", "http://a.example/dir/y?z=%20", "http://a.example/~w"]
    assert len(link_cache) == 0


def test_link_cache_does_not_change_links() -> None:
    link_cache = LinkCache(8)
    for folder in ("x", "y", "x"):
        for number in range(5):
            hrefs = (f"/top{number}", f"rel{number}", f"http://b.example/{number}", "//c/")
            html = "".join(f"<a href={href}>x</a>" for href in hrefs)
            url = f"https://a.example/{folder}/"
            assert page(html, url=url, link_cache=link_cache).links() == page(html, url=url).links()


@given(
    st.lists(
        st.tuples(st.sampled_from(["http://a/x/", "http://a/y/", "https://b/"]), st.sampled_from("abcdefgh/ij")),
        max_size=60,
    )
)
def test_link_cache_is_bounded_and_transparent(asked: list[tuple[str, str]]) -> None:
    link_cache = LinkCache(6)
    for base, reference in asked:
        asked_for = f"{reference}#"
        assert link_cache.resolve(base, [asked_for]) == [urls.join(base, asked_for)]
        assert len(link_cache) <= 6


def test_link_cache_keeps_frequent_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(base: str, reference: str) -> str | None:
        asked.append(reference)
        return urls.join(base, reference)

    monkeypatch.setattr(module, "resolve", counted)
    link_cache = LinkCache(20)
    for number in range(200):
        link_cache.resolve("http://a/", ["/menu#", f"/{number}#"])
    assert asked.count("/menu#") == 1


def test_huge_href_is_not_cached() -> None:
    link_cache = LinkCache()
    link_cache.resolve("http://a/", ["/#" + "x" * 1_000_000])
    assert len(link_cache) == 0


PARTS = """
    a B 9 / // . .. ./ %2e % ? # : @ \\ - _ ~ http: https: http:// https:// x.example localhost 127.1 0x7f.1 [::1] :80
    :443 & = + xn--a a.b. c| ; , ' " < ` { user@ 1.2.3.4.5 256.1.1.1 a..b -a- \u00fc
"""
pieces = st.sampled_from([*PARTS.split(), " ", "\t", "\n", "\0"])
references = st.lists(pieces, max_size=8).map("".join)
bases = st.sampled_from(
    [
        "http://a.example/",
        "https://a.example:8080/dir/page.html?x=/y/..#f/g",
        "http://a.example/a//b/",
        "http://[::1]:81/x/y",
        "http://127.0.0.1/%2e/x",
        "https://u:p@a.example/x/",
        "ftp://a.example/x/",
        "http://a.example/x/.hidden/;p=1/z",
    ]
)


@given(bases, st.lists(references, max_size=4))
@example("http://a.example/x/", ["/a\nb", "/c"])
@example("http://a.example/x/", ["a%2e/b", "b/%2e%2E/c"])
@example("http://a.example/x/", ["b/%2e%2E/c"])
@example("http://a.example/x/", ["//b.example/", "/c"])
@example("http://a.example/x/", ["mailto:a", "h:b", "b?c:d"])
def test_batch_resolution_equals_single_resolution(base: str, several: list[str]) -> None:
    normal = urls.resolve(base, "") or base
    assert LinkCache().resolve(normal, several) == [urls.join(normal, reference) for reference in several]


@given(bases, references)
@example("http://a.example/", "//")
@example("http://a.example/", "/..")
@example("http://a.example/x/", "")
@example("http://a.example/", "http://a.example")
@example("https://a.example/", "https://x.example:443/")
@example("http://a.example/", "http://1/")
@example("http://a.example/", "http://a.example/./b")
def test_shortcut_resolves_like_the_url_parser(base: str, reference: str) -> None:
    normal = urls.resolve(base, "") or base
    assert resolve(normal, reference) == urls.join(normal, reference)


@given(bases, st.text(alphabet=st.characters(max_codepoint=0x17F), max_size=12))
def test_any_text_resolves_like_the_url_parser(base: str, reference: str) -> None:
    normal = urls.resolve(base, "") or base
    assert resolve(normal, reference) == urls.join(normal, reference)
    assert LinkCache().resolve(normal, [reference]) == [urls.join(normal, reference)]


@given(references)
@example("?p=2")
@example("")
@example("#x")
@example("http:?p")
@example("\t?p")
@example("//c.example/")
def test_link_cache_filled_by_other_pages_is_transparent(reference: str) -> None:
    link_cache = LinkCache()
    for base in (
        "http://a.example/x/one.html",
        "http://a.example/x/two.html?q",
        "http://a.example/x/y/",
        "https://a.example/x/",
        "http://b.example:81/x/",
        "ftp://a.example/x/",
        "https://u:p@a.example/x/",
    ):
        assert link_cache.resolve(base, [reference]) == [urls.join(base, reference)]


def test_refresh_with_many_digits_is_far_in_the_future() -> None:
    assert parse_refresh("9" * 100_000 + ";url=x") == (10**9, "x")


@given(st.text(alphabet="0123456789.;,=url'\" \t\nfoo", max_size=30))
def test_refresh_never_raises(content: str) -> None:
    found = parse_refresh(content)
    assert found is None or found[0] >= 0


@given(st.text(alphabet="ab ,()1wxh.-e\t", max_size=40))
def test_srcset_gives_no_empty_candidates(value: str) -> None:
    assert all(parse_srcset(value))


def test_srcset_gives_all_candidates() -> None:
    assert parse_srcset("a.jpg 1x, b.jpg 2x,c.jpg 100w 50h , d.jpg") == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    assert len(parse_srcset(", ".join(f"{n}.jpg {n + 1}w" for n in range(10_000)))) == 10_000


@pytest.mark.parametrize("kind", ["application/xhtml+xml", "text/xml", "application/xml; charset=utf-8"])
def test_self_closing_elements_in_xhtml_hide_nothing(kind: str) -> None:
    body = (
        b'<html xmlns="http://www.w3.org/1999/xhtml"><head><script src="a/b.js" /><title>T</title></head>'
        b"<body><a name='t'/><a href=\"/x?a=1/\">x<br/></a><iframe src='/f'/><textarea/><a href=/y>y</a></body></html>"
    )
    found = Page(Response(url=URL, status=200, headers=(("content-type", kind),), body=body), Request(URL))
    assert [url.partition("://")[2].partition("/")[2] for url in found.links()] == ["x?a=1/", "y", "f"]
    assert (found.title, found.css("body > a").xpath("@name").getall()) == ("T", ["t"])
    as_html = Page(Response(url=URL, status=200, headers=(("content-type", "text/html"),), body=body), Request(URL))
    assert as_html.links() == []


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<svg><a xlink:href="/x">t</a></svg>', "http://a.example/x"),
        ('<svg><a xlink:href="/x" href="/y"></svg>', "http://a.example/y"),
        ("<svg><a xlink:href></svg>", URL),
        ('<math><a xlink:href="/m"></math>', "http://a.example/m"),
        ('<svg><link rel=next xlink:href="/n"></svg>', "http://a.example/n"),
    ],
)
def test_svg_links_may_be_xlinks(html: str, found: str) -> None:
    assert page(f"{html}<p><a href=/last>").links() == [found, "http://a.example/last"]


def test_only_an_html_base_sets_the_base() -> None:
    html = "<svg><base xlink:href=http://x.example/><base href=http://y.example/></svg><p><base href=/z/><a href=1>"
    assert page(html).links() == ["http://a.example/z/1"]
    assert page(html).base == "http://a.example/z/"
    inside = "<svg><foreignObject><base href=/f/></foreignObject></svg><a href=1>"
    assert page(inside).links() == ["http://a.example/f/1"]


def test_an_xlink_is_followed_where_an_element_is_named() -> None:
    one = page("<svg><a class=k rel=next xlink:href=/x></a></svg>")
    assert one.follow(one.css("a.k")).url == "http://a.example/x"
    assert one.next == "http://a.example/x"


def test_svg_links_do_not_hide_others() -> None:
    html = '<a href=/1>x</a><svg><a xlink:href="/2">y</a><a href="/3" xlink:href="/no">z</a><a>w</a></svg><a href=/4>x'
    assert page(html).links() == [f"http://a.example/{n}" for n in (1, 2, 3, 4)]
    assert page('<a xlink:href="/no">x</a>').links() == []


def test_noframes_links_are_found() -> None:
    html = "<frameset><frame src=/f><noframes><p>Go <a href=/n>in</a><iframe src=/i></noframes></frameset>"
    assert page(html).links() == [f"http://a.example/{name}" for name in "fni"]


def test_declarative_shadow_roots_are_part_of_the_page() -> None:
    html = "<div><template shadowrootmode=open><p>x <a href=/s>y</a></template><a href=/l>z</a></div>"
    one = page(html)
    assert one.links() == ["http://a.example/s", "http://a.example/l"]
    assert one.css("div > p > a::attr(href)").getall() == ["/s"]
    assert one.xpath("//a[@href='/s']/ancestor::div").css("a::text").getall() == ["y", "z"]
    assert one.text == "x y\nz"
    assert one.links("div p") == ["http://a.example/s"]
    inner = page(
        "<template><a href=/1>x</a><div><template shadowrootmode=open><a href=/2>y</a></template></div></template>"
    )
    assert inner.links() == []
