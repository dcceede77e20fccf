"""The same crawl with tuned Scrapy; with `--seen`, the spider keeps a seen set and skips seen links."""

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy_shape import SETTINGS, archive, parse
from wanted import wanted

CHOICE = wanted()
SEEDS = open(CHOICE.seeds).read().split()
SEEN = set(SEEDS) if CHOICE.seen else None


class Pages(scrapy.Spider):
    name = "pages"

    async def start(self):
        # Not `start_urls`: those bypass the dupefilter, so a page that links to itself would be fetched twice.
        for url in SEEDS:
            yield scrapy.Request(url)

    def parse(self, response):
        return parse(response, SEEN, dont_filter=SEEN is not None)


settings = {**SETTINGS, "FEEDS": {CHOICE.output: {"format": "jsonlines"}}}
if CHOICE.durable:
    settings |= {"JOBDIR": f"{CHOICE.durable}/job", **archive(CHOICE.durable)}
process = CrawlerProcess(settings)
process.crawl(Pages)
process.start()
