"""Items of declared types in tables of their own: typed columns, columns that come later, and types that changed."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import json
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, cast

import attrs
import msgspec
import pydantic
import pytest

from gossamer.engine.parsing import SpiderRunner
from gossamer.errors import ConfigError, SinkError
from gossamer.extract.items import Schemas
from gossamer.extract.spider import Spider
from gossamer.model import PageRow, Record, Request, Response
from gossamer.results.sql import run_query
from gossamer.settings import Settings
from gossamer.storage.base import Sink
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import fleet_sinks, open_sinks
from gossamer.storage.tables import item_tables

WHEN = datetime.datetime(2026, 11, 16, 2, 0, 0, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))


@dataclasses.dataclass
class Product:
    name: str
    price: float
    stock: int | None = None
    sold_out: bool = False
    exact: decimal.Decimal = decimal.Decimal("1.10")
    seen: datetime.datetime = WHEN
    day: datetime.date = datetime.date(2026, 11, 16)
    tags: list[str] = dataclasses.field(default_factory=list)


class Color(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    model_config = {"extra": "allow"}
    id: int = pydantic.Field(alias="@id")
    color: Color | None = None


class Struct(msgspec.Struct, rename="camel"):
    page_title: str
    kind: Literal["a", "b"] = "a"


@attrs.define
class Author:
    full_name: str
    born: dict[str, int] | None = None


TYPES = (Product, Model, Struct, Author)


def test_columns_are_the_fields_as_they_are_written() -> None:
    assert Schemas(TYPES).columns() == {
        "Product": {
            "name": "str", "price": "float", "stock": "int", "sold_out": "bool", "exact": "decimal", "seen": "time",
            "day": "date", "tags": "json",
        },
        "Model": {"@id": "int", "color": "str"},
        "Struct": {"pageTitle": "str", "kind": "str"},
        "Author": {"full_name": "str", "born": "json"},
    }  # fmt: skip
    wrong: list[dict[str, Any]] = [
        {"A": {"x": "str", "X": "str"}},
        {"A": {"_page": "str"}},
        {"A": {}, "a": {}},
        {"Rejected": {}},
    ]
    for types in wrong:
        with pytest.raises(ConfigError):
            item_tables(types, "items")


class Everything(Spider):
    item_types = TYPES

    def parse(self, page: Any) -> Any:
        yield Product("'); DROP TABLE pages; --\0", float("inf") if page.body == b"odd" else 9.5, tags=["a", "\0"])
        yield Author("Ada", {"year": 1815})
        yield Model(**cast(Any, {"@id": 7, "color": "red", "more": [1]}))
        yield Struct("Title")


def taken(key: int, token: int = 1, body: bytes = b"") -> Record:
    """A record with the spider's items, as the engine creates it."""
    request = Request(f"http://e.example/{key}", key)
    found = asyncio.run(
        SpiderRunner(Everything(), Settings()).extract(request, Response(url=request.url, status=200, body=body))
    )
    assert not found.error
    row = PageRow(url=request.url, status=200)
    return Record(key=key, token=token, page=row, items=found.items, types=found.types)


def store(sink: Sink, *batches: Sequence[Record]) -> None:
    async def run() -> None:
        try:
            for batch in batches:
                await sink.write(batch)
        finally:
            await sink.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["postgres_server", "maria_server"])
def test_items_of_a_type_have_a_table_that_grows_with_it(request: pytest.FixtureRequest, kind: str) -> None:
    server, table = request.getfixturevalue(kind), f"t{secrets.token_hex(4)}"
    settings, columns = Settings(sink=(f"{server.url}?table={table}",)), Schemas(TYPES).columns()

    def opened(types: dict[str, dict[str, str]]) -> Sink:
        (sink,) = fleet_sinks(settings, Path("unused"), "one", types=types)
        return sink

    untyped = Record(key=9, token=1, page=PageRow(url="http://e.example/9"), items=({"any": 1},))
    store(opened(columns), [taken(1), taken(2, body=b"odd"), untyped], [taken(1, token=2)])
    (first, second) = server.ask(f"SELECT * FROM {table}_items_product ORDER BY _page")
    name = "'); DROP TABLE pages; --" + ("\ufdd0␀" if kind == "postgres_server" else "\0")
    assert list(first)[:7] == [1, 0, name, 9.5, None, False, decimal.Decimal("1.10")]
    stamp = first[7] if first[7].tzinfo else first[7].replace(tzinfo=datetime.UTC)
    assert (stamp, first[8]) == (WHEN, datetime.date(2026, 11, 16))
    assert second[3] is None, "no number for what is none"
    more = json.loads(server.ask(f"SELECT _more FROM {table}_items_model")[0][0])
    assert more == {"more": [1]}
    assert [row[0] for row in server.ask(f"SELECT count(*) FROM {table}_items")] == [1]
    # A field more is a column more, and rows that were there have none of it.
    grown = {**columns, "Struct": {**columns["Struct"], "words": "int"}}
    later = Record(key=3, token=1, page=PageRow(url="http://e.example/3"), items=({"pageTitle": "x", "words": 5},))
    store(opened(grown), [msgspec.structs.replace(later, types=("Struct",))])
    assert sorted(row[0] or 0 for row in server.ask(f"SELECT words FROM {table}_items_struct")) == [0, 0, 5]
    changed = {**columns, "Product": {**columns["Product"], "price": "json"}}
    with pytest.raises(SinkError, match=r"items_product\.price is"):
        store(opened(changed), [taken(4)])
    assert len(server.ask(f"SELECT * FROM {table}")) == 4, "nothing of it was stored"


def test_the_same_in_a_file_which_export_reads_back(tmp_path: Path) -> None:
    columns = Schemas(TYPES).columns()

    def opened(types: dict[str, dict[str, str]]) -> Sink:
        (sink,) = open_sinks(Settings(sink=("sqlite",)), tmp_path, {}, types=types)
        return sink

    record = taken(1, token=2)
    store(opened(columns), [taken(1), taken(2, body=b"odd")], [record])
    store(opened({**columns, "Struct": {**columns["Struct"], "words": "int"}}), [])
    with closing(sqlite3.connect(tmp_path / "pages.db")) as database:
        kinds = "typeof(price), typeof(stock), typeof(sold_out), typeof(exact), exact, json_extract(tags, '$[0]')"
        found = database.execute(f"SELECT {kinds} FROM items_product WHERE _page = 1").fetchall()
        assert found == [("real", "null", "integer", "text", "1.10", "a")]
        assert database.execute("SELECT pageTitle, words FROM items_struct").fetchall() == [("Title", None)] * 2
    asked = list(run_query(tmp_path, "SELECT price, sold_out, seen, day, tags->>0 FROM items_product WHERE _page = 1"))
    assert asked[1] == (9.5, False, WHEN.astimezone(datetime.UTC).replace(tzinfo=None), WHEN.date(), "a")
    assert next(iter(list(run_query(tmp_path, "SELECT count(*) FROM items"))[1:])) == (8,)
    first = next(iter(StoredJob.of(tmp_path).records(items=True)))
    product, author, model, struct = first.items
    assert (product, author, model) == record.items[:3]
    assert struct == {**record.items[3], "words": None}
    with pytest.raises(SinkError, match=r"items_author\.full_name is TEXT"):
        opened({**columns, "Author": {"full_name": "int"}})
