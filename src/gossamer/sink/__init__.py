"""Alias of `gossamer.storage`, kept for packages that provide sinks."""

from gossamer.errors import SinkError, SinkFull
from gossamer.storage.base import Opening, Sink
from gossamer.storage.registry import (
    check_sinks,
    finish_archives,
    fleet_sinks,
    is_shared,
    keeps_pages,
    open_sinks,
    shared_folder,
    tree_folder,
    wants_segments,
)

__all__ = [
    "Opening",
    "Sink",
    "SinkError",
    "SinkFull",
    "check_sinks",
    "finish_archives",
    "fleet_sinks",
    "is_shared",
    "keeps_pages",
    "open_sinks",
    "shared_folder",
    "tree_folder",
    "wants_segments",
]
