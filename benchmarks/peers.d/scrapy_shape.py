"""What both Scrapy contenders do with a page, and the settings that are advised for speed."""

import scrapy
from scrapy.linkextractors import LinkExtractor

SETTINGS = {
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "CONCURRENT_REQUESTS": 100,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 100,
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": False,
    "COOKIES_ENABLED": False,
    "RETRY_ENABLED": False,
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
}
EXTRACTOR = LinkExtractor()


def parse(response, seen, **options):
    """Items and requests of a page; with a set `seen`, no Request is made for a link that is in it."""
    links = EXTRACTOR.extract_links(response)
    yield {
        "url": response.url,
        "status": response.status,
        "title": response.css("title::text").get(),
        "links": len(links),
    }
    for link in links:
        if seen is not None:
            if link.url in seen:
                continue
            seen.add(link.url)
        yield scrapy.Request(link.url, **options)
