"""Workers of scrapy-redis on the same crawl; with `--seen` none makes a Request for a link that it has made one for.

They never end by themselves: Scrapy's own time-out for spiders without items ends them. The first process puts the
seeds into Redis, once, and starts as many workers as were asked for.
"""

import json
import os
import subprocess
import sys

from wanted import wanted

QUIET_SECONDS = 10


def work(choice, output):
    from scrapy.crawler import CrawlerProcess
    from scrapy_redis.spiders import RedisSpider
    from scrapy_shape import SETTINGS, archive, parse

    seen = set() if choice.seen else None

    class Pages(RedisSpider):
        name = "pages"
        # Never: it counts from the start of the process, so a worker that is idle for a moment would exit.
        max_idle_time = 0

        def parse(self, response):
            return parse(response, seen)

    settings = {
        **SETTINGS,
        "REDIS_URL": choice.redis,
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "CLOSESPIDER_TIMEOUT_NO_ITEM": QUIET_SECONDS,
        "FEEDS": {output: {"format": "jsonlines"}},
    }
    if choice.durable:
        settings |= archive(choice.durable)
    process = CrawlerProcess(settings)
    process.crawl(Pages)
    process.start()


def main():
    choice = wanted()
    if worker := os.environ.get("WORKER"):
        work(choice, f"{choice.output}.{worker}")
        return
    import redis

    with redis.Redis.from_url(choice.redis) as store:
        if store.set("pages:seeded", 1, nx=True):
            seeds = open(choice.seeds).read().split()
            store.lpush("pages:start_urls", *(json.dumps({"url": url}) for url in seeds))
    running = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "WORKER": str(number)})
        for number in range(choice.workers)
    ]
    sys.exit(max(process.wait() for process in running))


main()
