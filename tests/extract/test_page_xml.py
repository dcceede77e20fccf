from __future__ import annotations

import time
from pathlib import Path

import pytest

from gossamer.errors import ExtractError
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.example/feed/"
RSS = """<?xml version="1.0" encoding="utf-8"?>
<rss version="2.0" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:content="http://purl.org/rss/1.0/modules/content/">
<channel><title>Feed</title><link>http://a.example/</link>
<item><title>One &amp; two</title><link>http://a.example/1</link><dc:creator>Ada</dc:creator><pubDate>now</pubDate>
<content:encoded><![CDATA[<p>Text & <a href="/no">more</a></p>]]></content:encoded></item>
<item><title><![CDATA[Three]]></title><link>/2</link><dc:creator>Bob</dc:creator></item>
</channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>t</title><link href="/self" rel="self"/>
<entry><title>e</title><link href="/e1"/></entry><entry><link rel="alternate" href="e2"/></entry></feed>"""


def page(body: str | bytes, content_type: str = "application/xml; charset=utf-8", url: str = URL) -> Page:
    raw = body if isinstance(body, bytes) else body.encode()
    return Page(Response(url=url, status=200, headers=(("content-type", content_type),), body=raw), Request(url=url))


@pytest.mark.parametrize(
    "kind", ["application/rss+xml", "text/xml", "application/xml", "application/atom+xml", "application/x-custom+xml"]
)
def test_xml_supports_css_and_xpath(kind: str) -> None:
    one = page(RSS, kind)
    assert one.is_xml
    assert not one.is_html
    assert one.css("item > title::text").getall() == ["One & two", "Three"]
    assert one.xpath("//item/title/text()").getall() == ["One & two", "Three"]
    assert one.css("pubDate::text").get() == "now"
    assert one.css("pubdate::text").get() is None
    assert one.xpath("//content:encoded/text()").get() == '<p>Text & <a href="/no">more</a></p>'
    assert one.css("rss::attr(version)").get() == "2.0"


def test_prefixed_names_are_matched_as_written() -> None:
    one = page(RSS)
    assert one.xpath("//dc:creator/text()").getall() == ["Ada", "Bob"]
    assert one.css("dc|creator::text").getall() == ["Ada", "Bob"]
    assert one.css("item").xpath("dc:creator[1]/text()").getall() == ["Ada", "Bob"]
    assert one.xpath("//item[dc:creator='Bob']/link/text()").get() == "/2"
    assert one.xpath("//dc:creator/ancestor::channel/title/text()").getall() == ["Feed"]
    assert one.xpath("count(//dc:*)").get() == "2"
    assert one.xpath('//title[re:test(., "^T")]/text()').getall() == ["Three"]


def test_prefixes_may_be_bound_by_the_caller() -> None:
    one = page(RSS)
    assert one.xpath("//x:creator/text()", namespaces={"x": "http://purl.org/dc/elements/1.1/"}).getall() == [
        "Ada",
        "Bob",
    ]
    atom = page(ATOM)
    assert atom.xpath("//a:entry/a:title/text()", namespaces={"a": "http://www.w3.org/2005/Atom"}).getall() == ["e"]
    assert atom.xpath("//entry/title/text()").getall() == ["e"]


def test_feed_links_are_its_entries() -> None:
    assert page(RSS, "application/rss+xml").links() == ["http://a.example/1", "http://a.example/2"]
    assert page(ATOM, "application/atom+xml").links() == ["http://a.example/e1", "http://a.example/feed/e2"]
    cut = page(RSS)
    assert len(cut.links(max_links=1)) == 1
    assert cut.cut == {"max_links": 1}


def test_other_xml_has_its_links() -> None:
    xlink = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {xlink}><a xlink:href="/x"/><a href="y"/><image href="/z.png"/></svg>'
    )
    assert page(svg, "image/svg+xml").links() == ["http://a.example/x", "http://a.example/feed/y"]
    assert page(f"<doc {xlink}><part xlink:href='/p'/></doc>").links() == ["http://a.example/p"]
    assert page("<a href='/p'>x</a>").links() == ["http://a.example/p"]


def test_x_robots_tag_applies_to_feeds() -> None:
    headers = (("content-type", "text/xml"), ("x-robots-tag", "nofollow"))
    one = Page(Response(url=URL, status=200, headers=headers, body=RSS.encode()), Request(url=URL))
    assert one.links() == []
    assert len(one.links(nofollow=False)) == 2


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<a><b>x & y</b></a>", "x & y"),
        ("<a><b>x &nbsp;y &foo; &#65;</b></a>", "x \xa0y &foo; A"),
        ("<a><b>x", "x"),
        ("<a><c><b>x</a>", "x"),
        ("\n <?xml version='1.0'?><a><b>x</b></a>", "x"),
        ("\ufeff<a><b>x</b></a>", "x"),
        ("<z/><b>x</b>", "x"),
        ("<a><b u=1 u='2' v>x</b></a>", "x"),
        ("<a><b>x < y</b></a>", "x < y"),
        ("<a><b>x\0\x01\ufffe</b></a>", "x"),
        ("<q:a><b>x</b></q:a>", "x"),
        ("<a></d></c><b>x</b></e></a>", "x"),
        ("<a><q:c>y</c><b>x</b></a>", "x"),
        ("<a><!-- a -- b --><b>x</b><!-- c", "x"),
        ("<a><b><![CDATA[x & <y>", "x & <y>"),
        ("<!DOCTYPE a PUBLIC '-//X' 'http://b.example/x.dtd'><a><b>x</b></a>", "x"),
    ],
)
def test_malformed_xml_is_repaired(body: str, text: str) -> None:
    assert page(body).css("b::text").getall() == [text] or page(body).xpath("string(//b)").get() == text


def test_an_end_tag_without_its_prefix_ends_the_element() -> None:
    one = page('<t xmlns:n="urn:n"><n:a>this</a><a>found</a></t>')
    assert one.xpath("//n:a/following-sibling::a/text()").getall() == ["found"]


def test_h36_entities_are_never_expanded_and_no_file_is_read(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("sesame")
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    for doctype in (
        f'<!DOCTYPE a [<!ENTITY l0 "lol">{laughs}]>',
        f'<!DOCTYPE a [<!ENTITY l11 SYSTEM "file://{canary}">]>',
        f'<!DOCTYPE a [<!ENTITY % p SYSTEM "file://{canary}"> %p; <!ENTITY l11 "]>">]>',
        f'<!DOCTYPE a SYSTEM "file://{canary}">',
    ):
        one = page(f"{doctype}<a xmlns:xi='http://www.w3.org/2001/XInclude'>&l11;<xi:include href='{canary}'/></a>")
        found = one.css("a").get() or ""
        assert "lol" not in found
        assert "sesame" not in found
        assert "l11" in found


@pytest.mark.parametrize(
    "body",
    [
        "<a>" * 200_000,
        "<a>" * 100_000 + "</a>" * 100_000,
        "<a>" + "<b>" * 500 + "</c>" * 200_000,
        "<a>" + "&" * 1_000_000,
        "<a>" + "<" * 1_000_000,
        "<a " + 'x="1" ' * 200_000 + "/>",
        '<a "' * 200_000,
        "<![CDATA[" * 100_000,
        "<!--" * 200_000,
        "<!DOCTYPE [" + '"' * 1_000_000,
        "<!DOCTYPE a [" + "] " * 500_000,
        "<a:b>" * 100_000,
        "<a>" + "]]>" * 300_000,
    ],
)
def test_hostile_xml_takes_linear_time(body: str) -> None:
    one = page(body)
    began = time.process_time()
    one.css("a b c d::text").getall()
    one.xpath("//a/@x").getall()
    assert isinstance(one.links(), list)
    assert isinstance(one.text, str)
    assert time.process_time() - began < 1 + len(body) / 1_000_000


def test_other_formats_have_no_elements() -> None:
    one = page('{"a": "<b>"}', "application/json")
    assert not one.is_xml
    assert one.css("*").getall() == one.xpath("//*").getall() == one.links() == []
    assert one.text == ""


def test_invalid_xml_queries_are_named() -> None:
    with pytest.raises(ExtractError, match="invalid XPath expression"):
        page(RSS).xpath("//dc:creator[")
    with pytest.raises(ExtractError, match="invalid CSS selector"):
        page(RSS).css("dc|creator[")
