"""The main part of a page, without what surrounds it, as Markdown or as plain text."""

from __future__ import annotations

from typing import Any

from turbohtml import Document

from gossamer.extract.text import main_text
from gossamer.extras import unusable

_MOST_CHARS = 2_000_000


def main_part(tree: Document, *, form: str = "markdown") -> str:
    """What the page is about, as `markdown` or `txt`.

    A page on which no main part is found, or that is too large to look for it, gives its text without menus, forms
    and footers."""
    library = _library()
    found = None
    # Written out from our own tree: the library's parser goes wrong where tags are left out, as HTML allows.
    markup = tree.html
    if len(markup) <= _MOST_CHARS:
        try:
            found = library.extract(
                markup, output_format=form, fast=True, include_comments=False, include_formatting=form == "markdown"
            )
        except Exception:  # the library meets pages that nobody tried it on, and the text can still be had
            found = None
    if found:
        return str(found).strip()
    text = main_text(tree)
    return text.replace("\n", "\n\n") if form == "markdown" else text


def forget() -> None:
    """Empty the library's memory of pages, which grows in long crawls."""
    _library().meta.reset_caches()


def check_installed() -> None:
    """A ConfigError where the extra is missing."""
    _library()


def _library() -> Any:
    try:
        import trafilatura
        import trafilatura.meta
    except ImportError as missing:
        raise unusable("text", "the main part of pages", missing) from missing
    return trafilatura
