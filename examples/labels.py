"""One handler for each kind of page: a page that is requested with `label="letter"` goes to `parse_letter`.

    gossamer crawl http://127.0.0.1:8000/ --spider examples/labels.py --allow-private

Run `gossamer simweb --port 8000` in another terminal first: it serves the site of this example.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gossamer import Page, Spider


class Letters(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        """Follow the links of any page: letters first, then the other pages."""
        yield from page.follow_all("a[href*='/letters/']", label="letter", priority=1, meta={"found_on": page.title})
        yield from page.follow_all("a:not([href*='/letters/'])")

    def parse_letter(self, page: Page) -> Iterator[Any]:
        """Extract one item from a letter, and follow its links."""
        yield {
            "letter": page.css("h1::text").get(),
            "found_on": page.meta.get("found_on"),
            "words": len(page.text.split()),
        }
        yield from self.parse(page)
