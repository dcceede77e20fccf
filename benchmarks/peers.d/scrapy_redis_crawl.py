"""One scrapy-redis worker on the same crawl; with `seen` it makes no Request for a link that it has made one for."""

import sys

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from scrapy_redis.spiders import RedisSpider

REDIS_URL, OUTPUT = sys.argv[1:3]
OWN_SEEN_SET = "seen" in sys.argv[3:]


class Pages(RedisSpider):
    name = "pages"
    # Never: it counts from the start of the process, so that a worker without work for a moment would leave.
    max_idle_time = 0

    def __init__(self) -> None:
        super().__init__()
        self.extractor = LinkExtractor()
        self.seen = set()

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
            yield scrapy.Request(link.url, callback=self.parse)


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
        "REDIS_URL": REDIS_URL,
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "FEEDS": {OUTPUT: {"format": "jsonlines"}},
    }
)
process.crawl(Pages)
process.start()
