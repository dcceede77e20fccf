"""The registry of formats: maps sink names in the settings to their writers, readers, and capabilities."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gossamer.errors import ConfigError
from gossamer.redact import has_password, masked_address
from gossamer.settings import Settings
from gossamer.storage.base import SPOOL, TABLES, Keeps, Opening, Sink, SinkFormat

if TYPE_CHECKING:
    from gossamer.storage.base import Opens, Unfinished


GROUP = "gossamer.sinks"
"""The entry point group for sinks of other packages. If the class has a function `readers`, it takes a `StoredJob` and
yields a `Reader` for its data."""
_LAST: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys"))
_ALL: frozenset[Keeps] = _LAST | {"visits"}
_MYSQL = SinkFormat(
    ("mysql://user@host/database",),
    "gossamer.storage.mysql:open_mysql",
    "gossamer.storage.tables_reader:table_readers",
    _LAST,
    is_shared=True,
    has_tables=True,
)
_POSTGRESQL = _MYSQL._replace(
    forms=("postgresql://user@host/database",), sink="gossamer.storage.postgresql:open_postgresql"
)
_STREAM = SinkFormat(("redis+stream://host:port/0?stream=NAME",), "gossamer.storage.stream:open_stream", is_shared=True)

FORMATS: Mapping[str, SinkFormat] = {
    "jsonl": SinkFormat(
        ("jsonl", "jsonl:zstd", "jsonl:gzip"),
        "gossamer.storage.jsonl:open_jsonl",
        "gossamer.storage.jsonl:jsonl_readers",
        frozenset(("rows", "items", "visits")),
        can_share_path=True,
        files=tuple(f"{name}.jsonl{suffix}" for name in ("pages", "items") for suffix in ("", ".zst", ".gz")),
    ),
    "csv": SinkFormat(
        ("csv",),
        "gossamer.storage.csv:open_csv",
        "gossamer.storage.csv:csv_readers",
        frozenset(("rows", "items", "visits")),
        files=("pages.csv", "items.csv"),
    ),
    "sqlite": SinkFormat(
        ("sqlite", "sqlite:/path"),
        "gossamer.storage.sqlite:open_sqlite",
        "gossamer.storage.sqlite:sqlite_readers",
        _LAST,
        files=("pages.db", "pages.db-wal", "pages.db-shm", "pages.db-journal"),
    ),
    "warc": SinkFormat(
        ("warc", "warc:/path"),
        "gossamer.storage.warc.sink:open_warc",
        "gossamer.storage.warc.reader:warc_readers",
        _ALL | {"bodies"},
        can_share_path=True,
        files=("archive",),
        unfinished="gossamer.storage.warc.sink:unfinished",
    ),
    "parquet": SinkFormat(
        ("parquet", "parquet:/path", "parquet?by=day,site"),
        "gossamer.storage.parquet:open_parquet",
        "gossamer.storage.parquet_reader:parquet_readers",
        _ALL | {"columns"},
        can_share_path=True,
        files=(TABLES,),
        check="gossamer.storage.parquet:read_target",
        unfinished="gossamer.storage.parquet:unfinished",
    ),
    "folder": SinkFormat(
        ("folder:/path",),
        "gossamer.storage.tree:open_tree",
        "gossamer.storage.tree:tree_readers",
        frozenset(("bodies",)),
        can_share_path=True,
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL._replace(forms=("mariadb://user@host/database",)),
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL._replace(forms=("postgres://user@host/database",)),
    **{
        f"{form}{scheme}": SinkFormat(
            (f"{form}{scheme}://{'/path' if scheme == 'file' else 'bucket/prefix'}",),
            "gossamer.storage.objects:open_objects",
            keeps=_ALL | ({"bodies"} if form else frozenset()),
            is_shared=True,
            files=(SPOOL,),
        )
        for form in ("", "warc+")
        for scheme in ("s3", "gs", "az", "file")
    },
    "redis+stream": _STREAM,
    "rediss+stream": _STREAM._replace(forms=("rediss+stream://host:port/0?stream=NAME",)),
}
_SEGMENTS = "gossamer.storage.segments:segment_readers"
READERS: Sequence[str] = tuple(
    dict.fromkeys(
        (
            _SEGMENTS,
            *(FORMATS[name].reader for name in ("jsonl", "parquet", "sqlite", "csv", "warc", "folder")),
            *(own.reader for own in FORMATS.values() if own.reader),
        )
    )
)
"""Functions that yield the readers of a job, best first: files before servers."""


def parted(name: str) -> tuple[str, str]:
    """Split a sink's name into its format, and a place, options, or both."""
    found = re.match(r"([^:?]*):?(.*)", name, re.DOTALL)
    return (found[1], found[2]) if found else (name, "")


def load(code: str) -> Any:
    """Import what `module:function` names."""
    module, _, function = code.partition(":")
    return getattr(import_module(module), function)


def find_sink(name: str) -> Opens:
    """Return what opens a sink of this name: a built-in one, or one of an installed package."""
    kind = parted(name)[0]
    if kind in FORMATS:
        opens: Opens = load(FORMATS[kind].sink)
        return opens
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=kind):
        loaded: Any = point.load()
        return loaded  # type: ignore[no-any-return]
    forms = ", ".join(form for own in FORMATS.values() for form in own.forms)
    raise ConfigError(
        f"sink {masked_address(name)!r}: unknown sink",
        hint=f"use {forms}, or install a package with an entry point in {GROUP}",
    )


def find_readers(sinks: Sequence[str]) -> list[Callable[..., Any]]:
    """Return the functions that yield the readers of a job with these sinks, best first; other packages' come last."""
    found: list[Callable[..., Any]] = [load(code) for code in READERS]
    for name in dict.fromkeys(parted(name)[0] for name in sinks):
        if name not in FORMATS:
            try:
                readers = getattr(find_sink(name), "readers", None)
            except ConfigError:
                # The package is not installed here: the job's other data can still be read.
                continue
            found += [readers] if readers is not None else []
    return found


def formats_keeping(*what: Keeps) -> list[str]:
    """Return the file formats that store all of this."""
    return [name for name, form in FORMATS.items() if not form.is_shared and form.keeps.issuperset(what)]


log = logging.getLogger("gossamer.sink")
Types = Mapping[str, Mapping[str, str]]
"""Item types: name -> field -> kind."""


def check_sinks(names: Sequence[str]) -> None:
    """Raise ConfigError for unknown sinks and invalid sink names."""
    if len(set(names)) < len(names):
        raise ConfigError("sink: the same sink is listed twice")
    for name in names:
        kind, target = parted(name)
        own = FORMATS.get(kind)
        if own is None:
            find_sink(name)
        elif own.check:
            load(own.check)(target)
        elif kind == "jsonl" and target.startswith("/"):
            continue
        elif not any(_fits(name, form) for form in own.forms):
            forms = own.forms + (("jsonl:/path",) if kind == "jsonl" else ())
            raise ConfigError(f"sink {masked_address(name)!r}: unknown sink", hint=f"use {' or '.join(forms)}")


def keeps_pages(names: Sequence[str]) -> bool:
    """Whether one of these sinks stores bodies, headers, and links of pages."""
    return any(
        "bodies" in own.keeps if (own := FORMATS.get(kind)) else bool(getattr(find_sink(name), "keeps_pages", False))
        for name in names
        for kind in (parted(name)[0],)
    )


def reads_bodies(names: Sequence[str]) -> bool:
    """Whether a built-in format among these stores bodies that can be read back."""
    formats = [FORMATS[kind] for name in names if (kind := parted(name)[0]) in FORMATS]
    return any("bodies" in own.keeps and own.reader for own in formats)


def has_tables(name: str) -> bool:
    """Whether a sink's address can name a table: `?table=NAME`."""
    own = FORMATS.get(parted(name)[0])
    return own is not None and own.has_tables


def result_files() -> Sequence[str]:
    """Return the files and folders that sinks of any built-in format write in a job's folder."""
    return tuple(dict.fromkeys(file for own in FORMATS.values() for file in own.files))


def is_shared(names: Sequence[str]) -> bool:
    """Whether workers of several machines can write to these: at least one is on a server, and none is local."""
    kinds = [(name, _is_on_a_server(name)) for name in names]
    places = tuple(f"{kind}:/" for kind, own in FORMATS.items() if own.can_share_path)
    return any(shared for _, shared in kinds) and all(shared or name.startswith(places) for name, shared in kinds)


def wants_segments(names: Sequence[str]) -> bool:
    """Whether a fleet's workers write segments: not if servers store all the requested data."""
    return not is_shared(names) or any(name.partition(":")[0] == "jsonl" for name in names)


def tree_folder(names: Sequence[str]) -> Path | None:
    """Return the folder of the sink `folder:/path`, if there is one."""
    return next((Path(name.removeprefix("folder:")) for name in names if name.startswith("folder:/")), None)


def shared_folder(names: Sequence[str]) -> Path | None:
    """Return the folder of the sink `jsonl:/path`, which a fleet's workers write to, if there is one."""
    return next((Path(name.removeprefix("jsonl:")) for name in names if name.startswith("jsonl:/")), None)


def open_sinks(settings: Settings, folder: Path, marks: Mapping[str, int], *, types: Types | None = None) -> list[Sink]:
    """Open the sinks of a job in `folder`, in order; their files are truncated to the marks."""
    names = settings.sink
    check_sinks(names)
    if shared_folder(names) is not None:
        raise ConfigError("jsonl:/path works in fleets only", hint="on one machine, use --job /path")
    return _joined([_open(name, folder, settings, marks=marks, types=types) for name in names])


def fleet_sinks(
    settings: Settings, folder: Path, worker: str, *, job: str = "", types: Types | None = None
) -> list[Sink]:
    """Open the sinks of a fleet's worker other than its segments, which replace `jsonl`."""
    names = [name for name in settings.sink if name.partition(":")[0] != "jsonl"]
    return _joined([_open(name, folder, settings, worker=worker, job=job, types=types) for name in names])


def _joined(sinks: list[Sink]) -> list[Sink]:
    """Order the sinks: those that report where they stored pages come before those that record it."""
    archives = [sink for sink in sinks if hasattr(sink, "placed")]
    for sink in sinks:
        if hasattr(sink, "archives"):
            sink.archives = archives
    return sorted(sinks, key=lambda sink: hasattr(sink, "archives"))


def finish_archives(settings: Settings, folder: Path, *, live: Collection[str] = ()) -> None:
    """Finish the WARC and Parquet files that crashed workers left open, here or on a machine that does not come back.

    `live` are the workers with recent heartbeats. A shared folder may not support locks, and then a live worker's file
    looks abandoned; on this machine, a lock is enough."""
    for name in settings.sink:
        kind, target = parted(name)
        own = FORMATS.get(kind)
        if own is None or not own.unfinished:
            continue
        unfinished: Unfinished = load(own.unfinished)
        for path, finish in unfinished(target, folder):
            lives = any(quote(f"-{worker}-", safe="") in path.name for worker in live)
            if not lives or os.uname().nodename in path.name:
                # Another process that ends at the same time may have finished it.
                with suppress(FileNotFoundError):
                    finish(path)


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
        log.warning("the password in %s is stored with the job's settings; use ${NAME} instead", masked_address(name))
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
    """Whether a name has this form: equal up to the first placeholder."""
    head, word = (
        re.split(r"(?=path|user@|host|bucket)", form, maxsplit=1)[0],
        re.search(r"path|user@|host|bucket", form),
    )
    return name.startswith(head) and len(name) > len(head) if word else name == form
