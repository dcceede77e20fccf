"""Looks at the main text of pages, and only where that is worth its cost."""

from __future__ import annotations

from typing import NamedTuple

from gossamer import urls
from gossamer.extract import fingerprint
from gossamer.extract.page import Page
from gossamer.extract.text import main_text
from gossamer.frontier.traps import prefix_of
from gossamer.settings import Settings

_MOST_PATHS = 10_000


class Look(NamedTuple):
    """The digest of a page's main text, and its SimHash; empty and None where they were not worked out."""

    digest: str = ""
    likeness: int | None = None


class Looks:
    """Remembers the last title of each path: pages whose titles differ by more than numbers are no copies."""

    def __init__(self, settings: Settings) -> None:
        self._for_changes = bool(settings.recrawl)
        self._for_copies = settings.alike_pages > 0
        self._titles: dict[str, str] = {}

    def at(self, page: Page) -> Look:
        """What is to be known of a page's text."""
        if not page.is_html:
            return Look()
        alike = self._for_copies and self._has_last_title(page)
        if not alike and not self._for_changes:
            return Look()
        text = main_text(page.tree)
        return Look(
            fingerprint.text_digest(text) if self._for_changes else "", fingerprint.simhash(text) if alike else None
        )

    def _has_last_title(self, page: Page) -> bool:
        place = urls.origin(page.url) + prefix_of(urls.path_query(page.url))
        title = " ".join(fingerprint.words(page.title))
        last = self._titles.get(place)
        if last is None and len(self._titles) >= _MOST_PATHS:
            self._titles.clear()
        self._titles[place] = title
        return last == title
