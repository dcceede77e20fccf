import os

import scrapy


class LambdaSpider(scrapy.Spider):
    """Yields something that cannot be stored, unless FIXED is set."""

    name = "lambdas"
    start_urls = [os.environ.get("SITE", "") + "/start"]
    custom_settings = {"DOWNLOAD_DELAY": 0}

    def parse(self, response):
        fixed = os.environ.get("FIXED")
        yield response.follow("/again", self.say, meta={"key": 1 if fixed else lambda: 1})
        yield response.follow("/twice", self.say)

    def say(self, response):
        yield {"saw": response.url}
