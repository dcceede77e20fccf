"""Sitemaps and feeds, against the files and expectations of crawler-commons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from score import Score, tally

from gossamer.extract.sitemap import parse

READS = ("sitemaps-crawler-commons", "html-links-scrapy")
SUITE = Path(__file__).parents[2].parent / "shared" / "suites" / "sitemaps-crawler-commons"
DEVIATIONS = {
    "testRSSFormat rss/feed.rss": "it follows a guid that says isPermaLink=false, which by RSS 2.0 is no URL",
}
CANARY = "do-not-visit.txt"
VISIT = "http://www.example.com/visit-here"


def passes(case: dict[str, Any]) -> bool:
    """Whether a file lists as many pages, or further sitemaps, as it should, and the canary is not among them."""
    path = SUITE / case["file"]
    body = hostile(case["url"], path) if path.name == CANARY else path.read_bytes()
    found = parse(body, case["url"] or "http://www.example.com/sitemap.xml", case["content_type"] or "")
    if case["sitemaps"] is not None:
        return len(found.sitemaps) == case["sitemaps"] and not found.pages
    if path.name == CANARY and [entry.url for entry in found.pages] != [VISIT]:
        return False
    return len(found.pages) == case["urls"] and not found.sitemaps


def hostile(url: str, canary: Path) -> bytes:
    """A sitemap that would have the canary read: the suite names the canary in place of it."""
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    if "xinclude" in url:
        inner = f'<xi:include parse="text" href="{canary.as_uri()}"/>'
        root = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:xi="http://www.w3.org/2001/XInclude">'
    else:
        head += f'<!DOCTYPE urlset [<!ENTITY canary SYSTEM "{canary.as_uri()}">]>'
        inner, root = "&canary;", '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    locs = f"<url><loc>{VISIT}</loc></url><url><loc>{inner}</loc></url>"
    return f"{head}{root}{locs}</urlset>".encode()


def scores() -> list[Score]:
    """Every case counts, and so does a bomb."""
    cases = json.loads((SUITE / "expected.json").read_text("utf-8"))
    bomb = SUITE.parent / "html-links-scrapy" / "xml_attacks" / "billion_laughs.xml"
    found = parse(bomb.read_bytes(), "http://www.example.com/sitemap.xml", "text/xml")
    return [
        tally(
            "sitemaps-crawler-commons", {f"{case['test']} {case['file']}": passes(case) for case in cases}, DEVIATIONS
        ),
        tally("xml-attacks", {bomb.name: not found.pages and not found.sitemaps}),
    ]
