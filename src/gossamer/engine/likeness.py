"""Looks at the main text of pages, and only where that is worth its cost."""

from __future__ import annotations

from typing import NamedTuple

from gossamer import urls
from gossamer.cut import drops_text
from gossamer.extract import fingerprint
from gossamer.extract.page import Page
from gossamer.extract.text import main_text, text_beside_links
from gossamer.frontier.combinations import place_of
from gossamer.frontier.traps import prefix_of
from gossamer.settings import Settings

_MOST_PATHS = 10_000


_FEWEST_WORDS = 32
"""A page with less text may be all pictures or numbers, and is no copy of another."""


class TextFingerprint(NamedTuple):
    """What is known of a page's main text; empty and None where it was not worked out."""

    digest: str = ""
    likeness: int | None = None
    """Its SimHash, if the page may be a copy of the last one of its path."""
    beside: int | None = None
    """The SimHash of what is not in links, if the page's query may be one of endless ones of its path."""
    simhash: int | None = None
    """Its SimHash, if copies are looked for among all pages."""
    tells: bool = False
    """Whether there is enough text to call the page a copy."""


class TextFingerprints:
    """Remembers the last title of each path: pages whose titles differ by more than numbers are no copies."""

    def __init__(self, settings: Settings) -> None:
        self._for_changes = bool(settings.recrawl)
        self._for_copies = settings.alike_pages > 0
        self._for_all = settings.dedupe
        self._titles: dict[str, str] = {}

    def at(self, page: Page) -> TextFingerprint:
        """What is to be known of a page's text."""
        if not page.is_html or drops_text(page.cut):
            # Two pages that were cut near their beginning would look like copies of one another.
            return TextFingerprint()
        alike, beside = False, None
        if self._for_copies:
            target, origin = urls.path_query(page.url), urls.origin(page.url)
            alike = self._has_last_title(page, origin + prefix_of(target))
            if (place := place_of(target)) and self._has_last_title(page, f"?{origin}{place}"):
                beside = fingerprint.simhash(text_beside_links(page.tree))
        if not alike and not self._for_changes and not self._for_all:
            return TextFingerprint(beside=beside)
        text = main_text(page.tree)
        digest = fingerprint.text_digest(text) if self._for_changes else ""
        if not alike and not self._for_all:
            return TextFingerprint(digest, beside=beside)
        words = fingerprint.some_words(text)
        bits = fingerprint.simhash_of(words)
        return TextFingerprint(
            digest,
            bits if alike else None,
            beside,
            bits if self._for_all else None,
            self._for_all and len(words) >= _FEWEST_WORDS,
        )

    def _has_last_title(self, page: Page, place: str) -> bool:
        title = " ".join(fingerprint.words(page.title))
        last = self._titles.get(place)
        if last is None and len(self._titles) >= _MOST_PATHS:
            self._titles.clear()
        self._titles[place] = title
        return last == title
