"""One scrapy-redis worker on the same crawl; with `seen` it makes no Request for a link that it has made one for."""

import sys

from scrapy.crawler import CrawlerProcess
from scrapy_redis.spiders import RedisSpider
from scrapy_shape import SETTINGS, parse

REDIS_URL, OUTPUT = sys.argv[1:3]
SEEN = set() if "seen" in sys.argv[3:] else None


class Pages(RedisSpider):
    name = "pages"
    # Never: it counts from the start of the process, so that a worker without work for a moment would leave.
    max_idle_time = 0

    def parse(self, response):
        return parse(response, SEEN)


process = CrawlerProcess(
    {
        **SETTINGS,
        "REDIS_URL": REDIS_URL,
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "FEEDS": {OUTPUT: {"format": "jsonlines"}},
    }
)
process.crawl(Pages)
process.start()
