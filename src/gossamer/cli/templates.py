"""The spiders that `gossamer init --template NAME` writes."""

from __future__ import annotations

_LIST = """\
from gossamer import Spider


class Quotes(Spider):
    start = ["https://quotes.toscrape.com/"]

    def parse(self, page):
        for quote in page.css("div.quote"):
            yield {"text": quote.css(".text::text").get(), "author": quote.css(".author::text").get()}
        yield from page.follow_all("li.next a")
"""
_SITE = """\
from gossamer import Spider


class Site(Spider):
    start = ["https://quotes.toscrape.com/"]
    follows_links = True  # follow every link in scope: see `scope`, `allow`, and `deny` in gossamer.toml

    def parse(self, page):
        yield {
            "url": page.url,
            "title": page.title,
            "heading": page.css("h1::text").get(),
            "description": page.css("meta[name=description]::attr(content)").get(),
        }
"""
_SHOP = """\
from gossamer import Spider


class Shop(Spider):
    start = ["https://books.toscrape.com/"]

    def parse(self, page):
        # A list of products: parse_product handles the pages that its links lead to.
        yield from page.follow_all(".product_pod h3 a", label="product")
        yield page.next_page("li.next a")

    def parse_product(self, page):
        yield {
            "url": page.url,
            "name": page.css("h1::text").get(),
            "price": page.css(".price_color::text").re_first(r"[\\d.]+"),
        }
"""
_NEWS = """\
from gossamer import Spider


class News(Spider):
    start = ["https://example.com/news/"]

    def parse(self, page):
        # A list of articles: parse_article handles the pages that its links lead to.
        yield from page.follow_all("article h2 a", label="article")
        yield page.next_page()  # the link with rel=next; or name it: page.next_page("a.older")

    def parse_article(self, page):
        yield {
            "url": page.url,
            "title": page.css("h1::text").get(),
            "date": page.css("time::attr(datetime)").get(),
            "text": page.main_text,
        }
"""
_SITEMAP = """\
from gossamer import Spider


class Listed(Spider):
    start = ["https://example.com/"]
    settings = {"sitemaps": True}  # crawl the pages in the sitemaps that robots.txt names, or in /sitemap.xml

    def parse(self, page):
        yield {"url": page.url, "title": page.title, "lastmod": page.meta.get("lastmod")}
"""
_API = """\
from gossamer import Spider


class Api(Spider):
    start = ["https://quotes.toscrape.com/api/quotes?page=1"]

    def parse(self, page):
        found = page.json()
        for quote in found["quotes"]:
            yield {"text": quote["text"], "author": quote["author"]["name"]}
        if found["has_next"]:
            yield page.follow(page.with_query(page=found["page"] + 1))
"""

TEMPLATES = {"list": _LIST, "site": _SITE, "shop": _SHOP, "news": _NEWS, "sitemap": _SITEMAP, "api": _API}
"""Name -> source code. The first is the default."""
