"""Scrapy over its HTTP cache: `fill` fetches the pages into it, `reparse` runs a spider over them without a network."""

import sys

import scrapy
from scrapy.crawler import CrawlerProcess

mode, URLS, CACHE, OUTPUT = sys.argv[1], open(sys.argv[2]).read().split(), sys.argv[3], sys.argv[4]

SPIDER = sys.argv[6] if len(sys.argv) > 6 else "items"


class Pages(scrapy.Spider):
    name = "pages"
    start_urls = URLS

    def parse(self, response):
        if SPIDER == "links":
            found = dict.fromkeys(map(response.urljoin, response.css("a::attr(href)").getall()))
            yield {"url": response.url, "title": response.css("title::text").get(), "links": list(found)}
            return
        for item in response.css("div.item"):
            yield {
                "url": response.url,
                "title": response.css("title::text").get(),
                "name": item.css(".name::text").get(),
                "price": item.css(".price::text").get(),
            }


settings = {
    "HTTPCACHE_ENABLED": True,
    "HTTPCACHE_DIR": CACHE,
    "HTTPCACHE_IGNORE_MISSING": mode == "reparse",
    "ROBOTSTXT_OBEY": False,
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "RETRY_ENABLED": False,
    "COOKIES_ENABLED": False,
    "CONCURRENT_REQUESTS": 100,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 100,
    "DOWNLOAD_DELAY": 0,
    "FEEDS": {OUTPUT: {"format": "jsonlines"}},
}
if len(sys.argv) > 5:
    settings["HTTPCACHE_STORAGE"] = f"scrapy.extensions.httpcache.{sys.argv[5]}"
process = CrawlerProcess(settings)
process.crawl(Pages)
process.start()
