"""The same crawl with Scrapy, tuned; with `seen` the spider keeps its own seen set and makes no Request per link."""

import sys

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy_shape import SETTINGS, parse

SEEDS = open(sys.argv[1]).read().split()
SEEN = set(SEEDS) if "seen" in sys.argv[3:] else None


class Pages(scrapy.Spider):
    name = "pages"
    start_urls = SEEDS

    def parse(self, response):
        return parse(response, SEEN, dont_filter=SEEN is not None)


process = CrawlerProcess({**SETTINGS, "FEEDS": {sys.argv[2]: {"format": "jsonlines"}}})
process.crawl(Pages)
process.start()
