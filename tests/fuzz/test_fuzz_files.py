"""Fuzzing of robots.txt and sitemaps."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from xml.sax.saxutils import escape

from fuzz_texts import LINE_ENDS, octets, pumped, takes_linear_work, texts
from hypothesis import given
from hypothesis import strategies as st

from gossamer import urls
from gossamer.engine import robots_txt
from gossamer.extract.sitemap import PROBLEMS, parse

ROBOTS = (
    *(
        "User-agent: ",
        "*",
        "gossamer",
        "Gossamer/1",
        "Disallow: ",
        "Allow: ",
        "Disalow",
        ":",
        "/",
        "$",
        "/a",
        "/b*c",
        "%62",
    ),
    *("Crawl-delay: ", "1e9", "-1", "nan", "inf", "0.0001", "Sitemap: ", "http://a.example/s.xml", "#", *LINE_ENDS),
)
XML = (
    *(
        "<urlset>",
        "<url>",
        "<loc>",
        "</loc>",
        "</url>",
        "<sitemapindex>",
        "<sitemap>",
        "http://a.example/1",
        "&amp;",
        "&lol;",
    ),
    *(
        "<!DOCTYPE x [",
        "<!ENTITY lol 'x'>",
        "]>",
        "<![CDATA[",
        "]]>",
        "<!--",
        "-->",
        "<?xml",
        "?>",
        "<rss>",
        "<item>",
        "<link>",
    ),
    *(
        "</link>",
        "<feed>",
        "<entry>",
        "<link href='/x'/>",
        "<lastmod>",
        "2026-01-01",
        "</lastmod>",
        "<image:loc>",
        "xmlns:a='",
    ),
    *("'", '"', ">", "<", "/", "=", *LINE_ENDS),
)
PATHS = st.lists(st.sampled_from(["/", "a", "b", "c", "?", "=", ".", "%62", "%2A"]), max_size=12).map(
    lambda parts: "/" + "".join(parts)
)
WEB = "http://a.example/sitemap.xml"


@given(octets(*(piece.encode() for piece in ROBOTS), most=60), PATHS, st.sampled_from(["Gossamer/1 (+x)", "", "*"]))
def test_robots_txt_has_a_ruling_for_every_agent(body: bytes, path: str, agent: str) -> None:
    rules = robots_txt.parse(body, agent)
    assert rules == robots_txt.parse(body, agent)
    assert rules.count <= body.count(b"\n") + body.count(b"\r") + 1
    assert rules.crawl_delay is None or 0 <= rules.crawl_delay <= robots_txt.MAX_DELAY_SECONDS
    assert robots_txt.Matcher(rules).allowed("/robots.txt")
    allowed = robots_txt.Matcher(rules).allowed(path)
    if not any("%" in pattern for pattern, _ in rules.lines()) and "%" not in path:
        ruling = robots_txt.RuleFinder(rules).of(path)
        assert allowed == (ruling is None or ruling[1] or path == "/robots.txt")
    for status in (200, 404, 503, None):
        kept = robots_txt.settle(None, status, body, agent=agent, now=1e9, ttl=60)
        assert robots_txt.unpack(kept.pack()) == kept


PATTERNS = st.lists(st.sampled_from(["/", "a", "b", "*", "$", "c"]), min_size=1, max_size=8).map(
    lambda parts: "/" + "".join(parts)
)


@given(st.lists(st.tuples(PATTERNS, st.booleans()), max_size=6), PATHS)
def test_rules_match_as_the_standard_describes_it(rules: list[tuple[str, bool]], path: str) -> None:
    if "%" in path:
        return
    lines = "".join(f"{'Allow' if allow else 'Disallow'}: {pattern}\n" for pattern, allow in rules)
    matcher = robots_txt.Matcher(robots_txt.parse(f"User-agent: *\n{lines}".encode(), "gossamer"))
    best = (0, True)
    for pattern, allow in rules:
        end = pattern.endswith("$")
        expression = "".join(
            ".*" if sign == "*" else re.escape(sign) for sign in pattern.removesuffix("$" if end else "")
        )
        if re.match(expression + (r"\Z" if end else ""), path):
            best = max(best, (len(pattern), allow))
    assert matcher.allowed(path) == best[1]


@given(
    octets(*(piece.encode() for piece in XML), most=80), st.sampled_from(["", "text/xml", "text/plain; charset=utf-16"])
)
def test_sitemap_lists_normalized_urls_only(body: bytes, content_type: str) -> None:
    found = parse(body, WEB, content_type, max_entries=20, max_bytes=2000)
    assert found == parse(body, WEB, content_type, max_entries=20, max_bytes=2000)
    assert len(found.pages) + len(found.sitemaps) <= 20
    assert set(found.problems) <= set(PROBLEMS)
    for entry in (*found.pages, *found.sitemaps):
        assert urls.normal(entry.url) == entry.url
        assert all(urls.normal(url) == url for url in entry.alternates)
        assert entry.priority is None or 0 <= entry.priority <= 1
    if body[:2] != b"\x1f\x8b" and len(body) <= 2000:
        packed = parse(gzip.compress(body), WEB, content_type, max_entries=20, max_bytes=2000)
        assert (packed.pages, packed.sitemaps) == (found.pages, found.sitemaps)


LISTED = st.lists(
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=20).map(
        lambda text: urls.normal(f"http://a.example/{text}")
    ),
    max_size=20,
)


@given(LISTED, st.sampled_from(["urlset", "sitemapindex", "text"]))
def test_listed_urls_are_found(listed: list[str | None], kind: str) -> None:
    known = [url for url in listed if url]
    if kind == "text":
        body = "\n".join(known)
    else:
        name = "url" if kind == "urlset" else "sitemap"
        body = f"<{kind}>{''.join(f'<{name}><loc>{escape(url)}</loc></{name}>' for url in known)}</{kind}>"
    found = parse(body.encode(), WEB)
    assert [entry.url for entry in (*found.pages, *found.sitemaps)] == known


@given(pumped(ROBOTS), st.sampled_from(["/a/b/c?d=e", "/" + "a" * 2000, "/" + "ab" * 1000]))
def test_h45_a_robots_txt_takes_linear_work(text: Callable[[int], str], path: str) -> None:
    def read_and_ask(body: str) -> None:
        matcher = robots_txt.Matcher(robots_txt.parse(f"User-agent: *\n{body}".encode("utf-8", "replace"), "gossamer"))
        matcher.allowed(path)

    takes_linear_work(read_and_ask, text)


@given(pumped(XML))
def test_h36_a_sitemap_takes_linear_work(text: Callable[[int], str]) -> None:
    takes_linear_work(lambda body: parse(body.encode("utf-8", "replace"), WEB), text)


@given(texts(*XML))
def test_a_sitemap_of_text_is_read_the_same_in_any_line_ends(body: str) -> None:
    plain = "http://a.example/1\n" + body.replace("\r", "").replace("<", "").replace("\0", "")
    found = parse(plain.encode("utf-8", "replace"), WEB)
    assert found.pages == parse(plain.replace("\n", "\r\n").encode("utf-8", "replace"), WEB).pages
