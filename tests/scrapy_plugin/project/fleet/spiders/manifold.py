import os

import scrapy


class MyItem(scrapy.Item):
    word = scrapy.Field()


class ManifoldSpider(scrapy.Spider):
    """Sends one request of every kind; each item contains the arguments of its callback."""

    name = "manifold"
    site = os.environ.get("SITE", "")
    handle_httpstatus_list = [404]
    custom_settings = {"DOWNLOAD_DELAY": 0}

    async def start(self):
        yield scrapy.Request(self.site + "/start", callback=self.parse_start, dont_filter=True)
        yield {"saw": "an item of start"}

    async def parse_start(self, response):
        request = response.follow
        yield request("/moved", self.say, cb_kwargs={"what": "redirect"})
        yield request("/flaky", self.say, cb_kwargs={"what": "retry"})
        yield request("/missing", self.say, cb_kwargs={"what": "missing"})
        yield request("/broken", self.say, errback=self.fail, cb_kwargs={"what": "errback"})
        yield request("/private", self.say, errback=self.fail)
        yield request("/again", self.say, cb_kwargs={"what": "filtered"})
        yield request("/again", self.say, cb_kwargs={"what": "filtered"})
        for number in (1, 2):
            yield request("/twice", self.say, cb_kwargs={"what": f"dont_filter {number}"}, dont_filter=True)
        yield scrapy.FormRequest(
            response.urljoin("/echo"), self.say, formdata={"a": "1"}, cb_kwargs={"what": "form"}, flags=["f"]
        )
        yield request(
            "/echo",
            self.say,
            method="PUT",
            body=b"\xff\x00not utf-8",
            headers={"X-Word": ["one", "two"]},
            cookies={"jar": "1"},
            meta={"cookiejar": 7, "pair": (1, {2}), "item": MyItem(word="w")},
            cb_kwargs={"what": "put"},
        )
        yield request("/raises", self.give_up)
        yield {"drop": True}

    def say(self, response, what="", **_):
        meta = {name: value for name, value in response.meta.items() if name in ("cookiejar", "pair", "item")}
        yield {"saw": what, "body": response.text, "flags": response.request.flags, "meta": repr(meta)}

    def fail(self, failure):
        yield {"saw": "failure", "url": failure.request.url, "why": failure.type.__name__}
        if "broken" in failure.request.url:
            yield scrapy.Request(self.site + "/after-failure", self.say, cb_kwargs={"what": "after a failure"})

    def give_up(self, response):
        yield {"saw": "raises"}
        yield response.follow("/before-the-raise", self.say, cb_kwargs={"what": "before the raise"})
        raise RuntimeError("as planned")
