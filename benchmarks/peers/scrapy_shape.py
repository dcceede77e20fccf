"""Shared by all Scrapy contenders: page handling, and the settings recommended for speed."""

from urllib.parse import urlsplit

import scrapy
from scrapy.linkextractors import LinkExtractor

SETTINGS = {
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "CONCURRENT_REQUESTS": 100,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 100,
    "REACTOR_THREADPOOL_MAXSIZE": 20,
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": False,
    "COOKIES_ENABLED": False,
    "RETRY_ENABLED": False,
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
}
EXTRACTOR = LinkExtractor()


def archive(folder):
    """Settings to store bodies on disk, compressed, in Scrapy's HTTP cache."""
    return {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": f"{folder}/bodies", "HTTPCACHE_GZIP": True}


def parse(response, seen, **options):
    """Items and requests of a page; with a set `seen`, creates no Request for links in it."""
    links = EXTRACTOR.extract_links(response)
    yield {
        "url": response.url,
        "status": response.status,
        "title": response.css("title::text").get(),
        "links": len(links),
    }
    own = urlsplit(response.url).netloc
    for link in links:
        url = link.url.partition("#")[0]
        if seen is not None and url in seen:
            continue
        if urlsplit(url).netloc == own:
            if seen is not None:
                seen.add(url)
            yield scrapy.Request(url, **options)
