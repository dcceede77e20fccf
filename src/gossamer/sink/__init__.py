"""Sinks: where pages and items are kept, and how the setting `sink` names them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.settings import Settings
from gossamer.sink.base import Opening, Opens, Sink

__all__ = [
    "Opening",
    "Sink",
    "SinkError",
    "SinkFull",
    "check_sinks",
    "finish_archives",
    "fleet_sinks",
    "keeps_pages",
    "open_sinks",
    "shared_folder",
    "tree_folder",
]
GROUP = "gossamer.sinks"
"""The entry points that name the sinks of other packages."""


class Kind(NamedTuple):
    """A sink of our own: where its code is, how it may be named, and whether it wants pages whole."""

    code: str
    forms: tuple[str, ...]
    keeps_pages: bool = False


KINDS: Mapping[str, Kind] = {
    "jsonl": Kind("gossamer.sink.jsonl:open_jsonl", ("jsonl", "jsonl:zstd", "jsonl:gzip")),
    "csv": Kind("gossamer.sink.csv:open_csv", ("csv",)),
    "sqlite": Kind("gossamer.sink.sqlite:open_sqlite", ("sqlite", "sqlite:/path")),
    "warc": Kind("gossamer.sink.warc:open_warc", ("warc", "warc:/path"), keeps_pages=True),
    "parquet": Kind("gossamer.sink.parquet:open_parquet", ("parquet", "parquet:/path", "parquet?by=day,site")),
    "folder": Kind("gossamer.sink.tree:open_tree", ("folder:/path",), keeps_pages=True),
}


def check_sinks(names: Sequence[str]) -> None:
    """Refuse what is no sink, or not named as it wants to be."""
    if len(set(names)) < len(names):
        raise ConfigError("sink: the same one is named twice")
    for name in names:
        kind, target = _parted(name)
        own = KINDS.get(kind)
        if own is None:
            _find(name)
        elif kind == "parquet":
            from gossamer.sink.parquet import read_target

            read_target(target)
        elif kind == "jsonl" and target.startswith("/"):
            continue
        elif not any(_fits(name, form) for form in own.forms):
            raise ConfigError(f"sink {name!r}: there is no such sink", hint=f"it is written {' or '.join(own.forms)}")


def keeps_pages(names: Sequence[str]) -> bool:
    """Whether one of these sinks wants the bodies, the headers and the links of pages."""
    return any(
        own.keeps_pages if (own := KINDS.get(kind)) else bool(getattr(_find(name), "keeps_pages", False))
        for name in names
        for kind in (_parted(name)[0],)
    )


def tree_folder(names: Sequence[str]) -> Path | None:
    """The folder in which pages are to be kept as files, if one is named: `folder:/path`."""
    return next((Path(name.removeprefix("folder:")) for name in names if name.startswith("folder:/")), None)


def shared_folder(names: Sequence[str]) -> Path | None:
    """The folder that a fleet's workers write to, if one is named: `jsonl:/path`."""
    return next((Path(name.removeprefix("jsonl:")) for name in names if name.startswith("jsonl:/")), None)


def open_sinks(settings: Settings, folder: Path, marks: Mapping[str, int]) -> list[Sink]:
    """The sinks of a job in `folder`, in their order; what is in their files beyond the marks is cut off."""
    names = settings.sink
    check_sinks(names)
    if shared_folder(names) is not None:
        raise ConfigError("jsonl:/path is for a fleet's workers", hint="on one machine, --job /path keeps it all there")
    return _joined([_open(name, folder, settings, marks=marks) for name in names])


def fleet_sinks(settings: Settings, folder: Path, worker: str) -> list[Sink]:
    """What a worker of a fleet opens beside its segments, which stand for `jsonl`."""
    names = [name for name in settings.sink if name.partition(":")[0] != "jsonl"]
    return _joined([_open(name, folder, settings, worker=worker) for name in names])


def _joined(sinks: list[Sink]) -> list[Sink]:
    """Those that say where they put pages come before those that write it down, which are told of them."""
    archives = [sink for sink in sinks if hasattr(sink, "placed")]
    for sink in sinks:
        if hasattr(sink, "archives"):
            sink.archives = archives
    return sorted(sinks, key=lambda sink: hasattr(sink, "archives"))


def finish_archives(settings: Settings, folder: Path) -> None:
    """At the end of a fleet's job: finish the WARC and Parquet files that killed workers of this machine left open.

    Not those of others: a shared folder may have no locks, and then a living worker looks like a dead one."""
    for name in settings.sink:
        kind, target = _parted(name)
        if kind == "parquet":
            from gossamer.sink.parquet import finish_left_logs

            finish_left_logs(target, folder, os.uname().nodename)
        if kind == "warc":
            from gossamer.sink.warc import FOLDER, finish_left, left_open

            for path in left_open(Path(target) if target else folder / FOLDER):
                if os.uname().nodename in path.name:
                    finish_left(path)


def _open(
    name: str, folder: Path, settings: Settings, *, marks: Mapping[str, int] | None = None, worker: str = ""
) -> Sink:
    target = _parted(name)[1]
    return _find(name)(Opening(target=target, folder=folder, settings=settings, marks=marks, worker=worker))


def _find(name: str) -> Opens:
    """What opens a sink of this name: ours, or one that an installed package offers."""
    kind = _parted(name)[0]
    if kind in KINDS:
        module, _, function = KINDS[kind].code.partition(":")
        opens: Opens = getattr(import_module(module), function)
        return opens
    for point in entry_points(group=GROUP, name=kind):
        loaded: Any = point.load()
        return loaded  # type: ignore[no-any-return]
    forms = ", ".join(form for own in KINDS.values() for form in own.forms)
    raise ConfigError(
        f"sink {name!r}: there is no such sink", hint=f"there are {forms}, and what installed packages offer as {GROUP}"
    )


def _parted(name: str) -> tuple[str, str]:
    """The kind of a sink, and what stands behind it: a place, options, or both."""
    found = re.match(r"([^:?]*):?(.*)", name, re.DOTALL)
    return (found[1], found[2]) if found else (name, "")


def _fits(name: str, form: str) -> bool:
    return name.startswith(form.removesuffix("path")) if form.endswith("path") else name == form
