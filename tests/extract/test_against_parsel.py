"""Selectors against parsel, the library of Scrapy: the same questions about the same elements of real pages."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from parsel import Selector
from turbohtml import Comment, Element, Text

from gossamer.extract.page import Page
from gossamer.model import Request, Response

TAGS = ["div", "p", "a", "span", "li", "ul", "td", "tr", "table", "h1", "h2", "img", "article", "section", "b"]
SIMPLE = ["[href]", "[class]", "[id]", '[href^="/"]', '[class*="a"]', ":first-child", ":last-child", ":nth-child(2)"]
SIMPLE += [":nth-child(2n+1)", ":not(.x)", ":only-child", ":nth-last-child(2)", ":not([class])", ":empty"]
AXES = ["/", "//", "/ancestor::", "/parent::", "/following-sibling::", "/preceding-sibling::", "/descendant::"]
TESTS = ["[1]", "[last()]", "[2]", "[@class]", "[.//a]", "[not(@id)]", "[position()<3]", "[count(*)>1]"]
FROM = ["../*[1]", "ancestor::div", "following-sibling::*[1]/text()", ".//a/@href", "preceding-sibling::*", "self::p"]
FROM += ["parent::*/@class", "//h1/text()", "./*[2]", "following::a[1]/@href", "preceding::a[1]/@href"]
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CLASS = re.compile(r'class="([A-Za-z][\w-]*)')
ODD = re.compile(r"[^\w.-]")


def copied(root: Element) -> Any:
    """The tree as lxml has it, node by node: two parsers would see two pages."""
    top = etree.Element(root.tag)
    todo = [(root, top)]
    while todo:
        node, copy = todo.pop()
        for name in node.attrs:
            try:
                copy.set(ODD.sub("_", name), NOT_XML.sub("", node.attr(name) or ""))
            except ValueError:
                continue
        last = None
        for child in node:
            if isinstance(child, Text):
                text = NOT_XML.sub("", child.data)
                if last is None:
                    copy.text = (copy.text or "") + text
                else:
                    last.tail = (last.tail or "") + text
                continue
            if isinstance(child, Element):
                last = etree.SubElement(copy, "x" + ODD.sub("_", child.tag) if ":" in child.tag else child.tag)
                todo.append((child, last))
            elif isinstance(child, Comment):
                last = etree.Comment("x")
                copy.append(last)
    return top


def compound(chance: random.Random, classes: list[str]) -> str:
    tag = chance.choice(TAGS) if chance.random() < 0.7 else ""
    name = f".{chance.choice(classes)}" if classes and chance.random() < 0.4 else ""
    return tag + name + (chance.choice(SIMPLE) if chance.random() < 0.3 else "") or "p"


def css(chance: random.Random, classes: list[str]) -> str:
    query = compound(chance, classes)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
        query += chance.choice([" ", " ", " > ", " + ", " ~ "]) + compound(chance, classes)
    return query + chance.choice(["", "", "::text", " ::text", "::attr(href)", "::attr(class)"])


def xpath(chance: random.Random, classes: list[str]) -> str:
    query = "//" + chance.choice(TAGS)
    if classes and chance.random() < 0.4:
        query += f'[contains(@class,"{chance.choice(classes)}")]'
    for _ in range(chance.choice([0, 1, 1, 2])):
        query += chance.choice(AXES) + chance.choice([*TAGS, "*"]) + chance.choice(["", "", *TESTS])
    return query + chance.choice(["", "/text()", "/@href", "/@class", "//text()", "//@id"])


def seen(value: Any) -> object:
    """A string, or what shows which element it is."""
    if isinstance(value, str):
        return NOT_XML.sub("", value)
    if isinstance(value, Element):
        return (value.tag, value.attr("class") or "", value.attr("href") or "", len(value.select("*")))
    return (
        value.tag,
        value.get("class") or "",
        value.get("href") or "",
        len(list(value.iterdescendants(etree.Element))),
    )


@pytest.mark.parametrize("seed", range(4))
def test_selectors_find_what_parsel_finds(seed: int, shared: Path) -> None:
    chance = random.Random(seed)
    files = sorted((shared / "suites" / "pages-article-benchmark").rglob("*.gz"))
    asked = 0
    for file in chance.sample(files, 8):
        body = gzip.decompress(file.read_bytes())
        headers = (("content-type", "text/html; charset=utf-8"),)
        page = Page(Response(url="http://a.example/", status=200, headers=headers, body=body), Request(url="http://a/"))
        assert page.tree.root is not None
        selector = Selector(root=copied(page.tree.root), type="html")
        classes = CLASS.findall(page.html)[:50]
        for _ in range(40):
            ours: Any
            theirs: Any
            query = css(chance, classes)
            pairs = [(query, page.css(query), selector.css(query))]
            query = xpath(chance, classes)
            pairs.append((query, page.xpath(query), selector.xpath(query)))
            tag, query = chance.choice(TAGS), chance.choice(FROM)
            pairs.append((f"{tag} {query}", page.css(tag)[:5].xpath(query), selector.css(tag)[:5].xpath(query)))
            for question, ours, theirs in pairs:
                asked += bool(len(theirs))
                found = [seen(value) for value in ours._found]
                assert found == [seen(value.root) for value in theirs], (file.name, question)
    assert asked > 200
