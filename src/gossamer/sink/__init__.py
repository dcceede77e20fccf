"""Sinks: where pages and items are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer.errors import ConfigError
from gossamer.sink.base import Sink
from gossamer.sink.jsonl import JsonlSink

__all__ = ["Sink", "check_sinks", "open_sinks"]


def check_sinks(names: Sequence[str]) -> None:
    """Refuse what is not a sink of this version."""
    for name in names:
        if name != "jsonl":
            raise ConfigError(f"sink {name!r}: there is no such sink in this version", hint="jsonl is the one there is")


def open_sinks(names: Sequence[str], folder: Path, marks: Mapping[str, int]) -> list[Sink]:
    """The sinks of a job in `folder`; what is in their files beyond the marks is cut off."""
    check_sinks(names)
    return [JsonlSink(folder, marks)] if names else []
