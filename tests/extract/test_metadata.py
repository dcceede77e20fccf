from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from gossamer.extract.page import Page
from gossamer.model import Request, Response

SUITE = Path(__file__).parents[2].parent / "shared" / "suites" / "pages-article-benchmark"
ARTICLE = """
<html lang="pt-BR"><head><title>The title - The Site</title>
<meta name="Description" content="  What it  is about ">
<meta property="og:title" content="The title"><meta property="og:site_name" content="The Site">
<meta property="og:image" content="/one.png"><meta property="og:image" content="/two.png">
<meta property="article:published_time" content="2026-01-31T10:00:00Z">
<link rel="canonical" href="https://x.example/a">
<script type="application/ld+json">
//<![CDATA[
{"@graph": [{"@type": "WebSite", "name": "The Site"},
 {"@type": ["NewsArticle"], "headline": "H", "dateModified": "2026-02-01",
  "author": [{"@type": "Person", "name": "Ann"}, {"name": "Bo"}, "https://x.example/bo"], "description": "line
 break"}]}
//]]>
</script>
<script type="application/ld+json">{not json</script></head>
<body><nav><a href="/">home</a> <a href="/x">menu</a></nav>
<div itemscope itemtype="https://schema.org/Product"><h1 itemprop="name">Pan</h1>
 <div itemprop="offers" itemscope itemtype="https://schema.org/Offer"><meta itemprop="price" content="9.50">
  <link itemprop="availability" href="https://schema.org/InStock"></div>
 <a itemprop="url" href="/pan">here</a> <span itemprop="color">red</span><span itemprop="color">blue</span></div>
<article><h1>The title</h1><p>The first paragraph has enough words in it to be taken for a part of the <b>text</b>.</p>
<h2>More</h2><p>The second one too, with as many words as it takes to be found and kept by any reader.</p>
<ul><li>one thing</li><li>another thing</li></ul></article>
<footer>imprint and copyright</footer></body></html>
"""


def page(html: str | bytes, **headers: str) -> Page:
    body = html.encode() if isinstance(html, str) else html
    named = (("content-type", "text/html; charset=utf-8"), *headers.items())
    return Page(
        Response(url="https://x.example/a", status=200, headers=named, body=body), Request("https://x.example/a")
    )


def test_a_page_says_who_wrote_it_when_and_in_which_language() -> None:
    said = page(ARTICLE).metadata
    assert (said.title, said.author, said.language) == ("The title", "Ann, Bo", "pt-BR")
    assert (said.date, said.modified) == ("2026-01-31T10:00:00Z", "2026-02-01")
    assert (said.description, said.site_name, said.image) == ("What it is about", "The Site", "/one.png")
    assert said.canonical == "https://x.example/a"
    assert said.open_graph["og:title"] == "The title"
    assert [one["@type"] for one in said.json_ld] == ["WebSite", ["NewsArticle"]]
    (product,) = said.microdata
    assert product == {
        "type": "https://schema.org/Product",
        "name": "Pan",
        "offers": {
            "type": "https://schema.org/Offer", "price": "9.50", "availability": "https://schema.org/InStock",
        },
        "url": "/pan",
        "color": ["red", "blue"],
    }  # fmt: skip


def test_a_page_that_says_nothing_or_nonsense_has_empty_fields() -> None:
    assert page("<p>x").metadata.author == ""
    assert page("<p>x", **{"content-language": "de"}).metadata.language == "de"
    deep = "[" * 100_000
    hostile = (
        f'<html lang="../etc"><script type="application/ld+json">{deep}</script>' + "<div itemscope itemprop=a>" * 2000
    )
    said = page(hostile).metadata
    assert (said.language, said.json_ld) == ("", [])
    assert (
        page('<script type="application/ld+json">{"@type":"Article","author":[[[]]],"datePublished":{}}').metadata.date
        == ""
    )


def test_the_main_part_is_markdown_without_what_surrounds_it() -> None:
    found = page(ARTICLE)
    assert "## More" in found.markdown
    assert "**text**" in found.markdown
    assert "- one thing" in found.markdown
    for around in ("menu", "imprint"):
        assert around not in found.markdown
        assert around not in found.main_text
    # Where nothing stands out, the text is taken as it is.
    assert "short" in page("<nav>menu</nav><p>short</p>").markdown
    assert page(b"\x89PNG\r\n\x1a\n\0\0\0").markdown == ""


@pytest.mark.skipif(not SUITE.is_dir(), reason="the pages of others are not here")
def test_the_main_part_is_what_people_say_it_is() -> None:
    """Every ninth page of the article benchmark: 4-gram F1 of the text against the one that people marked."""
    truth = json.loads((SUITE / "ground-truth.json").read_text())
    scores = []
    for name, article in sorted(truth.items())[::9]:
        path = SUITE / "html" / f"{name}.html.gz"
        if path.exists():
            text = page(gzip.decompress(path.read_bytes())).main_text
            scores.append(_f1(_grams(text), _grams(article["articleBody"])))
    assert len(scores) > 10
    assert sum(scores) / len(scores) > 0.9


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return Counter(tuple(words[start : start + 4]) for start in range(len(words) - 3))


def _f1(one: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]]) -> float:
    return 2 * (one & other).total() / max(one.total() + other.total(), 1)
