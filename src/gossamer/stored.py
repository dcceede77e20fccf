"""Alias of `gossamer.storage.reader`, kept for programs that read stored pages by this name."""

from gossamer.storage.base import StoredPage, Version
from gossamer.storage.reader import Stored, open_stored
from gossamer.storage.warc.reader import ReadPart as Part

__all__ = ["Part", "Stored", "StoredPage", "Version", "open_stored"]
