from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule
from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider


class RedisWalkSpider(RedisSpider):
    """A spider of scrapy-redis: its start URLs are in a list."""

    name = "redis_walk"
    redis_key = "walk:start_urls"

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")


class RedisRulesSpider(RedisCrawlSpider):
    """A scrapy-redis CrawlSpider; its start URLs are in a set."""

    name = "redis_rules"
    custom_settings = {"REDIS_START_URLS_AS_SET": True}
    rules = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def parse_page(self, response):
        yield {"url": response.url}
