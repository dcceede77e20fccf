"""Alias of `gossamer.storage.reader`, kept for programs that import stored pages from here."""

from gossamer.storage.base import StoredPage, Version
from gossamer.storage.reader import Stored, open_stored
from gossamer.storage.warc.reader import ReadPart as Part

__all__ = ["Part", "Stored", "StoredPage", "Version", "open_stored"]
