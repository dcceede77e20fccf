"""What crawls stored, read again: pages with their bodies, by URL and time, or all of them in order."""

from __future__ import annotations

from gossamer.stored.open import open_stored
from gossamer.stored.page import StoredPage, Version
from gossamer.stored.shelf import Part
from gossamer.stored.whole import Stored

__all__ = ["Part", "Stored", "StoredPage", "Version", "open_stored"]
