"""Extraction: CPU microseconds per page for parsing, title, links, and text, compared with parsel if installed."""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from gossamer.engine import near_duplicates
from gossamer.extract.encoding import detect
from gossamer.extract.links import LinkCache
from gossamer.extract.metadata import read_metadata
from gossamer.extract.page import Page
from gossamer.extract.text import main_text
from gossamer.model import Request, Response

_TEXT = "the quick brown fox jumps over a lazy dog while crawlers keep pages links sites and hosts apart"
WORDS = _TEXT.split()
URL = "https://site.example/section3/page7.html"


def body(random_: random.Random, *, links: int) -> bytes:
    """A page of about 40 KB with links in the usual forms."""
    rows = []
    for number in range(links):
        href = random_.choice(
            [
                f"/section{random_.randrange(20)}/page{random_.randrange(5000)}.html",
                f"page{number}.html",
                f"../section{random_.randrange(20)}/",
                f"/search?q={random_.choice(WORDS)}&amp;page={number}",
                f"https://site{random_.randrange(40)}.example/p/{number}",
            ]
        )
        text = " ".join(random_.choices(WORDS, k=58))
        rows.append(
            f'<div class="row"><h3>{number}</h3><p>{text} <a href="{href}">{text[:20]}</a> <b>x</b></p></div>\n'
        )
    head = '<!doctype html><html><head><meta charset="utf-8"><title>A page</title></head><body>'
    return (head + "".join(rows) + "</body></html>").encode()


def page(source: bytes, memo: LinkCache | None = None) -> Page:
    headers = (("content-type", "text/html"),)
    return Page(Response(url=URL, status=200, headers=headers, body=source), Request(url=URL), link_cache=memo)


def microseconds(run: Callable[[], object], *, rounds: int) -> float:
    """CPU time of one run, the best of five series."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            run()
        best = min(best, time.process_time() - start)
    return best / rounds * 1e6


def crawl_step(source: bytes, memo: LinkCache) -> tuple[str, list[str]]:
    """What a crawl without a custom spider does with a page."""
    one = page(source, memo)
    return one.title, one.links()


def parsel_step(source: bytes) -> tuple[str | None, list[str]]:
    from urllib.parse import urljoin

    from parsel import Selector

    selector = Selector(body=source, encoding="utf-8")
    return selector.css("title::text").get(), [urljoin(URL, href) for href in selector.css("a::attr(href)").getall()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    source = body(random.Random(7), links=options.links)
    print(f"{platform.platform()}, Python {platform.python_version()}, turbohtml {version('turbohtml')}")
    print(f"one page of {len(source)} bytes, {options.links} links; CPU us a page, best of 5\n")

    parsed, warm = page(source), LinkCache()
    parsed.tree, parsed.links()
    page(source, warm).links()
    bench = {
        "encoding": lambda: detect(source, "text/html"),
        "parse": lambda: page(source).tree,
        "title": lambda: _title(parsed),
        "links, cold memo": lambda: _links(parsed, LinkCache()),
        "links, warm memo": lambda: _links(parsed, warm),
        "text": lambda: _text(parsed),
        "main text": lambda: main_text(parsed.tree),
        "main text and SimHash": lambda: near_duplicates.simhash(main_text(parsed.tree)),
        "metadata": lambda: read_metadata(parsed.tree),
        "whole step, cold memo": lambda: crawl_step(source, LinkCache()),
        "whole step, warm memo": lambda: crawl_step(source, warm),
    }
    figures = {name: microseconds(run, rounds=options.rounds) for name, run in bench.items()}
    for name, figure in figures.items():
        print(f"{name:24} {figure:9.1f}")
    try:
        print(
            f"\nparsel {version('parsel')}, the same step {microseconds(lambda: parsel_step(source), rounds=40):9.1f}"
        )
    except (PackageNotFoundError, ImportError):
        print("\nparsel is not installed: no comparison")


def _title(parsed: Page) -> str:
    parsed._title = None
    return parsed.title


def _links(parsed: Page, memo: LinkCache) -> list[str]:
    parsed._link_cache = memo
    return parsed.links()


def _text(parsed: Page) -> str:
    parsed._text = None
    return parsed.text


if __name__ == "__main__":
    main()
