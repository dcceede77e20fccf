"""A pipeline that drops items without an author."""

from scrapy.exceptions import DropItem


class WithAuthor:
    def process_item(self, item):
        if not item.get("author"):
            raise DropItem("missing author")
        return item
