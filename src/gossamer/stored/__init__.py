"""What crawls stored, read again: pages with their bodies, by URL and time, or all of them in order."""

from __future__ import annotations

from gossamer.stored.open import Stored, open_stored
from gossamer.stored.page import StoredPage, Version
from gossamer.stored.shelf import Part

__all__ = ["Part", "Stored", "StoredPage", "Version", "open_stored"]
