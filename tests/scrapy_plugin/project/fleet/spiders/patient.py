import os

import scrapy


class PatientSpider(scrapy.Spider):
    """Its item stays in the pipeline until a file exists."""

    name = "patient"
    start_urls = [os.environ.get("SITE", "") + "/start"]

    def parse(self, response):
        if response.url.endswith("/start"):
            yield response.follow("/again")
            yield {"wait_for": os.environ["GATE"]}
