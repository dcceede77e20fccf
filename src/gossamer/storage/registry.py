"""The formats by the names that sinks have in the settings: what writes each, what reads it, and what it keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError
from gossamer.redact import masked_address
from gossamer.storage.base import Keeps, SinkFormat

if TYPE_CHECKING:
    from gossamer.sink.base import Opens

GROUP = "gossamer.sinks"
"""The entry points that name the sinks of other packages. One whose class has a function `readers` is read back by it:
it takes a `StoredJob` and yields a `Reader` for what that has."""
_LAST: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys"))
_ALL: frozenset[Keeps] = _LAST | {"visits"}
_MYSQL = SinkFormat(
    ("mysql://user@host/database",),
    "gossamer.sink.mysql:open_mysql",
    "gossamer.storage.tables_reader:table_readers",
    _LAST,
    is_shared=True,
)
_POSTGRESQL = _MYSQL._replace(
    forms=("postgresql://user@host/database",), sink="gossamer.sink.postgresql:open_postgresql"
)
_STREAM = SinkFormat(("redis+stream://host:port/0?stream=NAME",), "gossamer.sink.stream:open_stream", is_shared=True)

FORMATS: Mapping[str, SinkFormat] = {
    "jsonl": SinkFormat(
        ("jsonl", "jsonl:zstd", "jsonl:gzip"),
        "gossamer.sink.jsonl:open_jsonl",
        "gossamer.storage.jsonl_reader:jsonl_readers",
        frozenset(("rows", "items", "visits")),
    ),
    "csv": SinkFormat(
        ("csv",),
        "gossamer.sink.csv:open_csv",
        "gossamer.storage.csv_reader:csv_readers",
        frozenset(("rows", "items", "visits")),
    ),
    "sqlite": SinkFormat(
        ("sqlite", "sqlite:/path"),
        "gossamer.sink.sqlite:open_sqlite",
        "gossamer.storage.sqlite_reader:sqlite_readers",
        _LAST,
    ),
    "warc": SinkFormat(
        ("warc", "warc:/path"),
        "gossamer.sink.warc:open_warc",
        "gossamer.storage.warc_reader:warc_readers",
        _ALL | {"bodies"},
    ),
    "parquet": SinkFormat(
        ("parquet", "parquet:/path", "parquet?by=day,site"),
        "gossamer.sink.parquet:open_parquet",
        "gossamer.storage.parquet_reader:parquet_readers",
        _ALL | {"columns"},
    ),
    "folder": SinkFormat(
        ("folder:/path",),
        "gossamer.sink.tree:open_tree",
        "gossamer.storage.tree_reader:tree_readers",
        frozenset(("bodies",)),
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL._replace(forms=("mariadb://user@host/database",)),
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL._replace(forms=("postgres://user@host/database",)),
    **{
        f"{form}{scheme}": SinkFormat(
            (f"{form}{scheme}://{'/path' if scheme == 'file' else 'bucket/prefix'}",),
            "gossamer.sink.objects:open_objects",
            keeps=_ALL | ({"bodies"} if form else frozenset()),
            is_shared=True,
        )
        for form in ("", "warc+")
        for scheme in ("s3", "gs", "az", "file")
    },
    "redis+stream": _STREAM,
    "rediss+stream": _STREAM._replace(forms=("rediss+stream://host:port/0?stream=NAME",)),
}
_SEGMENTS = "gossamer.storage.segments_reader:segment_readers"
READERS: Sequence[str] = tuple(
    dict.fromkeys(
        (
            _SEGMENTS,
            *(FORMATS[name].reader for name in ("jsonl", "parquet", "sqlite", "csv", "warc", "folder", "postgresql")),
        )
    )
)
"""What finds the readers of a job, the best first: files before servers."""


def parted(name: str) -> tuple[str, str]:
    """The format that a sink's name begins with, and what stands behind it: a place, options, or both."""
    found = re.match(r"([^:?]*):?(.*)", name, re.DOTALL)
    return (found[1], found[2]) if found else (name, "")


def load(code: str) -> Any:
    """What `module:function` names."""
    module, _, function = code.partition(":")
    return getattr(import_module(module), function)


def find_sink(name: str) -> Opens:
    """What opens a sink of this name: ours, or one that an installed package offers."""
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
        f"sink {masked_address(name)!r}: there is no such sink",
        hint=f"there are {forms}, and what installed packages offer as {GROUP}",
    )


def find_readers(sinks: Sequence[str]) -> list[Callable[..., Any]]:
    """What finds the readers of a job with these sinks, the best first; those of other packages come last."""
    found: list[Callable[..., Any]] = [load(code) for code in READERS]
    for name in dict.fromkeys(parted(name)[0] for name in sinks):
        if name not in FORMATS:
            try:
                readers = getattr(find_sink(name), "readers", None)
            except ConfigError:
                # The package is not installed here: what else the job has can be read.
                continue
            found += [readers] if readers is not None else []
    return found


def formats_keeping(*what: Keeps) -> list[str]:
    """The formats of files that keep all of this."""
    return [name for name, form in FORMATS.items() if not form.is_shared and form.keeps.issuperset(what)]
