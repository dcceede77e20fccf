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


def test_metadata_has_author_dates_and_language() -> None:
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


def test_missing_or_invalid_metadata_is_empty() -> None:
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


def test_main_part_is_markdown_without_page_furniture() -> None:
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
def test_main_part_matches_human_annotations() -> None:
    """Every third page of the article benchmark: 4-gram F1 of the text against the one that people marked."""
    truth = json.loads((SUITE / "ground-truth.json").read_text())
    scores = []
    for name, article in sorted(truth.items())[::3]:
        path = SUITE / "html" / f"{name}.html.gz"
        if path.exists():
            text = page(gzip.decompress(path.read_bytes())).main_text
            scores.append(_f1(_grams(text), _grams(article["articleBody"])))
    assert len(scores) > 50
    assert sum(scores) / len(scores) > 0.9


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return Counter(tuple(words[start : start + 4]) for start in range(len(words) - 3))


def _f1(one: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]]) -> float:
    return 2 * (one & other).total() / max(one.total() + other.total(), 1)


def block(text: str) -> list[dict[str, object]]:
    return page(f'<script type="application/ld+json">{text}</script>').metadata.json_ld


@pytest.mark.parametrize(
    "text",
    [
        '{"@type": "A", "b": [1, 2]}',
        '\ufeff{"@type": "A", "b": [1, 2]};',
        '<!-- {"@type": "A", "b": [1, 2]} -->',
        '//<![CDATA[\n{"@type": "A", "b": [1, 2]}\n//]]>',
        '// <![CDATA[ {"@type": "A", "b": [1, 2]} // ]]>;',
        '/*<![CDATA[*/ {"@type": "A", "b": [1, 2]} /*]]>*/',
        '{"@type": "A", "b": [1, 2, ], }',
        '{"@type": "A", // the type, or so\n "b": [1, 2 /* ], */ ,\n]\n,}',
    ],
)
def test_json_ld_tolerates_common_errors(text: str) -> None:
    assert block(text) == [{"@type": "A", "b": [1, 2]}]


def test_json_ld_strings_keep_slashes_and_commas() -> None:
    assert block('{"url": "http://x.example//a/*b*/", "say": "\\",]", "x": 1,}') == [
        {"url": "http://x.example//a/*b*/", "say": '",]', "x": 1}
    ]
    for broken in ("{/*", '{"a', "//", "<!--", "-->", ";", '{"a": 1,,}', "[1]", '"x"'):
        assert block(broken) == []


def test_microdata_follows_the_standard() -> None:
    """The examples of the standard: itemref, several types, global identifiers, items beyond any small number."""
    html = """<dl itemscope itemtype="http://vocab.example/book http://vocab.example/thing" itemid="urn:isbn:1">
     <dt>T<dd itemprop="title">The Reality</dl>
    <div itemscope id="amanda" itemref="a b missing a"></div>
    <p id="a">Name: <span itemprop="name">Amanda</span></p>
    <div id="b" itemprop="band" itemscope itemref="c"></div>
    <div id="c"><p itemprop="name nick name">Jazz</p><p itemprop="size">12</p></div>
    <p itemprop="alone">of nobody</p>"""
    book, amanda = page(html).metadata.microdata
    assert book == {
        "type": ["http://vocab.example/book", "http://vocab.example/thing"],
        "id": "urn:isbn:1",
        "title": "The Reality",
    }
    band = {"type": "", "name": "Jazz", "nick": "Jazz", "size": "12"}
    assert amanda == {"type": "", "name": "Amanda", "band": band}
    many = "<div itemscope><i itemprop=n>1</i></div>" * 1000
    assert page(many).metadata.microdata == [{"type": "", "n": "1"}] * 1000


def test_properties_come_in_the_order_of_the_document() -> None:
    html = '<p id=z><i itemprop=n>1</i></p><div itemscope itemref="y z"><i itemprop=n>2</i></div><p id=y itemprop=n>3'
    assert page(html).metadata.microdata == [{"type": "", "n": ["1", "2", "3"]}]


def test_recursive_microdata_terminates() -> None:
    html = (
        "<div itemscope itemref=b></div><p id=b itemprop=to itemscope itemref='c b'></p>"
        "<p id=c itemprop=back itemscope itemref=b></p>"
    )
    again = {"type": "", "to": {"type": "", "back": {"type": "", "to": "ERROR"}}}
    assert page(html).metadata.microdata == [again]
    # Each item stands twice in the one before: written out, they would fill any memory.
    chain = "".join(
        f'<div id=a{n} itemprop=x itemscope itemref="b{n}"></div><p id=b{n}>'
        f'<i itemprop="x y" itemscope itemref=b{n + 1}></i></p>'
        for n in range(40)
    )
    said = page(f"<div itemscope itemref=b0></div>{chain}").metadata.microdata
    assert len(json.dumps(said)) < 5_000_000
    names = " ".join(f"n{number}" for number in range(200_000))
    said = page(f'<div itemscope><p itemprop="{names}">{"x" * 5000}</p></div>').metadata.microdata
    assert len(json.dumps(said)) < 20_000_000
