"""Sinks: where pages and items are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer.errors import ConfigError
from gossamer.sink.base import Sink
from gossamer.sink.jsonl import JsonlSink

__all__ = ["Sink", "check_sinks", "open_sinks", "shared_folder"]


def check_sinks(names: Sequence[str]) -> None:
    """Refuse what is not a sink of this version."""
    for name in names:
        if name != "jsonl" and not name.startswith("jsonl:/"):
            raise ConfigError(f"sink {name!r}: there is no such sink in this version", hint="jsonl is the one there is")


def shared_folder(names: Sequence[str]) -> Path | None:
    """The folder that a fleet's workers write to, if one is named: `jsonl:/path`."""
    return next((Path(name.removeprefix("jsonl:")) for name in names if name.startswith("jsonl:/")), None)


def open_sinks(names: Sequence[str], folder: Path, marks: Mapping[str, int]) -> list[Sink]:
    """The sinks of a job in `folder`; what is in their files beyond the marks is cut off."""
    check_sinks(names)
    if shared_folder(names) is not None:
        raise ConfigError("jsonl:/path is for a fleet's workers", hint="on one machine, --job /path keeps it all there")
    return [JsonlSink(folder, marks)] if names else []
