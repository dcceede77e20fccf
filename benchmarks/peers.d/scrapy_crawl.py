"""The same crawl with Scrapy, tuned; with `seen` the spider keeps its own seen set and makes no Request per link."""

import sys

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor

SEEDS = open(sys.argv[1]).read().split()
OWN_SEEN_SET = "seen" in sys.argv[3:]


class Pages(scrapy.Spider):
    name = "pages"
    start_urls = SEEDS

    def __init__(self) -> None:
        super().__init__()
        self.extractor = LinkExtractor()
        self.seen = set(SEEDS)

    def parse(self, response):
        links = self.extractor.extract_links(response)
        yield {
            "url": response.url,
            "status": response.status,
            "title": response.css("title::text").get(),
            "links": len(links),
        }
        for link in links:
            if OWN_SEEN_SET:
                if link.url in self.seen:
                    continue
                self.seen.add(link.url)
            yield scrapy.Request(link.url, callback=self.parse, dont_filter=OWN_SEEN_SET)


process = CrawlerProcess(
    {
        "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
        "CONCURRENT_REQUESTS": 100,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 100,
        "DOWNLOAD_DELAY": 0,
        "ROBOTSTXT_OBEY": False,
        "COOKIES_ENABLED": False,
        "RETRY_ENABLED": False,
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        "FEEDS": {sys.argv[2]: {"format": "jsonlines"}},
    }
)
process.crawl(Pages)
process.start()
