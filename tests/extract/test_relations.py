"""Relations of a page to other URLs, in Link headers and `<link>` elements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.extract.links import parse_link
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.test/dir/page?q=1"


def page(html: str = "", *links: str, kind: str = "text/html", **headers: str) -> Page:
    given = (("content-type", kind), *(("link", link) for link in links), *headers.items())
    return Page(Response(url=URL, status=200, headers=given, body=html.encode()), Request(URL))


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("</a>; rel=next", [("/a", {"rel": "next"})]),
        ('</a>;REL="next" , <b>; rel="x y"', [("/a", {"rel": "next"}), ("b", {"rel": "x y"})]),
        ('<a,b;c>; title="one, \\"two\\"; three"; rel=up', [("a,b;c", {"title": 'one, "two"; three', "rel": "up"})]),
        ("<a>; rel=first; rel=second", [("a", {"rel": "first"})]),
        ("<a> ; rel = next ; flag", [("a", {"rel": "next", "flag": ""})]),
        ("<a>; title*=UTF-8'de'%c3%bc; title=u", [("a", {"title": "\u00fc"})]),
        ("<a>; title*=gibberish; title=u", [("a", {"title": "u"})]),
        (',, <a>; rel="open', [("a", {"rel": "open"})]),
        ("<>; rel=self", [("", {"rel": "self"})]),
        ("<a>;;; rel=x", [("a", {"rel": "x"})]),
        ("no link, <a>; rel=next", []),
        ("<unclosed; rel=next", []),
        ("", []),
    ],
)
def test_link_header_follows_rfc_8288(header: str, found: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_link(header) == found


@given(st.text(alphabet="<>;,=\"\\ \trelx*'%a", max_size=60))
def test_any_link_header_can_be_parsed(header: str) -> None:
    assert all("<" not in target or ">" not in target for target, _ in parse_link(header))


def test_hostile_link_header_takes_linear_time() -> None:
    for header in ("<" * 60_000, "<a>" + ";a=b" * 16_000, '<a>;x="' + "\\" * 60_000, "<a>," * 16_000):
        assert len(parse_link(header)) <= 1000


def test_header_links_resolve_against_the_response_url() -> None:
    html = '<base href="/base/"><link rel=canonical href=c><link rel=prev href=p><a rel=next href=n>'
    assert (page(html).canonical, page(html).next, page(html).prev) == (
        "http://a.test/base/c",
        "http://a.test/base/n",
        "http://a.test/base/p",
    )
    both = page(html, "<h>; rel=canonical", '<?q=2>; rel="x Next"')
    assert (both.canonical, both.next) == ("http://a.test/dir/h", "http://a.test/dir/page?q=2")
    assert both.next_page() is not None


def test_link_with_another_anchor_is_skipped() -> None:
    assert page("", "<x>; rel=canonical; anchor=/other").canonical is None
    assert page("", '<x>; rel=canonical; anchor="#part"').canonical == "http://a.test/dir/x"
    assert page("", "<x>; rev=canonical").canonical is None


def test_canonical_in_the_body_is_ignored() -> None:
    assert page("<body><p>a comment <link rel=canonical href=http://evil.test/>").canonical is None
    assert page("<link rel=canonical href=javascript:x>").canonical is None
    assert page("<p>").canonical is None


def test_alternates_are_found_by_hreflang() -> None:
    html = """<link rel=alternate hreflang=DE href=/de><link rel="alternate" hreflang="x-default" href=/>
    <link rel=alternate type=application/rss+xml href=/feed><link rel=alternate hreflang=de href=/again>"""
    one = page(html, "</fr>; rel=alternate; hreflang=fr")
    assert one.alternates == {"fr": "http://a.test/fr", "de": "http://a.test/de", "x-default": "http://a.test/"}
    assert one.links() == ["http://a.test/fr", "http://a.test/de", "http://a.test/", "http://a.test/again"]
    feeds = [each.url for each in one.relations if each.attributes.get("type") == "application/rss+xml"]
    assert feeds == ["http://a.test/feed"]


def test_header_links_come_first() -> None:
    one = page("<a href=/a>", "</s.css>; rel=preload, </n>; rel=next", refresh="5; url=/r")
    assert one.links() == ["http://a.test/n", "http://a.test/r", "http://a.test/a"]
    assert one.links("main") == []


def test_non_html_body_has_header_links() -> None:
    one = page("{}", "</p.html>; rel=canonical", kind="application/json")
    assert (one.canonical, one.links(), one.alternates) == ("http://a.test/p.html", [], {})


def test_a_link_elements_query_is_in_the_encoding_of_its_page() -> None:
    body = '<link rel=canonical href="/ü?q=ü">'.encode("latin-1")
    headers = (("content-type", "text/html; charset=iso-8859-1"),)
    found = Page(Response(url=URL, status=200, headers=headers, body=body), Request(URL))
    assert found.canonical == "http://a.test/%C3%BC?q=%FC"
