"""Alias of `gossamer.storage.postgresql`, kept for programs that read what is stored there."""

from gossamer.storage.postgresql import unescaped

__all__ = ["unescaped"]
