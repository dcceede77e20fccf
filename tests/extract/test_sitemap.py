"""Sitemaps of every format: valid, broken, and hostile."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer.extract.dates import http_time, w3c_time
from gossamer.extract.sitemap import MAX_BYTES, MAX_ENTRIES, PROBLEMS, Sitemap, parse

URL = "http://x.test/sitemap.xml"
NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def urlset(inner: str, *, head: str = '<?xml version="1.0" encoding="UTF-8"?>') -> bytes:
    return f"{head}<urlset {NAMESPACE}>{inner}</urlset>".encode()


def listed(*paths: str) -> str:
    return "".join(f"<url><loc>http://x.test/{path}</loc></url>" for path in paths)


def pages(found: Sitemap) -> list[str]:
    return [entry.url.removeprefix("http://x.test/") for entry in found.pages]


def test_all_sitemap_fields_are_read() -> None:
    found = parse(
        urlset(
            """
            <!-- <url><loc>http://x.test/comment</loc></url> -->
            <url>
              <loc> http://x.test/a?b=1&amp;c=%C3%A4&#x26;d=&#228; </loc>
              <lastmod>2024-02-29T12:30:00+01:00</lastmod><changefreq>Daily</changefreq><priority>0.8</priority>
            </url>
            <url><lastmod>2024</lastmod><loc><![CDATA[http://x.test/b?x=1&y=2]]></loc><priority>7</priority></url>
            """
        ),
        URL,
    )
    assert (found.kind, found.problems) == ("urlset", {})
    first, second = found.pages
    assert first.url == "http://x.test/a?b=1&c=%C3%A4&d=%C3%A4"
    assert (first.lastmod, first.changefreq, first.priority) == (w3c_time("2024-02-29T11:30Z"), "daily", 0.8)
    assert (second.url, second.lastmod, second.priority) == ("http://x.test/b?x=1&y=2", w3c_time("2024-01-01"), None)


def test_extensions_are_recognized_by_namespace() -> None:
    body = """
        <s:urlset xmlns:s="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:h="http://www.w3.org/1999/xhtml"
            xmlns:i="http://www.google.com/schemas/sitemap-image/1.1"
            xmlns:v="http://www.google.com/schemas/sitemap-video/1.1"
            xmlns:n="http://www.google.com/schemas/sitemap-news/0.9">
          <s:url><s:loc>http://x.test/page</s:loc>
            <i:image><i:loc>http://x.test/1.png</i:loc><i:title>An image</i:title></i:image>
            <i:image><i:loc>http://x.test/2.png</i:loc></i:image>
            <v:video><v:title>A video</v:title><v:content_loc>http://x.test/v.mp4</v:content_loc></v:video>
            <n:news><n:publication_date>2024-05-01</n:publication_date><n:title>News &amp; more</n:title></n:news>
            <h:link rel="alternate" hreflang="de" href="http://x.test/de?a&gt;b" /><h:link rel="self" href="/no"/>
          </s:url>
        </s:urlset>"""
    (entry,) = parse(body.encode(), URL).pages
    assert entry.url == "http://x.test/page"
    assert entry.images == ("http://x.test/1.png", "http://x.test/2.png")
    assert entry.videos == ("http://x.test/v.mp4",)
    assert entry.alternates == ("http://x.test/de?a%3Eb",)
    assert (entry.title, entry.lastmod) == ("News & more", w3c_time("2024-05-01"))


def test_an_index_lists_sitemaps_and_no_pages() -> None:
    inner = "<sitemap><loc>http://x.test/1.xml.gz</loc><lastmod>2024-01-01</lastmod></sitemap>"
    found = parse(f"<sitemapindex {NAMESPACE}>{inner}</sitemapindex>".encode(), URL)
    assert (found.kind, found.pages) == ("index", ())
    assert [(entry.url, entry.lastmod) for entry in found.sitemaps] == [
        ("http://x.test/1.xml.gz", w3c_time("2024-01-01"))
    ]


def test_feeds_list_their_items_with_their_times() -> None:
    rss = """<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom" xmlns:dc="http://purl.org/dc/elements/1.1/">
        <channel><link>http://x.test/</link><image><url>http://x.test/logo.png</url><link>http://x.test/</link></image>
        <atom:link rel="self" href="http://x.test/feed"/>
        <item><title>&amp;</title><link>http://x.test/1</link><pubDate>Mon, 06 Sep 2010 00:01:00 +0000</pubDate></item>
        <item><guid isPermaLink="true">http://x.test/2</guid><dc:date>2010-09-06</dc:date>
          <description><![CDATA[<link>http://x.test/no</link>]]></description></item>
        <item><guid>42</guid></item></channel></rss>"""
    found = parse(rss.encode(), URL)
    assert (found.kind, pages(found), found.problems) == ("rss", ["1", "2"], {"no-url": 1})
    assert [entry.lastmod for entry in found.pages] == [w3c_time("2010-09-06T00:01Z"), w3c_time("2010-09-06")]
    atom = """<feed xmlns="http://www.w3.org/2005/Atom" xml:base="http://x.test/blog/"><link href="http://x.test/"/>
        <entry><link rel="edit" href="edit"/><link href="3"/><published>2001-01-01</published>
          <source><link href="http://x.test/no"/><updated>2030-01-01</updated></source>
          <content type="xhtml"><div><link href="http://x.test/no"/></div></content>
          <updated>2020-01-01T00:00:00Z</updated></entry></feed>"""
    (entry,) = parse(atom.encode(), URL).pages
    assert (entry.url, entry.lastmod) == ("http://x.test/blog/3", w3c_time("2020-01-01"))
    rdf = '<rdf:RDF xmlns:rdf="r"><channel/><item rdf:about="x"><link>http://x.test/4</link></item></rdf:RDF>'
    assert pages(parse(rdf.encode(), URL)) == ["4"]


def test_an_item_of_a_feed_has_its_own_link_and_any_of_the_usual_times() -> None:
    terms = 'xmlns:atom="http://www.w3.org/2005/Atom" xmlns:dcterms="http://purl.org/dc/terms/"'
    rss = f"""<rss version="2.0" {terms}><channel>
        <item><atom:link href="http://x.test/no"/><link></link><link>http://x.test/1</link>
          <image><link>http://x.test/no</link></image><dcterms:issued>2001-01-01</dcterms:issued>
          <dcterms:modified>2003-12-31T10:14:55Z</dcterms:modified></item>
        <item><link>http://x.test/2</link><dcterms:issued>2001-01-01</dcterms:issued></item>
        <item><guid>http://x.test/3</guid></item></channel></rss>"""
    found = parse(rss.encode(), URL)
    assert pages(found) == ["1", "2", "3"], "and none of another item"
    assert [entry.lastmod for entry in found.pages] == [w3c_time("2003-12-31T10:14:55Z"), w3c_time("2001-01-01"), None]


def test_a_guid_is_a_link_unless_it_says_otherwise() -> None:
    rss = """<rss version="2.0"><channel>
        <item><guid isPermaLink="false">http://x.test/no</guid></item>
        <item><guid isPermaLink='False'>http://x.test/no</guid><link>http://x.test/1</link></item>
        <item><guid isPermaLink="true">http://x.test/2</guid></item><item><guid>http://x.test/3</guid></item>
        <item><guid>http://x.test/no</guid><link>http://x.test/4</link></item></channel></rss>"""
    found = parse(rss.encode(), URL)
    assert (pages(found), found.problems) == (["1", "2", "3", "4"], {"no-url": 1})


def test_every_loc_of_an_entry_is_a_page() -> None:
    text = """<urlset><url><loc>http://x.test/1</loc><loc>http://x.test/2</loc><lastmod>2020-01-01</lastmod>
        <loc>http://x.test/1</loc></url><url><loc></loc><loc>http://x.test/3</loc></url></urlset>"""
    found = parse(text.encode(), URL)
    assert pages(found) == ["1", "2", "3"]
    assert [entry.lastmod for entry in found.pages] == [w3c_time("2020-01-01")] * 2 + [None]
    two = "<sitemapindex><sitemap><loc>http://x.test/a</loc><loc>http://x.test/b</loc></sitemap></sitemapindex>"
    assert [entry.url for entry in parse(two.encode(), URL).sitemaps] == ["http://x.test/a", "http://x.test/b"]


def test_text_is_one_url_a_line() -> None:
    found = parse(
        b"\xef\xbb\xbfhttp://x.test/1\r\n\r\n  HTTP://X.TEST/2 \r# no\nhttp://x.test/\xc3\xa4\nftp://x.test/", URL
    )
    assert (found.kind, pages(found), found.problems) == ("text", ["1", "2", "%C3%A4"], {"no-url": 2})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\n\n " + urlset(listed("a")), ["a"]),
        (urlset("<url><loc>http://x.test/a?b=1&c=2&copy=3</loc></url>"), ["a?b=1&c=2&copy=3"]),
        (urlset("<url><loc>http://x.test/a</loc><url><loc>http://x.test/b</loc>"), ["a", "b"]),
        (urlset(listed("a") + "<url><loc>http://x.test/cut")[:-9], ["a"]),
        (urlset("<loc>http://x.test/a</loc><loc>http://x.test/b</loc>"), ["a", "b"]),
        (urlset("<URL><LOC>http://x.test/a</LOC></URL>"), ["a"]),
        (urlset('<url a="1>2"><loc>http://x.test/a</loc></url>'), ["a"]),
        (
            urlset(
                "<url><loc>/a</loc></url><url><loc>x.test/b</loc></url><url><loc>javascript:x</loc></url><url><loc></loc></url>"
            ),
            ["a"],
        ),
        (urlset(listed("ä")).decode().replace("UTF-8", "ISO-8859-1").encode("latin-1"), ["%C3%A4"]),
        (urlset(listed("ä")).decode().encode("utf-16"), ["%C3%A4"]),
        (urlset(listed("ä")).decode().encode("utf-16-be"), ["%C3%A4"]),
        (b"<url><loc>http://x.test/a</loc></url>", ["a"]),
        (gzip.compress(gzip.compress(urlset(listed("a")))), ["a"]),
        (gzip.compress(urlset(listed("a"))) + gzip.compress(urlset(listed("b"))), ["a", "b"]),
        (b"<!doctype html><html><title>Not found</title><a href=http://x.test/a>", []),
        (b"%PDF-1.7 \0\1\2", []),
        (b"", []),
    ],
)
def test_broken_sitemaps_are_read_as_far_as_possible(body: bytes, expected: list[str]) -> None:
    found = parse(body, URL)
    assert pages(found) == expected
    assert set(found.problems) <= set(PROBLEMS)
    assert bool(found.kind) == bool(expected)


def test_truncated_gzip_is_read_as_far_as_possible() -> None:
    body = gzip.compress(urlset(listed(*(f"page-{number * 7919 % 10007}" for number in range(5000)))))
    found = parse(body[: len(body) // 2], URL)
    assert 1000 < len(found.pages) < 5000
    assert "broken-gzip" in found.problems
    assert pages(found)[0] == "page-0"


ENTITIES = "".join(f'<!ENTITY e{number} "{f"&e{number - 1};" * 10}">' for number in range(1, 12))


@pytest.mark.parametrize(
    "declared",
    [
        '<!ENTITY e0 "lol">' + ENTITIES,
        '<!ENTITY e11 "' + "a" * 100_000 + '">',
        '<!ENTITY e11 SYSTEM "file:///etc/passwd">',
        '<!ENTITY % dtd SYSTEM "http://evil.test/x.dtd"> %dtd; <!ENTITY e11 "x">',
    ],
)
@pytest.mark.parametrize("root", ["urlset", "rss"])
def test_h36_entities_are_never_expanded(declared: str, root: str) -> None:
    """H36: billion laughs, quadratic blow-up, external entities, a DTD from elsewhere."""
    inner = {"urlset": "<url><loc>{}</loc></url>", "rss": "<item><link>{}</link></item>"}[root]
    good, bad = inner.format("http://x.test/good"), inner.format("http://x.test/&e11;" * 1000)
    found = parse(f"<!DOCTYPE x [{declared}]><{root}>{bad}{good}</{root}>".encode(), URL)
    assert pages(found) == ["good"]
    assert found.problems == {"entity": 2}


def test_h37_a_file_over_the_limits_is_read_up_to_them() -> None:
    """H37: 60,000 entries, and far more than 50 MiB after decompression, in bounded memory."""
    many = parse(urlset(listed(*map(str, range(60_000)))), URL)
    assert (len(many.pages), many.problems) == (MAX_ENTRIES, {"too-many": 1})
    packer = zlib.compressobj(9, wbits=31)
    bomb = packer.compress(urlset(listed("a"))) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(300))
    bomb += packer.flush()
    tracemalloc.start()
    found = parse(bomb, URL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (pages(found), found.problems) == (["a"], {"too-large": 1})
    assert peak < 2 * MAX_BYTES
    cut = parse(b"http://x.test/1\nhttp://x.test/2345", URL, max_bytes=30)
    assert (pages(cut), cut.problems) == (["1"], {"too-large": 1})


PIECES = [
    *(
        b"<url>",
        b"</url>",
        b"<loc>",
        b"</loc>",
        b"http://x.test/1",
        b"<urlset>",
        b"<sitemapindex>",
        b"<rss>",
        b"<item>",
    ),
    *(
        b"<feed>",
        b"<entry>",
        b"<link href='",
        b"'/>",
        b"<!--",
        b"-->",
        b"<![CDATA[",
        b"]]>",
        b"&amp;",
        b"&#0;",
        b"&#xD800;",
    ),
    *(
        b"<!DOCTYPE a [",
        b"<!ENTITY b 'c'>",
        b"]>",
        b"&b;",
        b"<?xml encoding='utf-16'?>",
        b"\0",
        b"\xff\xfe",
        b"\x1f\x8b\x08",
    ),
    *(
        b"<lastmod>",
        b"2024-01-01",
        b"<source>",
        b"<content>",
        b"'",
        b'"',
        b">",
        b"<",
        b"\n",
        b" ",
        b"<guid>",
        b"<pubDate>",
    ),
]


@given(
    st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)),
    st.sampled_from(["", "text/xml; charset=utf-16", "application/gzip", "text/plain; charset=shift_jis", "\0"]),
    st.booleans(),
)
@example(b"<?xml encoding='utf-16'?><urlset>", "", False)
@example(b"\xff\xfe\x00\xd8", "", True)
def test_parsing_never_raises(body: bytes, content_type: str, packed: bool) -> None:
    found = parse(gzip.compress(body)[:-4] if packed else body, URL, content_type, max_entries=5)
    assert len(found.pages) + len(found.sitemaps) <= 5
    assert set(found.problems) <= set(PROBLEMS)
    for entry in (*found.pages, *found.sitemaps):
        assert entry.url.startswith(("http://", "https://"))
        entry.url.encode()


@pytest.mark.parametrize(
    "piece", [b"<url>", b"<loc>", b"<url/>", b"<", b'<loc a="> ', b"<!---->", b"<![CDATA[", b"<x:link a="]
)
def test_time_is_linear_whatever_is_repeated(piece: bytes) -> None:
    """The work is counted in elements, not seconds: after a million, or 50,000 entries without a URL, it ends."""
    found = parse(b"<urlset>" + piece * (300_000 // len(piece)), URL)
    assert not found.pages
    assert set(found.problems) <= {"no-url", "too-many", "unclosed"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1997", 852_076_800.0),
        ("1997-07", 867_715_200.0),
        ("1997-07-16", 869_011_200.0),
        ("1997-07-16T19:20+01:00", 869_077_200.0),
        ("1997-07-16T19:20:30+01:00", 869_077_230.0),
        ("1997-07-16T19:20:30.45+01:00", 869_077_230.45),
        ("1997-07-16T18:20:30Z", 869_077_230.0),
        ("1997-07-16 18:20:30", 869_077_230.0),
        ("1997-07-16T23:20:30+0500", 869_077_230.0),
        ("1998-12-31T23:59:60Z", 915_148_799.0),
    ],
)
def test_w3c_times(text: str, seconds: float) -> None:
    assert w3c_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "now", "1997-13", "1997-02-30", "0001-01-01", "1997-07-16T25:00Z", "19970716", "٢٠٢٤"]
)
def test_invalid_times_are_none(text: str) -> None:
    assert w3c_time(text) is None
    assert http_time("x" * 1000) is None


@given(st.text(max_size=40))
def test_times_never_raise(text: str) -> None:
    for read in (w3c_time, http_time):
        found = read(text)
        assert found is None or found >= -86_400
