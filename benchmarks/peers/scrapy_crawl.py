"""The same crawl with Scrapy, tuned; with `--seen` the spider keeps its own seen set and makes no Request per link."""

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy_shape import SETTINGS, archive, parse
from wanted import wanted

CHOICE = wanted()
SEEDS = open(CHOICE.seeds).read().split()
SEEN = set(SEEDS) if CHOICE.seen else None


class Pages(scrapy.Spider):
    name = "pages"
    start_urls = SEEDS

    def parse(self, response):
        return parse(response, SEEN, dont_filter=SEEN is not None)


settings = {**SETTINGS, "FEEDS": {CHOICE.output: {"format": "jsonlines"}}}
if CHOICE.durable:
    settings |= {"JOBDIR": f"{CHOICE.durable}/job", **archive(CHOICE.durable)}
process = CrawlerProcess(settings)
process.crawl(Pages)
process.start()
