"""The spider of the Markdown export: what each page is about, and what it says of itself."""

from __future__ import annotations

from typing import Any

from gossamer.cut import format_cut
from gossamer.extract.markdown import forget
from gossamer.extract.page import Page
from gossamer.extract.spider import Handler, Spider

_FORGET_AFTER = 5000


class CleanPages(Spider):
    """One item for each HTML page, whatever its label."""

    def __init__(self) -> None:
        self._until_forgotten = _FORGET_AFTER

    def handler(self, label: str) -> Handler:
        """The same for all pages."""
        return self.parse

    def parse(self, page: Page) -> list[dict[str, Any]]:
        """The page, clean."""
        if not page.is_html:
            return []
        self._until_forgotten -= 1
        if not self._until_forgotten:
            self._until_forgotten = _FORGET_AFTER
            forget()
        said = page.metadata
        named = {
            "title": said.title,
            "author": said.author,
            "date": said.date,
            "modified": said.modified,
            "language": said.language,
            "description": said.description,
            "site_name": said.site_name,
            "cut": format_cut(page.cut),
        }
        found = {name: value for name, value in named.items() if value}
        return [{"url": page.url, "fetched_at": page.response.fetched_at, **found, "markdown": page.markdown}]
