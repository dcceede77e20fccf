"""A broad crawl with tuned Scrapy: one page from each of many hosts, whose names all resolve to this machine."""

import sys
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy_shape import EXTRACTOR, SETTINGS
from twisted.internet.base import ThreadedResolver
from twisted.internet.defer import succeed

SEEDS = open(sys.argv[1]).read().split()


class Loopback(ThreadedResolver):
    """Resolves every name immediately, without DNS."""

    @classmethod
    def from_crawler(cls, crawler, reactor):
        return cls(reactor)

    def install_on_reactor(self):
        self.reactor.installResolver(self)

    def getHostByName(self, name, timeout=()):  # noqa: N802
        return succeed("127.0.0.1")


class Pages(scrapy.Spider):
    name = "pages"
    start_urls = SEEDS

    def parse(self, response):
        links = EXTRACTOR.extract_links(response)
        title = response.css("title::text").get()
        yield {"url": response.url, "status": response.status, "title": title, "links": len(links)}
        own = urlsplit(response.url).netloc
        for link in links:
            if urlsplit(link.url).netloc == own and link.url != response.url:
                yield scrapy.Request(link.url)


if __name__ == "__main__":
    process = CrawlerProcess(
        {**SETTINGS, "DNS_RESOLVER": "__main__.Loopback", "FEEDS": {sys.argv[2]: {"format": "jsonlines"}}}
    )
    process.crawl(Pages)
    process.start()
