"""Questions in SQL about what a job has stored: DuckDB reads the files of the job, and can reach nothing else."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import ConfigError
from gossamer.export.stored import lines_name, nothing_in, of_sqlite, parquet_folder, typed_tables
from gossamer.extras import unusable
from gossamer.model import PageRow
from gossamer.sink import csv, jsonl, segments, trail
from gossamer.sink.trail import Step
from gossamer.stored.places import Place

log = logging.getLogger("gossamer.query")
_TYPES: Mapping[Any, str] = {int: "BIGINT", float: "DOUBLE"}
_TRIES = 3
OVERVIEW = """
SELECT table_name AS "table", string_agg(column_name, ', ' ORDER BY ordinal_position) AS columns
FROM information_schema.columns WHERE table_name NOT LIKE '\\_%' ESCAPE '\\' GROUP BY ALL ORDER BY ALL
"""
"""The question that is asked where none is given: what there is to ask."""


class Source(NamedTuple):
    """Files that make a part of a view, and the SELECT that reads them; `{files}` stands for their list."""

    files: Sequence[Path]
    select: str
    has_keys: bool = False


def ask(place: Path | Place, query: str) -> Iterator[Sequence[Any]]:
    """The names of the columns, then the rows. Only a SELECT is taken; what is wrong with it is a ConfigError."""
    try:
        import duckdb
    except ImportError as missing:
        raise unusable("sql", "SQL", missing) from missing
    for tries_left in reversed(range(_TRIES)):
        has_begun = False
        try:
            with opened(place) as database:
                statements = database.extract_statements(query)
                if [str(one.type).rpartition(".")[2] for one in statements] != ["SELECT"]:
                    raise ConfigError("only one SELECT can be asked", hint="the files of a job are read, not changed")
                result = database.execute(statements[0])
                has_begun = True
                yield [name for name, *_ in result.description or ()]
                while rows := result.fetchmany(1000):
                    yield from rows
                return
        except duckdb.IOException as error:
            # A log that became a Parquet file since the files were listed.
            if has_begun or not tries_left:
                raise ConfigError(f"sql: {error}") from None
        except duckdb.Error as error:
            # Without the picture of the question that follows.
            what = " ".join(str(error).partition("\n\nLINE ")[0].split())
            raise ConfigError(
                f"sql: {what}", hint=f"gossamer sql {Place.of(place).folder} lists the tables and columns"
            ) from None


@contextmanager
def opened(place: Path | Place) -> Iterator[Any]:
    """A database in memory with the views, which can read the files of these and no other, and write none."""
    import duckdb

    config: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    with tempfile.TemporaryDirectory(prefix="gossamer-") as spill, duckdb.connect(config=config) as database:
        views = _views(Place.of(place), Path(spill))
        files = [path for sources in views.values() for source in sources for path in source.files]
        # It would go to standard output, among the data.
        database.execute("SET enable_progress_bar = false")
        database.execute(f"SET temp_directory = {_text(spill)}")
        database.execute(f"SET allowed_paths = {_list(files)}")
        database.execute(f"SET allowed_directories = {_list([Path(spill)])}")
        database.execute("SET enable_external_access = false")
        for name, sources in views.items():
            selects = [source.select.replace("{files}", _list(source.files)) for source in sources if source.files]
            database.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(selects) or _EMPTY[name]}")
        has_keys = any(source.has_keys for source in views["_visits"])
        for view in (*(_WITH_KEYS if has_keys else _WITHOUT_KEYS), "CREATE VIEW requests AS FROM _requests"):
            database.execute(view)
        database.execute("SET lock_configuration = true")
        yield database


def _views(place: Place, spill: Path) -> dict[str, list[Source]]:
    """What is in a job's files, by its first sink that has them."""
    folder = place.folder
    steps = Source(sorted((folder / trail.FOLDER).glob(f"*{trail.SUFFIX}")), _REQUESTS)
    visits, items = _stored(folder)
    if not visits and (path := place.sqlite_file) is not None:
        return {**_of_sqlite(path, spill), "_requests": [steps]}
    if not visits and not steps.files:
        raise nothing_in(place)
    if not visits and (kept := place.elsewhere or place.warcs):
        log.warning("pages and items have no rows here: they are in %s", ", ".join(map(str, kept)))
    return {"_visits": visits, "_items": items, "_requests": [steps]}


def _stored(folder: Path) -> tuple[list[Source], list[Source]]:
    if (parquet := parquet_folder(folder)) is not None:
        logs = sorted(parquet.glob("*.jsonl"))
        waiting = {path.stem for path in logs}
        pages, items = (
            [path for path in sorted((parquet / kind).rglob("*.parquet")) if path.stem not in waiting]
            for kind in ("pages", "items")
        )
        return (
            [Source(pages, _PARQUET_PAGES, True), Source(logs, _LINES_PAGES, True)],
            [Source(items, _PARQUET_ITEMS), Source(logs, _LINES_ITEMS)],
        )
    if parts := sorted((folder / segments.FOLDER).glob(f"*{segments.SUFFIX}")):
        return [Source(parts, _LINES_PAGES, True)], [Source(parts, _LINES_ITEMS)]
    name, items_name = lines_name(folder, jsonl.PAGES), lines_name(folder, jsonl.ITEMS)
    if name is not None:
        found = [Source([folder / items_name], _JSONL_ITEMS)] if items_name else []
        return [Source([folder / name], _JSONL_PAGES)], found
    if (folder / csv.PAGES).exists():
        return [Source([folder / csv.PAGES], _csv_pages(csv.columns_of(folder / csv.PAGES)))], []
    return [], []


def _of_sqlite(path: Path, spill: Path) -> dict[str, list[Source]]:
    """The tables of the sink `sqlite`, as lines: the reader of such files is not a part of DuckDB itself."""
    lines = spill / "records.jsonl"
    with lines.open("wb") as file:
        for record in of_sqlite(path):
            file.write(msgspec.json.encode(record) + b"\n")
    views = {"_visits": [Source([lines], _LINES_PAGES, True)], "_items": [Source([lines], _LINES_ITEMS)]}
    for number, (table, kinds, rows) in enumerate(typed_tables(path)):
        of_type = spill / f"items-{number}.jsonl"
        times = [name for name, kind in kinds.items() if kind == "TIMESTAMP_TEXT"]
        with of_type.open("wb") as file:
            for row in rows:
                for name in times:
                    row[name] = _utc(row[name])
                file.write(msgspec.json.encode(row) + b"\n")
        columns = {name: _DECLARED.get(kind, "VARCHAR") for name, kind in kinds.items()}
        views[_name(table)] = [Source([of_type], f"SELECT * FROM {_json(columns)})")]
    return views


def _utc(text: str | None) -> str | None:
    """A time as all are here: in UTC, without saying so."""
    when = datetime.fromisoformat(text) if text else None
    if when is None or when.tzinfo is None:
        return text
    return when.astimezone(UTC).replace(tzinfo=None).isoformat()


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _list(paths: Sequence[Path]) -> str:
    return "[" + ", ".join(_text(str(path.absolute())) for path in paths) + "]"


def _columns(kind: type) -> dict[str, str]:
    return {field.name: _TYPES.get(field.type, "VARCHAR") for field in msgspec.structs.fields(kind)}


def _json(columns: Mapping[str, str]) -> str:
    """The reader of JSON lines. A line that is not whole, as a kill leaves it, is a row of nulls."""
    kinds = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in columns.items())
    return f"read_json({{files}}, format = 'newline_delimited', columns = {{{kinds}}}, ignore_errors = true"


_DECLARED = {
    "INTEGER": "BIGINT", "REAL": "DOUBLE", "BOOLEAN": "BOOLEAN", "JSON_TEXT": "JSON", "TIMESTAMP_TEXT": "TIMESTAMP",
    "DATE_TEXT": "DATE",
}  # fmt: skip
_PAGE = _columns(PageRow)
_STEP = {name: kind for name, kind in _columns(Step).items() if name != "at"}
_OF_ITEM = {"number": "BIGINT", "item": "JSON"}
_KEYS = {"key": "BIGINT", "token": "BIGINT"}
_AT = "make_timestamp((fetched_at * 1e6)::BIGINT) AS fetched_at"
_SITE = "split_part(url, '/', 3) AS site"
_STRUCT = "STRUCT(" + ", ".join(f"{name} {kind}" for name, kind in _PAGE.items()) + ")"
_LINE = {**_KEYS, "page": _STRUCT, "items": "JSON[]", "warc": "JSON[]"}
_LINES_PAGES = (
    f"SELECT key, token, {_SITE}, * EXCLUDE (key, token, fetched_at, w), {_AT}, w[1]->>'$' AS warc_file,"
    " w[2]::BIGINT AS warc_offset, w[3]::BIGINT AS warc_length, w[4]::BOOLEAN AS warc_revisit"
    f" FROM (SELECT key, token, unnest(page), warc AS w FROM {_json(_LINE)}) WHERE page IS NOT NULL)"
)
_LINES_ITEMS = (
    "SELECT key, token, split_part(page.url, '/', 3) AS site, page.url AS url,"
    " make_timestamp((page.fetched_at * 1e6)::BIGINT) AS fetched_at, number - 1 AS number, items[number] AS item"
    f" FROM (SELECT *, unnest(range(1, 1 + len(items))) AS number FROM {_json(_LINE)}) WHERE items IS NOT NULL)"
)
_PARQUET_PAGES = (
    "SELECT * REPLACE (make_timestamp(epoch_us(fetched_at)) AS fetched_at)"
    " FROM read_parquet({files}, union_by_name = true, hive_partitioning = false)"
)
# Not the columns that the sink makes of fields: rows that are still in a log have none.
_PARQUET_ITEMS = _PARQUET_PAGES.replace(
    "* REPLACE (make_timestamp(epoch_us(fetched_at)) AS fetched_at)",
    "key, token, site, url, make_timestamp(epoch_us(fetched_at)) AS fetched_at, number, item::JSON AS item",
)
_JSONL_PAGES = f"SELECT {_SITE}, * REPLACE ({_AT}) FROM {_json(_PAGE)}) WHERE url IS NOT NULL"
_JSONL_ITEMS = "SELECT json AS item FROM read_json_objects({files}, format = 'newline_delimited', ignore_errors = true)"
_JSONL_ITEMS += " WHERE json IS NOT NULL"
_REQUESTS = (
    "SELECT regexp_extract(filename, '([^/]*)[.]jsonl$', 1) AS worker, split_part(url, '/', 3) AS site,"
    ' * EXCLUDE (filename, "at"), make_timestamp(("at" * 1e6)::BIGINT) AS sent_at'
    f" FROM {_json({**_STEP, 'at': 'DOUBLE'})}, filename = true) WHERE url IS NOT NULL"
)
_NO_TEXT = "''"
_ONE = "QUALIFY row_number() OVER (PARTITION BY {} ORDER BY {} DESC) = 1"
_WITH_KEYS = (
    f"CREATE VIEW visits AS FROM _visits {_ONE.format('key, token', 'fetched_at')}",
    f"CREATE VIEW pages AS FROM _visits {_ONE.format('key', 'token')}",
    "CREATE VIEW items AS SELECT DISTINCT ON (key, token, number) * FROM _items SEMI JOIN pages USING (key, token)",
)
_WITHOUT_KEYS = (
    "CREATE VIEW visits AS FROM _visits",
    f"CREATE VIEW pages AS FROM _visits {_ONE.format('url', 'fetched_at')}",
    "CREATE VIEW items AS FROM _items",
)


def _csv_pages(there: Sequence[str]) -> str:
    """The reader of a pages.csv with these columns: one that an earlier version began has fewer."""
    columns = ", ".join(
        f"{_of_cell(name, kind) if name in there else _NO_TEXT} AS {name}" for name, kind in _PAGE.items()
    )
    reader = "read_csv({files}, all_varchar = true, header = true, delim = ',', quote = '\"', escape = '\"')"
    return f"SELECT {_SITE}, * REPLACE ({_AT}) FROM (SELECT {columns} FROM {reader})"


def _of_cell(name: str, kind: str) -> str:
    """A cell without the apostrophe that keeps spreadsheets from running it."""
    return f"{name}::{kind}" if kind != "VARCHAR" else f"regexp_replace(coalesce({name}, ''), '^{_NO_TEXT}', '')"


def _nothing(columns: Mapping[str, str]) -> str:
    return "SELECT " + ", ".join(f"NULL::{kind} AS {name}" for name, kind in columns.items()) + " WHERE false"


_EMPTY = {
    "_visits": _nothing({"site": "VARCHAR", **_PAGE, "fetched_at": "TIMESTAMP"}),
    "_items": _nothing({**_KEYS, "site": "VARCHAR", "url": "VARCHAR", "fetched_at": "TIMESTAMP", **_OF_ITEM}),
    "_requests": _nothing({"worker": "VARCHAR", "site": "VARCHAR", **_STEP, "sent_at": "TIMESTAMP"}),
}
