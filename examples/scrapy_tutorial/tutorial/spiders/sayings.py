"""A spider like that of Scrapy's tutorial: list pages with quotes, a next link, and pages about the authors."""

import scrapy


class SayingsSpider(scrapy.Spider):
    name = "sayings"

    def __init__(self, site="http://localhost/", **arguments):
        super().__init__(**arguments)
        self.start_urls = [site]

    def parse(self, response):
        for saying in response.css("div.saying"):
            yield {"text": saying.css("span.text::text").get(), "author": saying.css("small::text").get()}
            yield from response.follow_all(saying.css("a.author"), self.parse_author)
        yield from response.follow_all(css="li.next a", callback=self.parse)

    def parse_author(self, response):
        yield {"author": response.css("h1::text").get(), "born": response.css("span.born::text").get()}
