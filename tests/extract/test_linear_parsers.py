"""Every parser of what comes from the network, over patterns that cost a careless regular expression quadratic work.

The texts are so long that quadratic work takes minutes, and linear work milliseconds. Nothing is timed: the timeout of
the tests is the judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gossamer.download.auto import measure
from gossamer.engine import robots_txt, traps
from gossamer.extract import dates, encoding, links, metadata, mime, page, sitemap
from gossamer.extract.metadata import read_metadata
from gossamer.extract.page import Page
from gossamer.middleware import cookies
from gossamer.model import Request, Response
from gossamer.redact import masked, masked_url
from gossamer.results.markdown import chunks
from gossamer.settings import build
from gossamer.storage.warc import reader
from gossamer.storage.warc.index import Member, line_of_member

URL = "http://a.example/d/p"
LONG = 200_000


def html(text: str) -> None:
    text = text[: LONG // 2]
    headers = (("content-type", "text/html; charset=utf-8"),)
    page = Page(Response(url=URL, status=200, headers=headers, body=text.encode()), Request(url=URL))
    page.links()
    page.robots  # noqa: B018
    page.relations  # noqa: B018
    page.metadata  # noqa: B018
    page.text  # noqa: B018


def blocks(text: str) -> None:
    script = f'<script type="application/ld+json">{text}</script>'.encode()
    headers = (("content-type", "text/html; charset=utf-8"),)
    read_metadata(Page(Response(url=URL, status=200, headers=headers, body=script), Request(url=URL)).tree)


def undeclared(text: str) -> None:
    body = b"\xe9charset=" + text.encode("utf-8", "replace")
    encoding.detect(body)
    encoding.declared(body, within=len(body))


def rules(text: str) -> None:
    parsed = robots_txt.parse(b"user-agent: *\n" + text.encode(), "gossamer")
    robots_txt.Matcher(parsed).allowed("/" + "a" * 2000)


def member(text: str) -> None:
    head = b"WARC/1.1\r\nWARC-Type: response\r\n" + text.encode() + b"\r\n\r\nHTTP/1.1 200\r\n" + text.encode()
    line_of_member(Member(0, 0, head + b"\r\n\r\n"), "a.warc.gz")


def urls(text: str) -> None:
    traps.has_far_date(f"/{text}", year=2026, settings=build({}))
    links.resolve(URL, text)
    links.LinkCache().resolve(URL, [text])
    links.encode_query(text, "gbk")


PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    # What each is made of, cut at the bars: each of these is said again and again, behind each other one.
    "pages": (html, "<a|href=|/x|'|\"|>| |</a>|<svg>|<template>|<!--|<p itemprop=a itemscope>"),
    "JSON-LD": (blocks, '{|}|,| |\n|//|/*|*/|"|\\|-->|]]>|;|<!--|<![CDATA['),
    "encodings": (undeclared, "<meta|charset|=| |'|\"|<!--|<?xml encoding|>|<a|/|content-type http-equiv="),
    "refresh": (links.parse_refresh, "1|.| |;|,|url|=|'|\""),
    "X-Robots-Tag": (lambda text: metadata.read([text], [], agent="g", now=0), "a|:|,|;| |1|unavailable_after"),
    "robots meta": (
        lambda text: metadata.read([], [("robots", text[:8000])] * 10, agent="g", now=0),
        "a|:|,|;| |1|unavailable_after",
    ),
    "Link": (links.parse_link, "<|>|;|,| |=|\"|\\|a|*|'"),
    "MIME": (lambda text: mime.parse(text) or mime.of_headers([text]), 'a|/|;|=|"|\\| |,'),
    "srcset": (links.parse_srcset, "a|,| |1x|(|)|.|1|e"),
    "times": (lambda text: (dates.w3c_time(text), dates.http_time(text)), "2026|-|:|1| |T|,|Mon"),
    "sniffing": (lambda text: mime.computed_type(text.encode()), "<|!--| |\0|B\x82|webm|ftyp"),
    "XHTML": (lambda text: page.expand_self_closing(text), "<a|/|>| |'|\"|="),
    "sitemaps": (
        lambda text: sitemap.parse(f"<rss><item>{text}".encode(), URL),
        "<link|<loc>|a|=| |'|\"|>|</|<!--|<![CDATA[|]]>|<!DOCTYPE [|&#1|<?",
    ),
    "sitemaps of text": (lambda text: sitemap.parse(text.encode(), URL), "http://a/| |\n|\r|<|a"),
    "robots.txt": (rules, "disallow:|/|*|$|%|%4|%41| |\n|#|user-agent:|crawl-delay:|sitemap:|a"),
    "cookies": (
        lambda text: (cookies.parse(text[:30_000], now=0), cookies.cookie_date(text)),
        "a|=|;| |1|:|expires=|max-age=|jan",
    ),
    "masks": (lambda text: (masked(text[:50_000]), masked_url(text)), "token|=|&|?|.|http://|:|@| |cookie|\n|'"),
    "URLs": (urls, "/|.|..|%|%2e|?|=|&|#|2001|-|:|@|a|year="),
    "WARC records": (member, "WARC-Type:|WARC-Date:| |\r|\n|a|:|content-type:|;"),
    "chunked bodies": (lambda text: reader._joined(text.encode()), "1|\r\n| |;|\n|0|f"),
    "heads": (lambda text: reader._fields(text.encode()), "a|:| |\r\n|\n|\t|\r|é"),
    "Markdown": (lambda text: list(chunks(f"# {text}", 50)), "#| |a|`|\n|.|。|x "),
    "pages for the browser": (lambda text: measure(text.encode()), "<script|href=|src=| |'|\"|>|</script>|<a|<!--"),
}


def texts(pieces: str) -> Iterator[str]:
    parts = pieces.split("|")
    for number, first in enumerate(parts):
        second = parts[(number + 1) % len(parts)]
        yield first + (first + second) * (LONG // len(first + second)) + "x"
        for again in parts:
            yield first + again * (LONG // len(again)) + "x"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PARSERS)
def test_h35_no_pattern_costs_more_than_linear_work(name: str) -> None:
    parse, pieces = PARSERS[name]
    for text in texts(pieces):
        try:
            parse(text)
        except ValueError:
            pass
