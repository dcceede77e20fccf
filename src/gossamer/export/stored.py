"""What a job has stored, whichever of its sinks kept it: one record per page, read as a stream."""

from __future__ import annotations

import csv
import json
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
from siphashc import siphash

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer.errors import ArchiveError, ConfigError, FrontierError, SinkError
from gossamer.fleet import results_folder
from gossamer.frontier.backends import backend_of, is_fleet, open_fleet
from gossamer.model import PageRow, Record
from gossamer.sink import segments
from gossamer.sink.base import TABLES
from gossamer.sink.csv import ITEMS as CSV_ITEMS
from gossamer.sink.csv import PAGES as CSV_PAGES
from gossamer.sink.jsonl import ITEMS, PAGES, SUFFIXES, lines_of
from gossamer.sink.latest import LastWords
from gossamer.sink.typed import MORE, NUMBER, PAGE
from gossamer.sink.warc import OPEN
from gossamer.stored.places import Place
from gossamer.stored.records import read_records
from gossamer.stored.visits import noted_in

_decode_page = msgspec.json.Decoder(PageRow).decode
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(PageRow)}


async def place_of(name: str, frontier: str = "") -> Place:
    """The folder in which what a job stored is: its own, or the one that its fleet's workers write to; and its
    settings, as they are there or as the fleet has them."""
    folder = jobs.folder_of(name, ())
    has_segments = (folder / segments.FOLDER).is_dir() and backend_of(frontier).results_folder(frontier, name) is None
    here = Place.of(folder)
    if not is_fleet(frontier) or "/" in name or (has_segments and here.settings):
        return here
    try:
        fleet = await open_fleet(frontier, name)
    except FrontierError:
        if has_segments:
            return here
        raise
    try:
        home = folder if has_segments else results_folder(frontier, name, fleet.settings, folder)
        return Place(home, configuration.dump(fleet.settings), name)
    finally:
        await fleet.aclose()


def records(place: Path | Place, *, all_visits: bool = False, with_items: bool = False) -> Iterator[Record]:
    """The last record of every page, or with `all_visits` each; a ConfigError if nothing is stored there.

    Pages of a file of lines have no key, and their items are not with them: not for who wants `with_items`."""
    place = Place.of(place)
    folder = place.folder
    if (folder / segments.FOLDER).is_dir():
        return segments.gather(folder, all_visits=all_visits)
    if lines_name(folder, PAGES) is not None and not with_items:
        return _of_lines(folder, all_visits=all_visits)
    if (parquet := parquet_folder(folder)) is not None:
        return of_parquet(parquet, all_visits=all_visits)
    if (database := place.sqlite_file) is not None:
        return of_sqlite(database)
    if (folder / CSV_PAGES).exists() and not with_items:
        return _last(lambda: of_csv(folder / CSV_PAGES), all_visits=all_visits)
    if archives := place.warcs:
        return of_archives(archives, all_visits=all_visits)
    if with_items and (lines_name(folder, PAGES) is not None or (folder / CSV_PAGES).exists()):
        raise ConfigError(
            "the files of this job do not say which pages its items are from",
            hint=f"they are in {folder / CSV_ITEMS}"
            if (folder / CSV_ITEMS).exists()
            else "a crawl with --sink parquet or --sink sqlite beside --sink jsonl keeps that",
        )
    raise nothing_in(place)


def nothing_in(place: Path | Place) -> ConfigError:
    """What to say of a folder in which no sink has left anything."""
    place = Place.of(place)
    folder = place.folder
    if not folder.is_dir():
        return ConfigError(f"{folder} does not exist", hint="see crawls/ for the names of jobs")
    if away := place.elsewhere:
        return ConfigError(
            f"the pages of {folder} are not there but in {', '.join(away)}",
            hint="ask there; for parquet:/path, name that path",
        )
    return ConfigError(f"nothing is stored in {folder}", hint="name its folder, or --frontier URL for a fleet's job")


def items(place: Path | Place) -> Iterator[bytes]:
    """The items of a job as JSON, without the pages that they are from."""
    folder = Place.of(place).folder
    if lines_name(folder, ITEMS) is not None and not (folder / segments.FOLDER).is_dir():
        for line in lines_of(folder, ITEMS):
            if line.endswith(b"\n"):
                yield line[:-1]
        return
    for record in records(place, with_items=True):
        yield from map(msgspec.json.encode, record.items)


def lines_name(folder: Path, name: str) -> str | None:
    """How a file of lines is called in this folder: as it is, or with the suffix of its compression."""
    return next((name + suffix for suffix in SUFFIXES.values() if (folder / (name + suffix)).exists()), None)


def _of_lines(folder: Path, *, all_visits: bool) -> Iterator[Record]:
    def pages() -> Iterator[Record]:
        for number, line in enumerate(lines_of(folder, PAGES), 1):
            # It may be written at this moment.
            if not line.endswith(b"\n"):
                return
            try:
                yield Record(key=0, token=0, page=_decode_page(line))
            except msgspec.DecodeError as error:
                raise SinkError(f"{folder / PAGES}, line {number}: {error}", hint="was the file changed?") from None

    return _last(pages, all_visits=all_visits)


def parquet_folder(folder: Path) -> Path | None:
    """Where Parquet files are: with the job, or in the folder itself, as `parquet:/path` has it."""
    return next((one for one in (folder / TABLES, folder) if (one / "pages").is_dir() or _waits(one)), None)


def _waits(folder: Path) -> bool:
    """Whether it is a folder of Parquet files that has only logs yet."""
    return folder.name == TABLES and folder.is_dir()


def of_parquet(folder: Path, *, all_visits: bool) -> Iterator[Record]:
    from gossamer.sink.parquet_files import Snapshot

    with Snapshot(folder) as snapshot:
        words = LastWords()
        for key, token in snapshot.stamps():
            # In a fleet a visit may be there twice.
            words.add(segments.visit_of(key, token) if all_visits else key, 0 if all_visits else token)
        for record, is_last in zip(snapshot.records(), words.settled(), strict=True):
            if is_last:
                yield record


def of_archives(paths: Sequence[Path], *, all_visits: bool) -> Iterator[Record]:
    def visits() -> Iterator[Record]:
        for path in paths:
            try:
                for record in read_records(path):
                    noted = noted_in(record) if record.kind == "metadata" else None
                    if noted is not None and noted.page is not None:
                        of_page = tuple(msgspec.json.decode(item) for item in noted.items)
                        yield Record(key=noted.key, token=noted.token, page=noted.page, items=of_page)
            except ArchiveError:
                # The end of what is written at this moment.
                if not path.name.endswith(OPEN):
                    raise

    words = LastWords()
    for one in visits():
        words.add(segments.visit_of(one.key, one.token) if all_visits else one.key, 0 if all_visits else one.token)
    for one, is_last in zip(visits(), words.settled(), strict=False):
        if is_last:
            yield one


def _last(read: Any, *, all_visits: bool) -> Iterator[Record]:
    """Of records without key and token the last one of each URL."""
    if all_visits:
        yield from read()
        return
    words, secret = LastWords(), secrets.token_bytes(16)
    for number, record in enumerate(read()):
        words.add(siphash(secret, record.page.url), number)
    counts = words.settled()
    # A file that has grown since is read as far as it was then.
    for record, is_last in zip(read(), counts, strict=False):
        if is_last:
            yield record


def of_sqlite(path: Path) -> Iterator[Record]:
    """The pages in a file of the sink `sqlite`, with all their items."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        try:
            database.execute("SELECT key FROM pages LIMIT 1").fetchall()
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{path} is not what the sink sqlite writes: {error}", hint="export what the job has in other sinks"
            ) from None
        tables = _item_tables(database)
        for row in database.execute("SELECT * FROM pages ORDER BY key"):
            found = database.execute("SELECT number, item FROM items WHERE key = ?", (row["key"],))
            numbered = [(number, json.loads(item)) for number, item in found]
            for name, kinds in tables.items():
                of_type = database.execute(f"SELECT * FROM {name} WHERE {PAGE} = ?", (row["key"],))  # noqa: S608
                numbered += [(one[NUMBER], _typed_item(one, kinds)) for one in of_type]
            of_page = tuple(item for _, item in sorted(numbered, key=lambda one: one[0]))
            values = {name: row[name] for name in row.keys() if name in _FIELDS and row[name] is not None}  # noqa: SIM118
            yield Record(key=row["key"], token=row["token"], page=PageRow(**values), items=of_page)


def typed_tables(path: Path) -> Iterator[tuple[str, dict[str, str], Iterator[dict[str, Any]]]]:
    """The tables of types of items in such a file: name, columns with their types, and rows."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        for table, kinds in _item_tables(database).items():
            rows = database.execute(f"SELECT * FROM {table}")  # noqa: S608
            own = ({NUMBER: row[NUMBER], PAGE: row[PAGE], MORE: row[MORE], **_typed_item(row, kinds)} for row in rows)
            yield table.strip('"'), kinds, own


def _item_tables(database: sqlite3.Connection) -> dict[str, dict[str, str]]:
    """The tables of types of items: name -> column -> its type."""
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'items_*'")
    tables = {}
    for (name,) in found.fetchall():
        kinds = {row["name"]: row["type"] for row in database.execute(f'PRAGMA table_info("{name}")')}
        if PAGE in kinds and NUMBER in kinds:
            tables[f'"{name}"'] = kinds
    return tables


def _typed_item(row: sqlite3.Row, kinds: Mapping[str, str]) -> dict[str, Any]:
    """The item that a row was made of; a field that it did not have is null."""
    item: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = row[name]
        if value is not None and kind == "JSON_TEXT":
            value = json.loads(value)
        elif value is not None and kind == "BOOLEAN":
            value = bool(value)
        if name == MORE:
            item.update(value or {})
        elif name not in (PAGE, NUMBER):
            item[name] = value
    return item


def of_csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            values: dict[str, Any] = {}
            for name, text in row.items():
                kind = _FIELDS.get(name)
                if kind is None or text is None or (text == "" and kind not in (int, float, str)):
                    continue
                with suppress(ValueError):
                    values[name] = kind(text or 0) if kind in (int, float) else text.removeprefix("'")
            yield Record(key=0, token=0, page=PageRow(**values))
