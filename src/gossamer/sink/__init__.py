"""Alias of `gossamer.storage`, kept for packages that provide sinks."""

from gossamer.errors import SinkFull
from gossamer.storage.base import Opening, Sink

__all__ = ["Opening", "Sink", "SinkFull"]
