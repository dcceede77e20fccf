from __future__ import annotations

import pytest

from gossamer.extract.page import Page
from gossamer.model import Request, Response

COUNT = 100_000
URL = "http://a.example/"


def formatting(opened: int, places: int) -> bytes:
    return b"<p>" + b"".join(b"<b %x>" % number for number in range(opened)) + b"<p>x" * places


NESTED = {
    "div": b"<div>" * COUNT,
    "closed div": b"<div>" * COUNT + b"</div>" * COUNT,
    "list": b"<ul><li>" * COUNT,
    "table": b"<table><tr><td>" * COUNT,
    "formatting": b"<b><i><font size=1>" * COUNT,
    "svg": b"<svg><g>" * COUNT,
    "form": b"<form><div></form>" * COUNT,
    "wrong end tags": b"<div></x>" * COUNT,
    "end tags in comments": b"<div><!--</div>-->" * COUNT,
    "end tags in scripts": b"<div><script></div></script>" * COUNT,
    "end tags in double-escaped scripts": b"<div><script><!--<script></script></div>--></script>" * COUNT,
    "end tags in cdata": b"<svg>" + b"<div><svg><![CDATA[></div>]]></svg>" * COUNT,
    "end tags in attributes": b"<div a='</div>'>" * COUNT,
    "end tags behind tables": b"<div><table><td></div></table>" * COUNT,
    "end tags behind lists": b"<li><ul></li>" * COUNT,
    "end tags that stop at a block": b"<span><div></span>" * COUNT,
    "cells without table": b"<div><td>" * COUNT,
    "noscript": b"<noscript><div></noscript>" * COUNT,
    "end tags only": b"<div>" * 3000 + b"</p></x>" * COUNT,
}
WIDE = {
    "attributes": b"<div " + b" ".join(b"a%d=1" % number for number in range(10 * COUNT)) + b">",
    "attributes that hide the end": b"<div " + b" ".join(b"a%d='>'" % number for number in range(COUNT)) + b">",
    "names": b"".join(b"<x%d></x%d>" % (number, number) for number in range(COUNT)),
    "attribute names": b"".join(b"<i a%d></i>" % number for number in range(COUNT)),
    "formatting opened again": formatting(3000, COUNT),
    "a small page of formatting": formatting(2000, 4000),
    "formatting left open among closed": b"<b>x</b>" * 1000 + formatting(2000, 4000),
    "formatting across cells": b"".join(b"<b a%d><table><td></b></table><p>x" % n for n in range(COUNT)),
}
LONG = {
    "one line": b"<p>" + b"x" * 50_000_000,
    "comment": b"<p>x<!--" + b"-x" * 5_000_000,
    "script": b"<p>x<script>" + b"</scrip" * 1_500_000,
    "less-than": b"<" * 5_000_000,
    "quotes": b"<p>url(" + b'"' * 1_000_000,
    "quotes in tags": b'<a "' * 1_000_000,
    "open tags": b"<a " * 1_000_000,
    "nulls in text": b"<p>" + (b"x" * 100 + b"\0") * 50_000,
}


def page(body: bytes) -> Page:
    headers = (("content-type", "text/html; charset=utf-8"),)
    return Page(Response(url=URL, status=200, headers=headers, body=body), Request(url=URL))


@pytest.mark.parametrize("name", [*NESTED, *WIDE, *LONG])
def test_reading_a_hostile_page_takes_linear_time_and_never_raises(name: str) -> None:
    """H31, H35."""
    # Linear is about a second; quadratic is minutes or gigabytes, and runs into the time limit of every test.
    one = page(b"<title>t</title><a href=/first>x</a>" + {**NESTED, **WIDE, **LONG}[name])
    assert one.title == "t"
    assert one.links()[0] == "http://a.example/first"
    assert isinstance(one.text, str)
    assert len(one.css("*")) <= 700_000
    assert isinstance(one.css("body").get(), str)
    assert isinstance(one.css("body ::text").getall(), list)
    assert isinstance(one.xpath("//a/@href").getall(), list)


@pytest.mark.parametrize("name", ["div", "list", "formatting", "svg", "end tags only"])
def test_too_deep_page_is_flattened_and_marked_cut(name: str) -> None:
    one = page(NESTED[name] + b"<p>end")
    assert len(one.css("p")) >= 1
    assert one.text.endswith("end")
    assert one.cut


def test_million_links_are_truncated_at_the_limit() -> None:
    """H32."""
    one = page(b"".join(b"<a href=/%d>x</a>" % number for number in range(1_000_000)))
    assert len(one.links(max_links=5000)) == 5000
    assert one.cut


def test_h32_megabyte_href_is_dropped_and_marked_cut() -> None:
    one = page(b"<a href='/" + b"x" * 1_000_000 + b"'>x</a><a href=/2>x</a><a href='/" + b"x" * 60_000 + b"'>x</a>")
    assert [len(url) for url in one.links()] == [18, 60_017]
    assert one.cut


def test_a_title_under_many_elements_is_found_in_bounded_steps() -> None:
    assert page(b"<body>" + b"<span>" * 5000 + b"<svg><title>no</title></svg>" * 2000).title == ""


ROWS = b"".join(b"<tr><td><a href='/%d'>%d</a></td><td>x</td></tr>\n" % (n, n) for n in range(30_000))


@pytest.mark.parametrize("around", [(b"", b""), (b"<div>" * 200, b"</div>" * 200), (b"<b><i>", b"</i></b>")])
def test_large_table_is_read_completely(around: tuple[bytes, bytes]) -> None:
    one = page(around[0] + b"<table>" + ROWS + b"</table><footer>end</footer>" + around[1])
    assert len(one.css("tr")) == 30_000
    assert one.xpath("//tr[last()]/td[1]//text()").getall() == ["29999"]
    assert one.css("footer::text").get() == "end"
    assert one.text.splitlines()[-1] == "end"
    assert len(one.links(max_links=100_000)) == 30_000
    assert not one.cut


@pytest.mark.parametrize(
    ("body", "query", "count"),
    [
        (b"<ul>" + b"<li><p>x" * 50_000 + b"</ul>", "li > p", 50_000),
        (b"<table>" + b"<tr><td>x<td><b>y</b>" * 30_000 + b"</table>", "tr > td > b", 30_000),
        (b"<select>" + b"<option>x" * 50_000 + b"</select>", "select > option", 50_000),
        (b"<dl>" + b"<dt>x<dd>y" * 50_000 + b"</dl>", "dl > dd", 50_000),
        (b"<div>" * 200 + b"<p>x</p>" * 50_000 + b"</div>" * 200, "p", 50_000),
        (b"<svg><title>icon</title><path d='M0 0'/></svg>" * 20_000, "path", 20_000),
        (b"<p data-a=1 data-b=2 data-c=3>x\0y</p>" * 30_000, "[data-c]", 30_000),
    ],
)
def test_large_normal_page_is_read_completely(body: bytes, query: str, count: int) -> None:
    one = page(body)
    assert len(one.css(query)) == count
    assert not one.cut
