"""Parquet files: page and item columns, and the row logs that they are sealed from."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote

import msgspec

from gossamer.errors import SinkError
from gossamer.extras import unusable
from gossamer.model import PageRow, Record
from gossamer.storage import files
from gossamer.storage.base import page_row

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as missing:
    raise unusable("parquet", "Parquet", missing) from missing


SCHEMA = pa.schema(
    [
        *(("key", pa.int64()), ("token", pa.int64()), ("site", pa.string()), ("url", pa.string())),
        *(("fetched_at", pa.timestamp("us", tz="UTC")), ("number", pa.int64()), ("item", pa.string())),
    ]
)
_NAME = re.compile(r"[A-Za-z_]\w{0,62}", re.ASCII)
_MOST = 100
# All numbers are floats: a price may be 10 in the first file and 10.5 in the next.
_ITEM_TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.float64(), float: pa.float64()}


class ItemColumns:
    """Item fields with columns. A column keeps its first type: other values are null there, and only in the JSON."""

    def __init__(self, known: pa.Schema | None = None) -> None:
        own = () if known is None else (field for field in known if field.name not in SCHEMA.names)
        self._types: dict[str, pa.DataType] = {field.name: field.type for field in own}
        # Many tools ignore case in column names.
        self._taken = {name.lower() for name in (*SCHEMA.names, *self._types)}

    @property
    def schema(self) -> pa.Schema:
        """The schema of rows written now."""
        return pa.schema([*SCHEMA, *self._types.items()])

    def values(self, items: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
        """Return the column values of these items, adding columns for new fields."""
        for item in items:
            for name in item.keys() - self._types.keys():
                self._learn(name, item[name])
        return {
            name: [_fitting(item.get(name), kind) for item in items] for name, kind in self._types.items()
        }  # fmt: skip

    def _learn(self, name: str, value: Any) -> None:
        kind = _ITEM_TYPES.get(type(value))
        if kind is None or len(self._types) >= _MOST or not _NAME.fullmatch(name) or name.lower() in self._taken:
            return
        self._types[name] = kind
        self._taken.add(name.lower())


def known_columns(paths: Sequence[Path]) -> ItemColumns:
    """Return the columns of existing files, as in the last of them."""
    return ItemColumns(pq.read_schema(paths[-1]) if paths else None)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    if _ITEM_TYPES.get(type(value)) != kind:
        return None
    try:
        return float(value) if kind == pa.float64() else value
    except OverflowError:
        return None


def decoded(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Decode items from JSON."""
    return [msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item for item in items]


PAGES, ITEMS, SUFFIX, LOG = "pages", "items", ".parquet", ".jsonl"
ROW_GROUP = 65_536
WRITING = {"compression": "zstd", "write_page_index": True}
_DECODED = 8192
_TYPES = {int: pa.int64(), float: pa.float64()}
_TIME = pa.timestamp("us", tz="UTC")
_PAGE_FIELDS = tuple(field.name for field in msgspec.structs.fields(PageRow))
_PLACE_FIELDS = ("warc_file", "warc_offset", "warc_length", "warc_revisit")
PAGE_SCHEMA = pa.schema(
    [
        *(("key", pa.int64()), ("token", pa.int64()), ("site", pa.string())),
        *(
            (field.name, _TIME if field.name == "fetched_at" else _TYPES.get(field.type, pa.string()))
            for field in msgspec.structs.fields(PageRow)
        ),
        *(("warc_file", pa.string()), ("warc_offset", pa.int64())),
        *(("warc_length", pa.int64()), ("warc_revisit", pa.bool_())),
    ]
)


class BodyLocation(NamedTuple):
    """Location of a visit's response in a WARC file."""

    file: str
    offset: int
    length: int
    is_revisit: bool = False


class LogRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A line of a log: a visit, and the location of its response if there is an archive. Items are kept as written."""

    key: int
    token: int
    page: PageRow
    items: tuple[Any, ...] = ()
    warc: BodyLocation | None = None


class LocatedRecord(Record, frozen=True, gc=False, kw_only=True):
    """A visit as read back, with its location in the archive."""

    warc: BodyLocation | None = None


class _RawRow(LogRow, frozen=True, gc=False):
    items: tuple[msgspec.Raw, ...] = ()


_encode_into = msgspec.json.Encoder().encode_into
_decode = msgspec.json.Decoder(_RawRow).decode


def tables(rows: Iterable[LogRow], columns: ItemColumns) -> Iterator[tuple[str, pa.Table]]:
    """Convert rows to tables of pages and of items."""
    pages, items = [], []
    source = iter(rows)
    # In batches: Python values take ten times the space.
    while some := list(islice(source, _DECODED)):
        pages.append(page_batch(some))
        items.append(pa.Table.from_batches([item_batch(some, columns)]))
    yield PAGES, pa.Table.from_batches(pages, PAGE_SCHEMA)
    # Earlier batches lack the columns of later ones.
    yield ITEMS, pa.concat_tables([columns.schema.empty_table(), *items], promote_options="default")


def page_batch(rows: Sequence[LogRow]) -> pa.RecordBatch:
    """Convert pages to columns."""
    columns: dict[str, list[Any]] = {
        "key": [row.key for row in rows],
        "token": [row.token for row in rows],
        "site": [site_of(row.page.url) for row in rows],
    }
    for name in _PAGE_FIELDS:
        columns[name] = [_value(getattr(row.page, name)) for row in rows]
    columns["fetched_at"] = [round(row.page.fetched_at * 1e6) for row in rows]
    for number, name in enumerate(_PLACE_FIELDS):
        columns[name] = [row.warc[number] if row.warc else None for row in rows]
    return _batch(columns, PAGE_SCHEMA)


def item_batch(rows: Sequence[LogRow], known: ItemColumns) -> pa.RecordBatch:
    """Convert items to columns; one column holds the whole item as JSON."""
    found = [(row, number, item) for row in rows for number, item in enumerate(row.items)]
    columns: dict[str, list[Any]] = {
        "key": [row.key for row, _, _ in found],
        "token": [row.token for row, _, _ in found],
        "site": [site_of(row.page.url) for row, _, _ in found],
        "url": [row.page.url for row, _, _ in found],
        "fetched_at": [round(row.page.fetched_at * 1e6) for row, _, _ in found],
        "number": [number for _, number, _ in found],
        "item": [_json(item) for _, _, item in found],
        **known.values(decoded([item for _, _, item in found])),
    }
    return _batch(columns, known.schema)


def _batch(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _value(value: Any) -> Any:
    """Encode values without a column type as JSON."""
    if value is msgspec.UNSET:
        return None
    return value if value is None or isinstance(value, str | int | float) else _json(value)


def _json(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else msgspec.json.encode(value).decode()


def site_of(url: str) -> str:
    """Return the authority of a URL."""
    parts = url.split("/", 3)
    return parts[2] if len(parts) > 2 else ""


def add_line(lines: bytearray, record: Record, place: BodyLocation | None) -> None:
    """Append a visit to the data for a log."""
    row = LogRow(record.key, record.token, record.page, record.items, place)
    _encode_into(row, lines, len(lines))
    lines += b"\n"


def rows_of(log: Path) -> Iterator[LogRow]:
    """Yield the visits of a log, each once: repeated calls may leave duplicates, and a crash half a line at the end."""
    with log.open("rb") as file:
        yield from _rows(file, log, os.fstat(file.fileno()).st_size)


def _rows(file: IO[bytes], log: Path, size: int) -> Iterator[LogRow]:
    seen: set[tuple[int, int]] = set()
    for number, line in enumerate(file, 1):
        size -= len(line)
        if size < 0 or not line.endswith(b"\n"):
            return
        try:
            row = _decode(line)
        except msgspec.DecodeError as error:
            raise SinkError(f"{log}, line {number}: {error}", hint="was the file edited?") from None
        if (row.key, row.token) not in seen:
            seen.add((row.key, row.token))
            yield row


def whole_bytes(log: Path) -> int:
    """Return the valid length of a log without marks: the end of its last complete line."""
    with log.open("rb") as file:
        return sum(len(line) for line in file if line.endswith(b"\n"))


def seal(
    log: Path, folder: Path, *, by: Sequence[str] = (), again: bool = True, columns: ItemColumns | None = None
) -> None:
    """Convert a log to Parquet files, then delete it; with `again`, after a crash or a fault interrupted this.

    Two processes may do so at once, on a shared folder without locks: the files are complete once the log is gone."""
    name = log.name.removesuffix(LOG)
    if columns is None:
        columns = known_columns(sealed(folder, ITEMS, beginning=name.rpartition("-")[0]))
    try:
        made = list(tables(rows_of(log), columns))
    except pa.ArrowException as error:
        raise SinkError(f"{log}: cannot convert it to a table: {error}", hint="this is a bug: report it") from error
    written = set()
    for kind, table in made:
        for place, part in _parts(table, by):
            path = folder / kind / place / (name + SUFFIX)
            _write(part, path)
            written.add(path)
    if again:
        # An interrupted attempt may have left other files: incomplete ones, or with another partitioning.
        for kind in (PAGES, ITEMS):
            for path in (*(folder / kind).rglob(name + SUFFIX), *(folder / kind).rglob(f".{name}{SUFFIX}.*")):
                if path not in written:
                    path.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    files.sync_folder(folder)


def sealed(folder: Path, kind: str = PAGES, *, but: Container[str] = (), beginning: str = "") -> list[Path]:
    """Return the Parquet files, `but` for those made of the logs with these names."""
    found = sorted((folder / kind).rglob(f"{beginning}*{SUFFIX}"), key=lambda path: (path.name, path))
    return [path for path in found if path.name.removesuffix(SUFFIX) + LOG not in but]


def logs(folder: Path) -> list[Path]:
    """Return the logs whose rows are not, or not all, in Parquet files yet."""
    return sorted(folder.glob(f"*{LOG}"))


def read(folder: Path) -> Iterator[Record]:
    """Yield all visits in a folder, each with its items; a visit that a fleet stored twice appears twice."""
    with Snapshot(folder) as snapshot:
        yield from snapshot.records()


class Snapshot:
    """The content of a folder at one moment, for repeated reads while logs grow and become files.

    In a folder that several jobs write to, only files whose names, without a suffix, are `ours`."""

    def __init__(self, folder: Path, ours: Callable[[str], bool] | None = None) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._logs: list[tuple[Path, IO[bytes], int]] = []
        for log in logs(folder):
            # An open file can be read even after it is deleted.
            with suppress(FileNotFoundError):
                file = self._stack.enter_context(log.open("rb"))
                self._logs.append((log, file, os.fstat(file.fileno()).st_size))
        self.files = sealed(folder, but={log.name for log, _, _ in self._logs})
        """Files of pages."""
        if ours is not None:
            self._logs = [one for one in self._logs if ours(one[0].name.removesuffix(LOG))]
            self.files = [path for path in self.files if ours(path.name.removesuffix(SUFFIX))]

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stamps(self) -> Iterator[tuple[int, int]]:
        """Yield key and token of each record."""
        for path in self.files:
            for batch in pq.ParquetFile(path).iter_batches(_DECODED, columns=["key", "token"]):
                yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        for row in self._rows():
            yield row.key, row.token

    def records(self, *, items: bool = True) -> Iterator[Record]:
        """Yield all visits, with their items if `items` is set."""
        for path in self.files:
            # The items of these pages are in a file of the same name and partition.
            beside = self._folder / ITEMS / path.relative_to(self._folder / PAGES)
            yield from _joined(path, beside if items else None)
        for row in self._rows():
            of_page = tuple(msgspec.json.decode(item) for item in row.items) if items else ()
            yield LocatedRecord(key=row.key, token=row.token, page=row.page, items=of_page, warc=row.warc)

    def pages(self, filters: Any = None) -> Iterator[PageRow]:
        """Yield the rows of all visits; from Parquet files, only those that pass the pyarrow filters."""
        yield from self.waiting_pages()
        for path in self.files:
            if filters is None:
                yield from (record.page for record in _joined(path, None))
            else:
                yield from map(page_row, page_values(pq.read_table(path, filters=filters, partitioning=None)))

    def waiting_pages(self) -> Iterator[PageRow]:
        """Yield the rows of visits that are not in a Parquet file yet."""
        return (row.page for row in self._rows())

    def _rows(self) -> Iterator[LogRow]:
        for log, file, size in self._logs:
            file.seek(0)
            yield from _rows(file, log, size)


def page_values(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table or a batch as dicts, with times in epoch seconds."""
    # pyarrow returns times as datetimes, and needs pandas for their nanoseconds.
    at = table.schema.get_field_index("fetched_at")
    for row in table.set_column(at, "fetched_at", table.column(at).cast(pa.int64())).to_pylist():
        row["fetched_at"] /= 1e6
        yield row


def _joined(pages: Path, items: Path | None) -> Iterator[Record]:
    of_page = _items_of(items) if items is not None else iter(())
    waiting = next(of_page, None)
    file = pq.ParquetFile(pages)
    names = [name for name in ("key", "token", *_PAGE_FIELDS, *_PLACE_FIELDS) if name in file.schema_arrow.names]
    for batch in file.iter_batches(_DECODED, columns=names):
        for row in page_values(batch):
            key, token = row.pop("key"), row.pop("token")
            place = [row.pop(name, None) for name in _PLACE_FIELDS]
            warc = BodyLocation(*place) if place[0] is not None else None
            found = []
            # Both files are in the order of the log.
            while waiting is not None and waiting[0] == (key, token):
                found.append(waiting[1])
                waiting = next(of_page, None)
            yield LocatedRecord(key=key, token=token, page=page_row(row), items=tuple(found), warc=warc)


def _items_of(path: Path) -> Iterator[tuple[tuple[int, int], Any]]:
    if not path.exists():
        return
    for batch in pq.ParquetFile(path).iter_batches(_DECODED, columns=["key", "token", "item"]):
        for row in batch.to_pylist():
            yield (row["key"], row["token"]), msgspec.json.decode(row["item"])


def _parts(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Partition the table; yield each part with its folder."""
    if not table.num_rows:
        return
    if not by:
        yield "", table
        return
    days = (str(datetime.fromtimestamp(at // 1_000_000, UTC).date()) for at in _integers(table["fetched_at"]))
    values = {"day": days, "site": (site.as_py() for site in table["site"])}
    parts = ["/".join(names) for names in zip(*([_folder(one, value) for value in values[one]] for one in by))]
    order = sorted(range(len(parts)), key=parts.__getitem__)
    ordered, begin = table.take(pa.array(order, pa.int64())), 0
    for end in range(1, len(order) + 1):
        if end == len(order) or parts[order[end]] != parts[order[begin]]:
            yield parts[order[begin]], ordered.slice(begin, end - begin)
            begin = end


def _folder(name: str, value: str) -> str:
    """Return a folder name in Hive style; a long value is shortened here, but not in its column."""
    return f"{name}={quote(value, safe='')[:200] or '__HIVE_DEFAULT_PARTITION__'}"


def _integers(column: pa.ChunkedArray) -> Iterator[int]:
    return (value.as_py() for value in column.cast(pa.int64()))


def _write(table: pa.Table, path: Path) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    try:
        with draft.open("wb") as file:
            write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        files.sync_folder(path.parent)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def write_table(table: pa.Table, file: Any) -> None:
    """Write the table as a Parquet file, in row groups."""
    pq.write_table(table, file, row_group_size=ROW_GROUP, **WRITING)
