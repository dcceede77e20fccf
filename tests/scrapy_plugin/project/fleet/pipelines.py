import asyncio
from pathlib import Path

from scrapy.exceptions import DropItem
from scrapy.utils.asyncio import is_asyncio_available


class Slow:
    """A slow pipeline, so that a page is not done with its callback; drops marked items."""

    async def process_item(self, item):
        if is_asyncio_available():
            await asyncio.sleep(0.02)
        while "wait_for" in item and not Path(item["wait_for"]).exists():
            await asyncio.sleep(0.05)
        if item.get("drop"):
            raise DropItem("by request")
        return item
