"""Settings as `scrapy startproject` creates them, shortened. The project contains no Gossamer settings."""

BOT_NAME = "tutorial"
SPIDER_MODULES = ["tutorial.spiders"]
NEWSPIDER_MODULE = "tutorial.spiders"
ROBOTSTXT_OBEY = True
CONCURRENT_REQUESTS_PER_DOMAIN = 1
DOWNLOAD_DELAY = 0.05
ITEM_PIPELINES = {"tutorial.pipelines.WithAuthor": 300}
FEED_EXPORT_ENCODING = "utf-8"
