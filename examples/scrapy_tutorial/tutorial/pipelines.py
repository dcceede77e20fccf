"""A pipeline that drops what has no author."""

from scrapy.exceptions import DropItem


class WithAuthor:
    def process_item(self, item):
        if not item.get("author"):
            raise DropItem("nobody said that")
        return item
