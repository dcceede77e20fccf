import os

import scrapy


class WalkSpider(scrapy.Spider):
    """Follows every link of the simulated web."""

    name = "walk"
    start_urls = os.environ.get("SEEDS", "").split()

    def parse(self, response):
        yield {"url": response.url}
        if isinstance(response, scrapy.http.HtmlResponse):
            for href in response.css("a::attr(href)").getall():
                if response.urljoin(href).startswith("http"):
                    yield response.follow(href)
