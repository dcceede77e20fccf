"""What hostile markup costs, from the parser to selectors: less than a second of CPU for each megabyte of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "http://a.example/"
BODIES = {
    "rt": "<rt>" * 60_000 + "</pre>" * 300_000,
    "rp": "<rp><rt>" * 100_000,
    "svg void": "<svg>" + "<circle>" * 250_000,
    "svg br": "<svg>" + "<path><image/>" * 150_000,
    "math void": "<math><img x>" + "<mi><mspace>" * 120_000,
    "svg g": "<svg>" + "<g>" * 500_000,
    "div": "<div>" * 200_000,
    "div and ends of p": "<div>" * 100_000 + "</p>" * 200_000,
    "formatting": "<a>" * 100_000 + "<b>" * 100_000,
    "a p": "<a><p>" * 100_000,
    "b div": "<b><div>" * 100_000,
    "many b, many p": "".join(f"<b a{i}>" for i in range(40_000)) + "<p>" * 40_000,
    "foster": "<table>" * 100_000 + "x" * 100_000,
    "table text": "<table>" + "x<b>" * 200_000,
    "tables": "<table><tr><td>" * 100_000,
    "roots": "".join(f"<html a{i}=1>" for i in range(60_000)),
    "font": "<font size=1>" * 100_000 + "</div>" * 100_000,
    "attributes": "<div " + " ".join(f"a{i}=1" for i in range(200_000)) + ">",
    "one attribute": "<div " + "a=1 " * 400_000 + ">",
    "select": "<select>" * 100_000 + "<option>" * 100_000,
    "template": "<template>" * 100_000,
    "shadow": "<template shadowrootmode=open>" * 50_000 + "<a href=/x>",
    "entities": "&notit;&amp" * 150_000,
    "comments": "<!--" * 400_000,
    "less-than": "<" * 2_000_000,
    "cdata": "<svg><![CDATA[" + "]]" * 800_000,
    "ul li": "<ul><li>" * 150_000,
    "li and ends": "<li>" * 200_000 + "</ul>" * 100_000,
    "dd": "<dl><dd>" * 100_000,
    "nobr": "<nobr>" * 200_000,
    "button": "<button>" * 200_000,
    "p button": "<p><button>" * 150_000,
    "h1": "<h1>" * 250_000,
    "frameset": "<frameset>" * 150_000,
    "noframes": "<noframes><a href=/x>" * 50_000,
    "many noframes": "<noframes><a href=/x></noframes>" * 50_000,
    "adoption": "<b><p>" * 30_000 + "</b>" * 30_000,
    "adoption of links": "<a><div>" * 60_000 + "</a>" * 60_000,
    "option": "<option>" * 300_000 + "</x>" * 100_000,
    "ruby": "<ruby><rt>" * 100_000,
    "script": "<script>" + "<!--<script" * 100_000,
    "textarea": "<textarea>" + "</textare" * 200_000,
    "links": "".join(f"<a href=/{i}>x</a>" for i in range(50_000)),
    "rel": "<a rel='" + "x " * 300_000 + "' href=/x>",
    "class": "<p class='" + "x " * 300_000 + "'>",
    "siblings": "<b></b>" * 150_000,
    "titles": "<title>x</title>" * 60_000,
    "bases": "<base href=/x>" * 60_000,
    "metas": "<meta name=robots content=nofollow>" * 30_000,
    "forms": "<form><input name=a>" * 50_000,
    "wide and deep": ("<div>" * 500 + "<a href=x>y</a>" * 10_000),
    "deep and deep": ("<div>" * 500 + "<a>" + "</div>" * 500) * 150,
}
CSS = [
    "x div div div div a",
    "div div div div a",
    "div > div > div > x",
    "b ~ b ~ b ~ i",
    "div:has(x)",
    "p.x:nth-child(2)",
]
XPATH = ["//div//div//div//div//a", "//a/..", "//div[@id='x']//a/@href", "count(//*//*//*)"]


TRIES = 3
"""Other programs on the machine make single times longer: the least counts."""


def read(page: Page) -> None:
    assert len(page.title) <= 4096
    assert isinstance(page.links(), list)
    assert isinstance(page.text, str)


def strings(page: Page) -> None:
    assert isinstance(page.css("body ::text").getall(), list)
    assert isinstance(page.css("html").get(), str)


WORK: dict[str, Callable[[Page], object]] = {
    "title, links and text": read,
    **{query: partial(Page.css, query=query) for query in CSS},
    **{query: partial(Page.xpath, query=query) for query in XPATH},
    "strings": strings,
}


@pytest.mark.parametrize("name", BODIES)
def test_hostile_markup_takes_less_than_a_second_per_megabyte(name: str) -> None:
    body = BODIES[name].encode()
    headers = (("content-type", "text/html; charset=utf-8"),)
    most = max(0.5, len(body) / 1_000_000)
    page = new(body, headers)
    costs: dict[str, float] = {}
    for what, work in WORK.items():
        for _ in range(TRIES):
            page = new(body, headers) if work is read else page
            began = time.process_time()
            work(page)
            spent = time.process_time() - began
            costs[what] = min(spent, costs.get(what, spent))
            if spent <= most:
                break
    assert {what: round(seconds, 2) for what, seconds in costs.items() if seconds > most} == {}


def new(body: bytes, headers: tuple[tuple[str, str], ...]) -> Page:
    return Page(Response(url=URL, status=200, headers=headers, body=body), Request(url=URL))
