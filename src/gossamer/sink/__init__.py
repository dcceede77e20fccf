"""Sinks: where pages and items are kept, and how the setting `sink` names them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.redact import has_password, masked_address
from gossamer.settings import Settings
from gossamer.sink.base import Opening, Sink
from gossamer.storage.registry import FORMATS, find_sink, parted

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
log = logging.getLogger("gossamer.sink")
Types = Mapping[str, Mapping[str, str]]
"""Types of items: name -> field -> what it holds."""


def check_sinks(names: Sequence[str]) -> None:
    """Refuse what is no sink, or not named as it wants to be."""
    if len(set(names)) < len(names):
        raise ConfigError("sink: the same one is named twice")
    for name in names:
        kind, target = parted(name)
        own = FORMATS.get(kind)
        if own is None:
            find_sink(name)
        elif kind == "parquet":
            from gossamer.sink.parquet import read_target

            read_target(target)
        elif kind == "jsonl" and target.startswith("/"):
            continue
        elif not any(_fits(name, form) for form in own.forms):
            forms = own.forms + (("jsonl:/path",) if kind == "jsonl" else ())
            raise ConfigError(
                f"sink {masked_address(name)!r}: there is no such sink", hint=f"it is written {' or '.join(forms)}"
            )


def keeps_pages(names: Sequence[str]) -> bool:
    """Whether one of these sinks wants the bodies, the headers and the links of pages."""
    return any(
        "bodies" in own.keeps if (own := FORMATS.get(kind)) else bool(getattr(find_sink(name), "keeps_pages", False))
        for name in names
        for kind in (parted(name)[0],)
    )


def is_shared(names: Sequence[str]) -> bool:
    """Whether workers of several machines can write to these: some are on servers, and none is of one machine alone."""
    kinds = [(name, _is_on_a_server(name)) for name in names]
    places = tuple(f"{kind}:/" for kind in ("warc", "folder", "jsonl", "parquet"))
    return any(shared for _, shared in kinds) and all(shared or name.startswith(places) for name, shared in kinds)


def wants_segments(names: Sequence[str]) -> bool:
    """Whether a fleet's workers write segments: not where servers have all that was asked for."""
    return not is_shared(names) or any(name.partition(":")[0] == "jsonl" for name in names)


def tree_folder(names: Sequence[str]) -> Path | None:
    """The folder in which pages are to be kept as files, if one is named: `folder:/path`."""
    return next((Path(name.removeprefix("folder:")) for name in names if name.startswith("folder:/")), None)


def shared_folder(names: Sequence[str]) -> Path | None:
    """The folder that a fleet's workers write to, if one is named: `jsonl:/path`."""
    return next((Path(name.removeprefix("jsonl:")) for name in names if name.startswith("jsonl:/")), None)


def open_sinks(settings: Settings, folder: Path, marks: Mapping[str, int], *, types: Types | None = None) -> list[Sink]:
    """The sinks of a job in `folder`, in their order; what is in their files beyond the marks is cut off."""
    names = settings.sink
    check_sinks(names)
    if shared_folder(names) is not None:
        raise ConfigError("jsonl:/path is for a fleet's workers", hint="on one machine, --job /path keeps it all there")
    return _joined([_open(name, folder, settings, marks=marks, types=types) for name in names])


def fleet_sinks(
    settings: Settings, folder: Path, worker: str, *, job: str = "", types: Types | None = None
) -> list[Sink]:
    """What a worker of a fleet opens beside its segments, which stand for `jsonl`."""
    names = [name for name in settings.sink if name.partition(":")[0] != "jsonl"]
    return _joined([_open(name, folder, settings, worker=worker, job=job, types=types) for name in names])


def _joined(sinks: list[Sink]) -> list[Sink]:
    """Those that say where they put pages come before those that write it down, which are told of them."""
    archives = [sink for sink in sinks if hasattr(sink, "placed")]
    for sink in sinks:
        if hasattr(sink, "archives"):
            sink.archives = archives
    return sorted(sinks, key=lambda sink: hasattr(sink, "archives"))


def finish_archives(settings: Settings, folder: Path, *, live: Collection[str] = ()) -> None:
    """Finish the WARC and Parquet files that killed workers left open: here, or on a machine that does not come back.

    `live` are the workers that the frontier has heard of lately. A shared folder may have no locks, and then a living
    worker's file looks like a dead one's; on this machine a lock is enough."""
    for name in settings.sink:
        kind, target = parted(name)
        if kind not in ("warc", "parquet"):
            continue
        for path, finish in _left(kind, target, folder):
            lives = any(quote(f"-{worker}-", safe="") in path.name for worker in live)
            if not lives or os.uname().nodename in path.name:
                # Another one that ends at the same time may be quicker.
                with suppress(FileNotFoundError):
                    finish(path)


def _left(kind: str, target: str, folder: Path) -> Iterator[tuple[Path, Callable[[Path], None]]]:
    """Files that workers write to, or wrote to when they died, and how each is finished."""
    if kind == "parquet":
        from gossamer.sink.parquet import left_logs, read_target, seal_left

        by = read_target(target).by
        yield from ((path, partial(seal_left, by=by)) for path in left_logs(target, folder))
    else:
        from gossamer.sink.warc import FOLDER, finish_left, left_open

        yield from ((path, finish_left) for path in left_open(Path(target) if target else folder / FOLDER))


def _open(
    name: str,
    folder: Path,
    settings: Settings,
    *,
    marks: Mapping[str, int] | None = None,
    worker: str = "",
    job: str = "",
    types: Types | None = None,
) -> Sink:
    kind, target = parted(name)
    if has_password(name):
        log.warning("the password in %s is kept with the job's settings; ${NAME} is not", masked_address(name))
    opening = Opening(
        kind=kind,
        target=target,
        folder=folder,
        settings=settings,
        marks=marks,
        worker=worker,
        job=job,
        types=types or {},
    )
    return find_sink(name)(opening)


def _is_on_a_server(name: str) -> bool:
    own = FORMATS.get(parted(name)[0])
    return own.is_shared if own is not None else bool(getattr(find_sink(name), "is_shared", False))


def _fits(name: str, form: str) -> bool:
    """Whether a name is written like that: alike up to the first word that stands for something."""
    head, word = (
        re.split(r"(?=path|user@|host|bucket)", form, maxsplit=1)[0],
        re.search(r"path|user@|host|bucket", form),
    )
    return name.startswith(head) and len(name) > len(head) if word else name == form
