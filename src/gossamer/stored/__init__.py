"""What crawls stored, read again: pages with their bodies, by URL and time, or all of them in order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.stored.open import open_stored
    from gossamer.stored.page import StoredPage, Version
    from gossamer.stored.shelf import ReadPart
    from gossamer.stored.whole import Stored

__all__ = ["Part", "Stored", "StoredPage", "Version", "open_stored"]
_PLACES = {"Part": "shelf", "Stored": "whole", "StoredPage": "page", "Version": "page", "open_stored": "open"}


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used: readers of formats need parts of this room."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
