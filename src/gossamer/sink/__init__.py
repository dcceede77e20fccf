"""Sinks: where pages and items are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer.errors import ConfigError
from gossamer.sink.base import Sink
from gossamer.sink.jsonl import JsonlSink
from gossamer.sink.tree import TreeSink

__all__ = ["Sink", "check_sinks", "keeps_pages", "open_sinks", "shared_folder", "tree_folder"]


def check_sinks(names: Sequence[str]) -> None:
    """Refuse what is not a sink of this version."""
    for name in names:
        if name != "jsonl" and not name.startswith(("jsonl:/", "folder:/")):
            raise ConfigError(
                f"sink {name!r}: there is no such sink in this version", hint="there are jsonl and folder:/path"
            )


def keeps_pages(names: Sequence[str]) -> bool:
    """Whether one of these sinks wants the bodies and the links of pages."""
    return tree_folder(names) is not None


def tree_folder(names: Sequence[str]) -> Path | None:
    """The folder in which pages are to be kept as files, if one is named: `folder:/path`."""
    return next((Path(name.removeprefix("folder:")) for name in names if name.startswith("folder:/")), None)


def shared_folder(names: Sequence[str]) -> Path | None:
    """The folder that a fleet's workers write to, if one is named: `jsonl:/path`."""
    return next((Path(name.removeprefix("jsonl:")) for name in names if name.startswith("jsonl:/")), None)


def open_sinks(names: Sequence[str], folder: Path, marks: Mapping[str, int]) -> list[Sink]:
    """The sinks of a job in `folder`; what is in their files beyond the marks is cut off."""
    check_sinks(names)
    if shared_folder(names) is not None:
        raise ConfigError("jsonl:/path is for a fleet's workers", hint="on one machine, --job /path keeps it all there")
    sinks: list[Sink] = [JsonlSink(folder, marks)] if "jsonl" in names else []
    tree = tree_folder(names)
    return [*sinks, TreeSink(tree)] if tree is not None else sinks
