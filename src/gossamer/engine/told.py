"""Links of one lease that are on their way to the frontier, so that they do not travel with each of its pages."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.model import Request

_MOST = 2048
"""Of the last pages: what was told before is mostly stored, and known to the memory that all visits share."""


class SentLinks:
    """The links of a lease's outcomes so far, by their keys.

    Where the outcome of a page counts, those of the same lease before it have counted: their links are there."""

    def __init__(self) -> None:
        self.made: dict[int, Request] = {}

    def new(self, links: Iterable[Request]) -> tuple[Request, ...]:
        """Those of these links that were not told yet."""
        return tuple(link for link in links if link.key not in self.made)

    def add(self, links: Iterable[Request]) -> None:
        """These came with an outcome that was handed over."""
        if len(self.made) > _MOST:
            self.made.clear()
        self.made.update((link.key, link) for link in links)

    def clear(self) -> None:
        """They may not be there any more."""
        self.made.clear()
