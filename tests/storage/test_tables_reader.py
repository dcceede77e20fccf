"""The tables of PostgreSQL and MariaDB, read back as they were written."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossamer.errors import ConfigError, NotKept, SinkError
from gossamer.model import Record, Rejected
from gossamer.results.sql import run_query
from gossamer.settings import Settings
from gossamer.storage.query import Search
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import open_sinks
from gossamer.storage.tables_reader import TablesReader
from gossamer.testing.servers import SqlServer
from gossamer.testing.sink_writer import visit
from gossamer.testing.sinks import HOSTILE, hostile

TYPES = {
    "Product": {
        "name": "str", "price": "decimal", "stock": "int", "weight": "float", "sold_out": "bool", "seen": "time",
        "day": "date", "tags": "json",
    }
}  # fmt: skip
PRODUCT = {
    "name": "a \0 b \ufdd0", "price": "12.50", "stock": 3, "weight": 0.25, "sold_out": False,
    "seen": "2026-01-02T03:04:05+00:00", "day": "2026-01-02", "tags": ["x", {"y \0": 1}], "other": 7,
}  # fmt: skip


@pytest.fixture(params=["postgres_server", "maria_server"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> StoredJob:
    """A job whose only sink is a table that does not exist yet."""
    server: SqlServer = request.getfixturevalue(request.param)
    return StoredJob(tmp_path, [f"{server.url}?table=T{secrets.token_hex(4)}"])


def store(job: StoredJob, *batches: Sequence[Record], types: Mapping[str, Mapping[str, str]] | None = None) -> None:
    async def run() -> None:
        (sink,) = open_sinks(Settings(sink=tuple(job.sinks)), job.folder, {}, types=types or {})
        for batch in batches:
            await sink.write(batch)
        await sink.aclose()

    asyncio.run(run())


def reader_of(job: StoredJob) -> TablesReader:
    (reader,) = job.readers()
    assert isinstance(reader, TablesReader)
    return reader


def test_pages_round_trip(job: StoredJob) -> None:
    """More than an answer has at once, with hostile texts; of a page that was visited again, the last visit."""
    many = [visit(number) for number in range(1200)]
    odd = [hostile(5000 + number, text) for number, text in enumerate(HOSTILE)]
    again = visit(3, token=9, title="later", fetched_at=1_800_000_000.0)
    store(job, many, odd, [again])
    expected = {one.key: one for one in [*many, *odd, again]}
    found = list(reader_of(job).records(items=True))
    assert [one.key for one in found] == sorted(expected)
    for one in found:
        was = expected[one.key]
        assert (one.page, one.token, one.items) == (was.page, was.token, was.items)
    url = many[7].page.url
    assert list(reader_of(job).rows(Search(url=url))) == [many[7].page]
    assert [row.title for row in reader_of(job).rows(Search(since=1_750_000_000.0))] == ["later"]
    assert sum(1 for _ in reader_of(job).rows(Search(site="site.example"))) == 1200


def test_typed_items_round_trip(job: StoredJob) -> None:
    plain = {"n": 1, "deep": [{"x \0": "\ufdd0"}]}
    page = visit(1)
    rejected = Rejected(url=page.page.url, type="Product", field="price", error="no \0", item={"price": "?"})
    record = msgspec.structs.replace(
        page, items=(plain, PRODUCT, {"name": "second"}), types=("", "Product", "Product"), rejected=(rejected,)
    )
    store(job, [record, visit(2)], types=TYPES)
    first, second = reader_of(job).records(items=True)
    empty = dict.fromkeys(TYPES["Product"])
    given = dict(PRODUCT)
    assert first.items[0] == plain
    price = first.items[1].pop("price")
    assert float(price) == 12.5
    del given["price"]
    assert first.items[1] == given
    assert first.items[2] == {**empty, "name": "second"}
    assert second.items == visit(2).items
    assert [msgspec.json.decode(line) for line in reader_of(job).items()][2]["name"] == "second"
    assert [msgspec.json.decode(line, type=Rejected) for line in reader_of(job).rejected()] == [rejected]
    query = "SELECT stock, price, sold_out, seen, day, tags[1] FROM items_product ORDER BY _number"
    rows = list(run_query(job, query))[1:]
    assert [str(value) for value in rows[0]][3:5] == ["2026-01-02 03:04:05", "2026-01-02"]
    assert (rows[0][0], float(rows[0][1]), rows[0][2]) == (3, 12.5, False)
    assert list(run_query(job, "SELECT count(*) FROM pages"))[1:] == [(2,)]


def test_search_continues_from_its_cursor(job: StoredJob) -> None:
    records = [visit(number, fetched_at=1_700_000_000.0 + number // 3) for number in range(1300)]
    store(job, records)
    expected = sorted((one.page.fetched_at, one.page.url) for one in records)[::-1]
    reader, found, after = reader_of(job), [], None
    while True:
        rows, after = reader.search(Search(), after=after, limit=300, go_on=lambda: True)
        found += [(row.fetched_at, row.url) for row in rows]
        if after is None:
            break
    assert found == expected
    with pytest.raises(ConfigError, match="too many"):
        reader.search(Search(), after=None, limit=10, go_on=lambda: False)


def test_a_reader_sees_the_tables_as_they_were_when_it_began(job: StoredJob) -> None:
    store(job, [visit(number) for number in range(600)])
    reading = reader_of(job).records()
    found = [next(reading)]
    store(job, [visit(599, token=9, title="later"), visit(9999)])
    found += reading
    assert (len(found), found[-1].page.title) == (600, visit(599).page.title)
    assert sum(1 for _ in reader_of(job).records()) == 601


def test_missing_tables_are_reported_in_one_sentence(job: StoredJob, tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="has no table"):
        list(reader_of(job).records())
    away: Any = StoredJob(tmp_path, ["postgresql://me:hidden@127.0.0.1:9/x", "mysql://me:hidden@127.0.0.1:9/x"])
    for reader in away.readers():
        with pytest.raises(SinkError) as refused:
            list(reader.records())
        assert "127.0.0.1:9" in str(refused.value)
        assert "hidden" not in f"{refused.value} {refused.value.hint}"
