"""Serialization of Scrapy requests for the frontier."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
import scrapy
from scrapy.http import FormRequest, JsonRequest
from scrapy.settings import Settings as ScrapySettings

from gossamer.clock import SystemClock
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.embedded.frontier import open_memory
from gossamer.scrapy import requests
from gossamer.scrapy.options import open_frontier, read_options
from gossamer.scrapy.requests import Unstorable, key_of, restore, store
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer, SqlServer


class Thing(scrapy.Item):
    name = scrapy.Field()


class Color(Enum):
    RED = "red"


class Shop(scrapy.Spider):
    name = "shop"

    def parse(self, response: Any) -> Any: ...

    def fail(self, failure: Any) -> Any: ...


SPIDER = Shop()


def stored_again(request: scrapy.Request) -> scrapy.Request:
    return restore(store(request, SPIDER, key=1), SPIDER)


def test_every_request_field_round_trips() -> None:
    """H58."""
    request = scrapy.Request(
        "http://shop.example/a?b=ä#part",
        callback=SPIDER.parse,
        errback=SPIDER.fail,
        method="PUT",
        headers={"X-Two": ["1", "2"], "X-Latin": "ä".encode("latin-1")},
        body=b"\xff\x00\xfe",
        cookies=[{"name": "a", "value": "b", "path": "/"}],
        meta={
            "depth": 3, "cookiejar": ("a", 1), "set": {1, 2}, "frozen": frozenset("ab"), 5: b"bytes", ("t", 1): None,  # type: ignore[dict-item]
            "huge": 2**200, "when": datetime(2026, 1, 2, 3, tzinfo=UTC), "day": date(2026, 1, 2),
            "price": Decimal("1.10"), "nested": [{"deep": (1, [2, {3}])}], "item": Thing(name="n"), "float": 0.1,
        },
        encoding="latin-1",
        priority=-7_000_000,
        dont_filter=True,
        flags=["one"],
        cb_kwargs={"page": 2, "more": {"x": (1,)}},
    )  # fmt: skip
    again = stored_again(request)
    assert again.to_dict(spider=SPIDER) == request.to_dict(spider=SPIDER)
    assert again.callback == SPIDER.parse
    assert type(again.meta["item"]) is Thing
    assert type(again.meta["cookiejar"]) is tuple


@pytest.mark.parametrize(
    "request_",
    [
        FormRequest("http://shop.example/", formdata={"a": "ä"}),
        JsonRequest("http://shop.example/", data={"a": [1]}),
        scrapy.Request("http://shop.example/"),
        scrapy.Request("http://user:secret@shop.example:8080/"),
        scrapy.Request("file:///tmp/page.html"),
        scrapy.Request("data:text/plain,hello"),
    ],
    ids=repr,
)
def test_request_subclasses_and_other_schemes_round_trip(request_: scrapy.Request) -> None:
    again = stored_again(request_)
    assert type(again) is type(request_)
    assert again.to_dict(spider=SPIDER) == request_.to_dict(spider=SPIDER)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"callback": lambda response: None}, "callback is <lambda>"),
        ({"callback": Shop().parse}, "callback is Shop.parse, not a method of the spider 'shop'"),
        ({"errback": print}, "errback is print"),
        ({"meta": {"a": [1, {"b": lambda: 1}]}}, "meta['a'][1]['b'] is the function"),
        ({"meta": {"spider": SPIDER}}, "meta['spider'] is a test_scrapy_serialization.Shop"),
        ({"cb_kwargs": {"color": Color.RED}}, "cb_kwargs['color'] is a test_scrapy_serialization.Color"),
        ({"meta": {"text": "half \ud800"}}, "meta['text'] contains a lone surrogate"),
        ({"cookies": {"a": object()}}, "cookies['a'] is a builtins.object"),
    ],
)
def test_unserializable_value_is_named(fields: dict[str, Any], words: str) -> None:
    """H58."""
    with pytest.raises(Unstorable) as refused:
        store(scrapy.Request("http://shop.example/x", **fields), SPIDER, key=1)
    assert str(refused.value).startswith("<GET http://shop.example/x>: ")
    assert words.replace("test_scrapy_serialization", __name__) in str(refused.value)


def test_circular_meta_is_rejected() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Unstorable, match="nested too deeply"):
        store(scrapy.Request("http://shop.example/", meta={"circle": circle}), SPIDER, key=1)


def test_no_class_is_imported_from_stored_data() -> None:
    """H59. A class path in the store resolves only to loaded classes of the right type."""
    assert "antigravity" not in sys.modules
    for path in ("antigravity.Thing", "subprocess.Popen", "scrapy.Item"):
        kept = store(scrapy.Request("http://shop.example/"), SPIDER, key=1)
        forged = msgspec.structs.replace(kept, body=requests.pack({"_class": path}))
        with pytest.raises(ValueError, match="is not a Request class"):
            restore(forged, SPIDER)
    assert "antigravity" not in sys.modules
    with pytest.raises(ValueError, match="no longer has this method"):
        restore(msgspec.structs.replace(kept, body=requests.pack({"callback": "gone"})), SPIDER)


def test_unfiltered_requests_have_unique_keys() -> None:
    keys = {key_of(b"s" * 16, b"f" * 20), key_of(b"s" * 16, b"f" * 20, b"1"), key_of(b"t" * 16, b"f" * 20)}
    assert len(keys) == 3
    assert all(0 <= key < 2**63 for key in keys)


def test_body_of_five_megabytes_round_trips_on_every_frontier(
    redis_server: RedisServer,
    postgres_server: SqlServer,
    maria_server: SqlServer,
    empty_databases: Callable[..., list[str]],
) -> None:
    """H58."""
    body = bytes(range(256)) * 20_480
    made = scrapy.Request("http://shop.example/upload", method="POST", body=body)

    async def through(frontier: Any) -> scrapy.Request:
        try:
            await frontier.add([store(made, SPIDER, key=7)])
            await frontier.steer("running")
            grant = await frontier.lease(1, batch=1, seconds=60)
            return restore(grant.leases[0].requests[0], SPIDER)
        finally:
            await frontier.aclose()

    databases = [*empty_databases(postgres_server, "bodies"), *empty_databases(maria_server, "bodies")]

    async def through_all() -> list[scrapy.Request]:
        settings = Settings(delay=0, robots=False)
        frontiers: list[Any] = [open_memory(settings, clock=SystemClock(), secret=b"s" * 16)]
        for address in (redis_server.url, *databases):
            frontiers.append(await create_fleet(address, "bodies", settings))
        return [await through(frontier) for frontier in frontiers]

    for again in asyncio.run(through_all()):
        assert again.body == body
        assert again.method == "POST"


def test_joining_process_keeps_the_jobs_settings(
    redis_server: RedisServer,
    postgres_server: SqlServer,
    maria_server: SqlServer,
    empty_databases: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    """A different delay on one machine must not change the delay of the job."""
    databases = [*empty_databases(postgres_server, "joined"), *empty_databases(maria_server, "joined")]

    async def delays(url: str) -> list[float]:
        found = []
        for delay in (3, 0):
            project = {"GOSSAMER_FRONTIER": url, "GOSSAMER_JOB": "joined", "DOWNLOAD_DELAY": delay}
            frontier = await open_frontier(read_options(ScrapySettings(project), "joined"))
            try:
                kept = await open_fleet(url, "joined")
                assert hasattr(frontier, "settings")
                found += [frontier.settings.delay, kept.settings.delay]
                await kept.aclose()
            finally:
                await frontier.aclose()
        return found

    for url in (redis_server.url, *databases, f"folder:{tmp_path}"):
        assert asyncio.run(delays(url)) == [3, 3, 3, 3], url


def test_missing_scrapy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.errors import ConfigError

    for name in [name for name in sys.modules if name.startswith("gossamer.scrapy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scrapy", None)
    with pytest.raises(ConfigError, match="needs scrapy") as missing:
        __import__("gossamer.scrapy")
    assert missing.value.hint == "pip install 'gossamer[scrapy]'"
