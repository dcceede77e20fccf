"""Queries the results of a job with SQL, through DuckDB."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossamer.errors import ConfigError
from gossamer.extras import unusable
from gossamer.storage import request_log
from gossamer.storage.base import SqlSource
from gossamer.storage.duckdb_views import KEY_COLUMNS, PAGE_COLUMNS, columns_for, quoted, read_json
from gossamer.storage.reader import StoredJob
from gossamer.storage.request_log import SentRequest

log = logging.getLogger("gossamer.query")
_TRIES = 3
OVERVIEW = """
SELECT table_name AS "table", string_agg(column_name, ', ' ORDER BY ordinal_position) AS columns
FROM information_schema.columns WHERE table_name NOT LIKE '\\_%' ESCAPE '\\' GROUP BY ALL ORDER BY ALL
"""
"""The default query: lists tables and columns."""


def run_query(place: Path | StoredJob, query: str) -> Iterator[Sequence[Any]]:
    """Run a SELECT; yields the column names, then the rows. Any other statement and any SQL error is a ConfigError."""
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
                    raise ConfigError("only a single SELECT is allowed", hint="results cannot be changed with SQL")
                result = database.execute(statements[0])
                has_begun = True
                yield [name for name, *_ in result.description or ()]
                while rows := result.fetchmany(1000):
                    yield from rows
                return
        except duckdb.IOException as error:
            # A log may have become a Parquet file since the files were listed.
            if has_begun or not tries_left:
                raise ConfigError(f"sql: {error}") from None
        except duckdb.Error as error:
            # Without the excerpt of the query that follows.
            message = " ".join(str(error).partition("\n\nLINE ")[0].split())
            raise ConfigError(
                f"sql: {message}", hint=f"list tables and columns with: gossamer sql {StoredJob.of(place).folder}"
            ) from None


@contextmanager
def opened(place: Path | StoredJob) -> Iterator[Any]:
    """An in-memory database with views of the results. It can read only their files, and cannot write."""
    import duckdb

    config: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    with tempfile.TemporaryDirectory(prefix="gossamer-") as spill, duckdb.connect(config=config) as database:
        views = _views(StoredJob.of(place), Path(spill))
        files = [path for sources in views.values() for source in sources for path in source.files]
        # The progress bar would be printed to standard output, among the data.
        database.execute("SET enable_progress_bar = false")
        database.execute(f"SET temp_directory = {quoted(spill)}")
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


def _views(job: StoredJob, spill: Path) -> dict[str, Sequence[SqlSource]]:
    """The files of each view, from the sink that is fastest to query."""
    steps = SqlSource(sorted((job.folder / request_log.FOLDER).glob(f"*{request_log.SUFFIX}")), _REQUESTS)
    reader = job.first("rows", prefer="columns")
    if reader is not None:
        return {**reader.sql_sources(spill), "_requests": [steps]}
    if not steps.files:
        raise job.missing_data("rows")
    if places := job.elsewhere or [reader.place for reader in job.readers()]:
        log.warning("the tables of pages and items are empty: the results are in %s", ", ".join(places))
    return {"_visits": [], "_items": [], "_requests": [steps]}


def _list(paths: Sequence[Path]) -> str:
    return "[" + ", ".join(quoted(str(path.absolute())) for path in paths) + "]"


_STEP = {name: kind for name, kind in columns_for(SentRequest).items() if name != "at"}
_OF_ITEM = {"number": "BIGINT", "item": "JSON"}
_REQUESTS = (
    "SELECT regexp_extract(filename, '([^/]*)[.]jsonl$', 1) AS worker, split_part(url, '/', 3) AS site,"
    ' * EXCLUDE (filename, "at"), make_timestamp(("at" * 1e6)::BIGINT) AS sent_at'
    f" FROM {read_json({**_STEP, 'at': 'DOUBLE'})}, filename = true) WHERE url IS NOT NULL"
)
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


def _nothing(columns: Mapping[str, str]) -> str:
    return "SELECT " + ", ".join(f"NULL::{kind} AS {name}" for name, kind in columns.items()) + " WHERE false"


_EMPTY = {
    "_visits": _nothing({"site": "VARCHAR", **PAGE_COLUMNS, "fetched_at": "TIMESTAMP"}),
    "_items": _nothing({**KEY_COLUMNS, "site": "VARCHAR", "url": "VARCHAR", "fetched_at": "TIMESTAMP", **_OF_ITEM}),
    "_requests": _nothing({"worker": "VARCHAR", "site": "VARCHAR", **_STEP, "sent_at": "TIMESTAMP"}),
}
