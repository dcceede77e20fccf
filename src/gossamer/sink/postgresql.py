"""Alias of `gossamer.storage.postgresql`, kept for programs that read its tables."""

from gossamer.storage.postgresql import unescaped

__all__ = ["unescaped"]
