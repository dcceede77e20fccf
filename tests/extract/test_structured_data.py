from __future__ import annotations

import time
from typing import Any

import pytest

from gossamer.extract.metadata import Metadata
from gossamer.extract.page import Page
from gossamer.model import Request, Response

URL = "https://x.example/d/p"
SCHEMA, DC, FOAF = "http://schema.org/", "http://purl.org/dc/terms/", "http://xmlns.com/foaf/0.1/"


def said(html: str) -> Metadata:
    headers = (("content-type", "text/html; charset=utf-8"),)
    return Page(Response(url=URL, status=200, headers=headers, body=html.encode()), Request(URL)).metadata


def statements(html: str) -> set[tuple[str, str, str]]:
    """Subject, property without its vocabulary, and value."""
    return {
        (subject["@id"].removeprefix(URL), name.removeprefix(SCHEMA).removeprefix(DC).removeprefix(FOAF), _value(value))
        for subject in said(html).rdfa
        for name, values in subject.items()
        if name != "@id"
        for value in values
    }


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if "@list" in value:
        return " ".join(map(_value, value["@list"]))
    mark = value.get("@language") or value.get("@type", "").rpartition("#")[2]
    text = value.get("@value", value.get("@id"))
    return f"{text}@{mark}" if mark else str(text).removeprefix(URL)


@pytest.mark.parametrize(
    ("html", "wanted"),
    [
        # RDFa Lite: vocab, typeof, property, resource, prefix.
        (
            '<body vocab="http://schema.org/"><div typeof="Product" resource="#p"><b property="name">Pan</b>'
            '<div property="offers" typeof="Offer"><b property="price" content="9.5">9,50</b></div>'
            '<a property="url" href="/pan">x</a><img property="image" src="i.png"></div>',
            {
                ("", "http://www.w3.org/ns/rdfa#usesVocabulary", SCHEMA),
                ("#p", "@type", "http://schema.org/Product"), ("#p", "name", "Pan"), ("#p", "offers", "_:b0"),
                ("_:b0", "@type", "http://schema.org/Offer"), ("_:b0", "price", "9.5"),
                ("#p", "url", "https://x.example/pan"), ("#p", "image", "https://x.example/d/i.png"),
            },
        ),
        ('<p about="#a" prefix="ex: http://e.example/" property="ex:q other:r nothing">1',
         {("#a", "http://e.example/q", "1"), ("#a", "other:r", "1")}),
        # Chaining, and statements that are completed below.
        ('<div about="#me" rel="foaf:knows"><p typeof="foaf:Person"><b property="foaf:name">A</b></p><a href="#b">',
         {("#me", "knows", "_:b1"), ("_:b1", "@type", FOAF + "Person"), ("_:b1", "name", "A"), ("#me", "knows", "#b")}),
        ('<p about="#a" rev="dc:creator" resource="#b" property="dc:title" content="T">',
         {("#b", "creator", "#a"), ("#a", "title", "T")}),
        ('<a href="#x"><b property="dc:title">of the link</b></a><b property="dc:title">of the page</b>',
         {("#x", "title", "of the link"), ("", "title", "of the page")}),
        # Literals.
        ('<p lang=de about="#a"><b property="dc:title">T</b><b property="dc:x" lang="">N</b>',
         {("#a", "title", "T@de"), ("#a", "x", "N")}),
        ('<p about="#a"><b property="dc:x" datatype="xsd:int" content="5">five</b><time property="dc:date" '
         'datetime="2020-01-02">x</time><i property="dc:h" datatype="rdf:HTML">a<u>b</u></i>',
         {("#a", "x", "5@int"), ("#a", "date", "2020-01-02@date"), ("#a", "h", "a<u>b</u>@HTML")}),
        # Lists, names, and links that say nothing.
        ('<ol about="#l"><li inlist property="dc:i">1<li inlist property="dc:i">2</ol>', {("#l", "i", "1 2")}),
        ('<p about="_:a" rel="foaf:knows" resource="[_:b]"></p><p about="_:b" property="foaf:name">B',
         {("_:b0", "knows", "_:b1"), ("_:b1", "name", "B")}),
        ('<a rel="nofollow" href="/x">x</a><a rel="license" href="/l">l</a>',
         {("", "http://www.w3.org/1999/xhtml/vocab#license", "https://x.example/l")}),
        ('<head><meta property="og:title" content="T"></head>', {("", "http://ogp.me/ns#title", "T")}),
        ("<p>nothing", set()),
    ],
)  # fmt: skip
def test_rdfa_follows_the_standard(html: str, wanted: set[tuple[str, str, str]]) -> None:
    assert statements(html) == wanted


def item(html: str) -> dict[str, Any]:
    (found,) = said(html).microformats
    return found


def test_microformats_of_an_entry() -> None:
    found = item(
        '<div class="h-entry" id=e><h1 class="p-name">T</h1><a class="u-url" href="/e">x</a><p class="p-author h-card">'
        '<img class="u-photo" src="p.png" alt="P"><a class="p-name u-url" href="/a">Ann</a></p>'
        '<time class="dt-published" datetime="2020-01-01T10:00">x</time><data class="p-x" value="5">five</data>'
        '<div class="e-content"><p>Hi <b>there</b><script>no</script></p></div></div>'
    )
    assert (found["type"], found["id"]) == (["h-entry"], "e")
    card = {"type": ["h-card"], "value": "Ann", "properties": {
        "photo": [{"value": "https://x.example/d/p.png", "alt": "P"}], "name": ["Ann"], "url": ["https://x.example/a"],
    }}  # fmt: skip
    assert found["properties"] == {
        "name": ["T"],
        "url": ["https://x.example/e"],
        "author": [card],
        "published": ["2020-01-01T10:00"],
        "x": ["5"],
        "content": [{"html": "<p>Hi <b>there</b><script>no</script></p>", "value": "Hi there"}],
    }


@pytest.mark.parametrize(
    ("html", "properties"),
    [
        ('<a class="h-card" href="/me">Fran</a>', {"name": ["Fran"], "url": ["https://x.example/me"]}),
        (
            '<img class="h-card" alt="J" src="/j">',
            {"name": ["J"], "photo": [{"value": "https://x.example/j", "alt": "J"}]},
        ),
        ('<p class="h-card"><b>Only <i>text</i></b>', {"name": ["Only text"]}),
        (
            '<p class="h-event"><b class="p-name">E</b><b class="dt-start"><i class="value">2020-05-01</i> at '
            '<i class="value">7:30pm</i></b>',
            {"name": ["E"], "start": ["2020-05-01 19:30"]},
        ),
        (
            '<p class="h-x"><b class="p-tel">t: <i class="value">1</i>-<i class="value">2</i></b><b class="p-a p-b">c',
            {"tel": ["12"], "a": ["c"], "b": ["c"]},
        ),
        (
            '<p class="vcard"><b class="fn">O</b><a class="url" href="/u">u</a>',
            {"name": ["O"], "url": ["https://x.example/u"]},
        ),
    ],
)  # fmt: skip
def test_microformats_are_read_by_the_specification(html: str, properties: dict[str, Any]) -> None:
    assert item(html)["properties"] == properties


def test_items_without_a_property_are_children() -> None:
    found = item('<div class="h-feed"><b class="p-name">F</b><p class="h-entry">1</p><p class="h-entry">2</p></div>')
    assert [child["properties"]["name"] for child in found["children"]] == [["1"], ["2"]]


def test_classic_microformats_are_read_as_microformats2() -> None:
    found = item(
        '<article class="hentry"><h2 class="entry-title">T</h2><b class="author vcard"><a class="url fn" href="/a">A'
        '</a></b><div class="entry-content"><p>c</p></div><a rel="bookmark" href="/p">p</a>'
        '<a rel="tag" href="/tag/foo%20b/">F</a>'
    )
    assert (found["type"], found["properties"]["name"]) == (["h-entry"], ["T"])
    assert found["properties"]["author"][0]["properties"] == {"url": ["https://x.example/a"], "name": ["A"]}
    assert found["properties"]["content"] == [{"html": "<p>c</p>", "value": "c"}]
    assert (found["properties"]["url"], found["properties"]["category"]) == (["https://x.example/p"], ["foo b"])


def test_dublin_core_metas_are_read() -> None:
    assert said('<meta name="DC.title" content="T"><meta name=dcterms.created content=2020>').dublin_core == {
        "dc.title": "T",
        "dcterms.created": "2020",
    }


@pytest.mark.parametrize(
    "html",
    [
        '<div vocab="http://x/" typeof=a property=b>' * 25_000,
        '<div prefix="a: http://x/" about="q" rel=b:c>' * 25_000,
        '<p property="a:b c:d">' * 40_000,
        "".join(f'<div prefix="p{n}: http://x/{n}#">' for n in range(30_000)) + '<p property="p1:x">a' * 1000,
        '<div inlist about=a property="dc:x">' * 25_000,
        '<div class="h-entry p-name">' * 35_000,
        '<div class="h-entry"><p class="e-content">' + '<p class="e-content">x' * 40_000,
        '<div class="h-x">' + '<b class="e-y">' * 40_000,
        '<div class="h-entry"><p class="dt-start">' + "<b class=value>2020-01-01</b>" * 30_000,
        '<p class="vcard">' + '<b class="fn author">x' * 30_000,
        '<div class="h-x dt-y p-z">' * 35_000 + "text",
        '<p class="h-x">' + '<b class="p-z">' * 45_000 + "text",
        '<div property="a:b">' * 50_000,
        '<div class="' + " ".join(f"p-x{'y' * (n % 9)}" for n in range(100_000)) + '">x',
    ],
    ids=range(14),
)
def test_hostile_structured_data_takes_linear_time(html: str) -> None:
    """Far below the cost of quadratic work; benchmarks measure the figures."""
    began = time.process_time()
    said(html)
    assert time.process_time() - began < 20
