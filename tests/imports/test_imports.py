"""`gossamer import`: state of other crawlers and archives is imported without running any code in it."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import marshal
import os
import pickle
import shutil
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import lxml.html
import pytest
import redis
import scrapy
from hypothesis import given
from hypothesis import strategies as some
from scrapy.utils.request import fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import FifoQueue, PriorityQueue

from gossamer import settings as configuration
from gossamer.cli import gossamer as command_line
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.imports.importer import ImportedFingerprint, ImportedRequest, Importer, stand_ins
from gossamer.imports.pickles import UnsafePickle, read_marshal, read_pickle
from gossamer.job_folder import stored_settings
from gossamer.model import Counts, Request
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "scrapy_plugin"))
from scrapers import TUTORIAL, finish, shown_settings, site
from scrapers import scrapy as crawl_with_scrapy

plain_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text() | some.binary(),
    lambda inner: (
        some.lists(inner)
        | some.dictionaries(some.text() | some.integers(), inner)
        | some.tuples(inner, inner)
        | some.frozensets(some.integers() | some.text())
        | some.sets(some.integers())
    ),
    max_leaves=20,
)
zones = some.sampled_from([None, UTC, timezone(timedelta(hours=-3), "here")])
other_values = (
    some.datetimes(timezones=zones)
    | some.dates()
    | some.times(timezones=zones)
    | some.timedeltas()
    | some.decimals(allow_nan=False)
    | some.uuids()
)


def run(*words: str) -> int:
    return int(command_line.main(["import", *words], standalone_mode=False) or 0)


def waiting(folder: Path) -> tuple[dict[str, Request], Counts]:
    """The queued requests of a stopped job by URL, and its counts."""

    async def look() -> tuple[dict[str, Request], Counts]:
        frontier = open_sqlite(folder / "frontier.db", Settings(delay=0, robots=False), clock=SystemClock())
        try:
            counts = await frontier.counts()
            grant = await frontier.lease(1000, batch=1000, seconds=60)
            return {request.url: request for lease in grant.leases for request in lease.requests}, counts
        finally:
            await frontier.aclose()

    return asyncio.run(look())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith(("GOSSAMER_", "SCRAPY_"))]:
        monkeypatch.delenv(name)
    return tmp_path


@given(plain_values | some.lists(other_values | some.binary().map(bytearray)).map(lambda few: [few, few]))
def test_plain_pickle_values_match_pickle(value: Any) -> None:
    for protocol in range(6):
        try:
            assert read_pickle(pickle.dumps(value, protocol)) == value
        except UnsafePickle:
            # The oldest protocols have another way to make objects.
            assert protocol < 2


@given(plain_values)
def test_plain_marshal_values_match_marshal(value: Any) -> None:
    for version in range(5):
        try:
            assert read_marshal(marshal.dumps(value, version)) == value
        except UnsafePickle:
            assert version < 2


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.parametrize(
    "data",
    [
        *(pickle.dumps({"url": Evil()}, protocol) for protocol in range(6)),
        pickle.dumps({"share": Fraction(1, 3)}),
        pickle.dumps({"kind": datetime}),
        pickle.dumps(UUID(int=77)).replace(b"\x03int", b"\x03hex"),
        pickle.dumps(date(2026, 1, 31)).replace(b"\x07\xea\x01\x1f", b"\x07\xea\x0d\x1f"),
        b"\x80\x05cdatetime\ndatetime\n(cdatetime\ndatetime\ntR.",
        b"\x80\x05cdecimal\nDecimal\n(]tR.",
        b"\x80\x05cos\nsystem\n(S'touch ran'\ntR.",
        b"(S'touch ran'\nios\nsystem\n.",
        b"\x80\x05\x8c\x02os\x8c\x06system\x93.",
        b"",
        b"\x80\x05",
        b"\x80\x05.",
        b"\x80\x05(.",
        b"\x80\x05K\x01K\x02a.",
        b"\x80\x05]\x94h\x00a.",
        b"\x80\x05]\x94" + b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60)) + b".",
        b"garbage",
    ],
)
def test_unsafe_or_recursive_pickle_is_rejected(data: bytes, here: Path) -> None:
    """H56."""
    with pytest.raises(UnsafePickle):
        read_pickle(data)
    assert not (here / "ran").exists()


@given(some.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_rejected(data: bytes) -> None:
    for read in (read_pickle, read_marshal):
        try:
            read(data)
        except UnsafePickle:
            pass


def test_import_queues_lists_and_sitemaps_and_marks_archives_done(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "urls.txt").write_text("# mine\nhttp://a.example/1\na.example/2\n\nhttp://b.example/done\nmailto:x\n")
    (here / "done.txt").write_text("http://b.example/done\nhttp://a.example/old\n")
    (here / "map.xml").write_bytes(
        b"<urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'><url><loc>http://a.example/map</loc></url></urlset>"
    )
    lines = [
        ("http://c.example/page", "200", "20260102030405"),
        ("http://c.example/down", "503", "20260102030405"),
        ("http://c.example/page", "200", "20250102030405"),
    ]
    cdxj = [f"com,x)/ {stamp} {json.dumps({'url': url, 'status': status})}" for url, status, stamp in lines]
    (here / "index.cdxj").write_text("\n".join([*cdxj, "broken"]))
    records = []
    for url in ("http://d.example/a", "http://d.example/b"):
        http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>hello</p>"
        head = f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-01-02T03:04:05Z\r\n"
        records.append(f"{head}Content-Length: {len(http)}\r\n\r\n".encode() + http + b"\r\n\r\n")
    (here / "plain.warc").write_bytes(records[0] + records[1][:-20])
    (here / "packed.warc.gz").write_bytes(gzip.compress(records[1]) + gzip.compress(records[0])[:-9])
    options = ("--delay", "0", "--no-robots")
    assert run("crawls/job", "done.txt", "--done", *options) == 0
    assert run("crawls/job", "index.cdxj", "plain.warc", "packed.warc.gz", *options) == 3
    assert run("crawls/job", "urls.txt", "map.xml", *options) == 3
    assert run("crawls/job", "urls.txt", *options) == 3
    queued, counts = waiting(here / "crawls" / "job")
    assert set(queued) == {"http://a.example/1", "https://a.example/2", "http://a.example/map"}
    assert counts.skipped == 5
    assert counts.stored == 0
    said = capsys.readouterr().err
    assert "skipped: mailto:x: not a URL that can be crawled" in said
    assert "skipped: index.cdxj, line 4: not CDXJ" in said


def test_imported_captures_are_revisited_when_due(here: Path) -> None:
    """Captures have the time of their visit: one older than the revisit interval is due at once."""
    (here / "index.cdxj").write_text(
        'x)/old 20200101000000 {"url": "http://x.example/old", "status": "200"}\n'
        'x)/new 20990101000000 {"url": "http://x.example/new", "status": "200"}\n'
    )
    assert run("crawls/again", "index.cdxj", "--recrawl", "table", "--delay", "0", "--no-robots") == 0

    async def due() -> Mapping[str, Request]:
        settings = Settings(delay=0, robots=False, recrawl="table")
        frontier = open_sqlite(here / "crawls/again/frontier.db", settings, clock=SystemClock())
        try:
            grant = await frontier.lease(10, batch=10, seconds=60)
            return {request.url: request for lease in grant.leases for request in lease.requests}
        finally:
            await frontier.aclose()

    found = asyncio.run(due())
    assert set(found) == {"http://x.example/old"}
    assert (found["http://x.example/old"].state or {})["seen_at"] == 1577836800.0


class Shop(scrapy.Spider):
    name = "shop"

    def parse(self, response: Any) -> Any: ...

    def parse_item(self, response: Any) -> Any: ...


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as server:
        server.flushall()
        yield server


def left_by_scrapy_redis(server: redis.Redis) -> None:
    """A queue, start URLs, and a dupefilter, written by scrapy-redis itself."""
    spider = Shop()
    queue = PriorityQueue(server, spider, "%(spider)s:requests")
    dupefilter = RFPDupeFilter(server, "shop:dupefilter")
    for request in (
        scrapy.Request("http://a.example/1", callback=spider.parse_item, priority=5, meta={"depth": 2}),
        scrapy.FormRequest("http://a.example/form", formdata={"q": "x"}),
        scrapy.Request("http://a.example/fetched"),
    ):
        assert not dupefilter.request_seen(request)
        if "fetched" not in request.url:
            queue.push(request)
    server.zadd("shop:requests", {pickle.dumps({"url": Evil()}): 0})
    server.rpush("shop:start_urls", "http://b.example/", '{"url": "http://b.example/json", "meta": {"k": 1}}')


def project_of_its_own(folder: Path) -> Path:
    """Copy the tutorial's project and change into it; returns the path of its settings."""
    shutil.copytree(TUTORIAL, folder / "project")
    os.chdir(folder / "project")
    forget_project()
    return folder / "project" / "tutorial" / "settings.py"


def forget_project() -> None:
    """Unload the project's modules, which Python caches per process."""
    for name in [name for name in sys.modules if name.startswith("tutorial")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def jobdir(records: list[bytes]) -> None:
    """Create the folder `state` as Scrapy leaves it with these requests."""
    Path("state/requests.queue").mkdir(parents=True)
    stack = b"".join(record + len(record).to_bytes(4, "big") for record in records)
    Path("state/requests.queue/0").write_bytes(len(records).to_bytes(4, "big") + stack)


VALUES = {
    "since": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "price": Decimal("9.90"),
    "id": UUID(int=77),
    "span": timedelta(minutes=1),
    "tags": {"b", "a"},
    "pair": (1, (2,)),
    "raw": b"text",
    "more": OrderedDict(by={3: "three"}),
}


def test_import_converts_values_that_json_lacks_and_reports_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobdir(
        [
            pickle.dumps(scrapy.Request(f"http://a.example/{number}", meta=cast(Any, meta)).to_dict(), 4)
            for number, meta in enumerate((VALUES, {"since": datetime(2026, 2, 1)}, {"raw": b"\xff"}))
        ]
    )
    assert run("crawls/own", "state") == 3
    queued, _ = waiting(here / "crawls" / "own")
    assert queued["http://a.example/0"].meta == {
        "since": "2026-01-31T12:00:00+00:00", "day": "2026-01-31", "price": "9.90", "id": str(UUID(int=77)),
        "span": 60.0, "tags": ["a", "b"], "pair": [1, [2]], "raw": "text", "more": {"by": {"3": "three"}},
    }  # fmt: skip
    said = capsys.readouterr().err
    assert "changed: meta['since']: a datetime became text, in 2 requests\n" in said
    assert "changed: meta['tags']: a set became a list, in 1 request\n" in said
    assert "skipped: http://a.example/2: meta['raw'] is binary data" in said


def test_import_into_a_scrapy_job_keeps_values_and_applies_options(here: Path) -> None:
    from gossamer.scrapy.requests import restore

    project_of_its_own(here)
    jobdir([pickle.dumps(scrapy.Request("http://a.example/", meta=VALUES).to_dict(), 4)])
    words = ("sayings", "state", "--scrapy", "--frontier", f"sqlite:{here}/job")
    assert run(*words, "--delay", "7") == 0
    assert run(*words, "--max-depth", "3") == 0
    settings = configuration.build(stored_settings(here / "job"))
    assert (settings.delay, settings.max_depth) == (7.0, 3)
    queued, _ = waiting(here / "job")
    assert restore(queued["http://a.example/"], Shop()).meta == VALUES


def test_import_of_a_scrapy_redis_queue(
    store: redis.Redis, redis_server: RedisServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """H56."""
    left_by_scrapy_redis(store)
    before = {name: store.dump(name) for name in sorted(store.keys())}
    assert run("crawls/shop", redis_server.url, "--source-spider", "shop", "--delay", "0", "--no-robots") == 3
    queued, _ = waiting(here / "crawls" / "shop")
    assert set(queued) == {"http://a.example/1", "http://a.example/form", "http://b.example/", "http://b.example/json"}
    assert queued["http://a.example/1"].label == "parse_item"
    assert (queued["http://a.example/1"].priority, queued["http://a.example/1"].depth) == (5, 2)
    assert queued["http://a.example/form"].method == "POST"
    assert queued["http://a.example/form"].body == b"q=x"
    assert {name: store.dump(name) for name in sorted(store.keys())} == before
    assert not (here / "ran").exists()
    said = capsys.readouterr().err
    assert "3 fingerprints were skipped" in said
    assert "it contains more than plain values" in said


def test_import_from_scrapy_redis_skips_seen_requests(
    store: redis.Redis, redis_server: RedisServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gossamer.scrapy.requests import ScrapyRedisFingerprinter, key_of, restore

    left_by_scrapy_redis(store)
    FifoQueue(store, Shop(), "other:requests").push(scrapy.Request("http://a.example/other"))
    store.rename("shop:dupefilter", "seen")
    settings = project_of_its_own(here)
    words = ("shop", redis_server.url, "--scrapy", "--frontier", redis_server.url)
    with pytest.raises(ConfigError, match="differ from those of scrapy-redis"):
        run(*words, "--dupefilter-key", "seen")
    settings.write_text(settings.read_text() + shown_settings("migrate-from-scrapy-redis.md", redis_server.url))
    forget_project()
    with pytest.raises(ConfigError, match="Redis has no key wrong:requests"):
        run(*words, "--queue-key", "wrong:requests", "--dupefilter-key", "seen")
    assert run(*words, "--queue-key", "other:requests") == 0
    # With the frontier that the project names itself.
    assert run(*words[:3], "--dupefilter-key", "seen", "--delay", "0.06") == 3
    assert "posix.system" in capsys.readouterr().err

    async def check() -> None:
        fleet = await open_fleet(redis_server.url, "shop")
        try:
            assert fleet.settings.delay == 0.06
            fingerprint = ScrapyRedisFingerprinter().fingerprint
            seen = scrapy.Request("http://a.example/fetched")
            known = [Request(seen.url, key_of(fleet.secret, fingerprint(seen)), "a.example")]
            assert await fleet.add(known) == 0
            found = []
            for _ in range(50):
                grant = await fleet.lease(10, batch=10, seconds=60)
                found += [restore(request, Shop()) for lease in grant.leases for request in lease.requests]
                await asyncio.sleep(0.02)
            kept = {request.url: request for request in found}
            assert set(kept) == {
                "http://a.example/1", "http://a.example/form", "http://a.example/other", "http://b.example/",
                "http://b.example/json",
            }  # fmt: skip
            assert kept["http://a.example/1"].callback.__name__ == "parse_item"  # type: ignore[union-attr]
            assert type(kept["http://a.example/form"]) is scrapy.FormRequest
        finally:
            await fleet.aclose()

    asyncio.run(check())


def test_unreadable_imported_request_is_not_marked_as_fetched(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every request of a CrawlSpider contains the text of its link, made by lxml. H56."""
    from gossamer.scrapy.requests import key_of

    project_of_its_own(here)
    (text,) = lxml.html.fromstring("<a>more</a>").xpath("//a/text()")
    assert type(text) is not str
    ruled = scrapy.Request("http://a.example/ruled", meta={"rule": 0, "link_text": text})
    odd = scrapy.Request("http://a.example/odd", meta={"share": Fraction(1, 3)})
    records = [pickle.dumps(request.to_dict(), 4) for request in (ruled, odd)]
    jobdir(records)
    prints = {request.url: fingerprint(request) for request in (ruled, odd, scrapy.Request("http://a.example/old"))}
    Path("state/requests.seen").write_text("".join(f"{each.hex()}\n" for each in prints.values()))
    assert run("sayings", "state", "--scrapy", "--frontier", f"sqlite:{here}/job") == 3
    assert "skipped: http://a.example/odd: it contains more than plain values" in capsys.readouterr().err
    queued, _ = waiting(here / "job")
    assert list(queued) == [ruled.url]
    assert b"more" in queued[ruled.url].body

    async def new() -> int:
        frontier = open_sqlite(here / "job" / "frontier.db", Settings(delay=0, robots=False), clock=SystemClock())
        try:
            links = [Request(url, key_of(frontier.secret, each), "a.example") for url, each in prints.items()]
            return await frontier.add(links)
        finally:
            await frontier.aclose()

    # Of the three only the one that was left out is unknown.
    assert asyncio.run(new()) == 1


@pytest.mark.long
def test_import_of_a_jobdir_fetches_no_page_twice(here: Path) -> None:
    project = project_of_its_own(here).parents[1]
    with site() as shop:
        arguments = ("-a", f"site={shop.url}/")
        stop_early = ("-s", "JOBDIR=state", "-s", "CLOSESPIDER_PAGECOUNT=4")
        finish(crawl_with_scrapy("sayings", "", *arguments, *stop_early, project=project))
        assert 4 <= len(shop.asked) < 12
        frontier = f"sqlite:{here}/job"
        assert run("sayings", "state", "--scrapy", "--frontier", frontier) == 0
        options = ("-s", "SCHEDULER=gossamer.scrapy.Scheduler")
        finish(crawl_with_scrapy("sayings", frontier, *arguments, *options, project=project))
        asked = [path for _, path, *_ in shop.asked if path != "/robots.txt"]
        others = (*(f"/page/{number}/" for number in range(2, 7)), *(f"/author/{number}/" for number in range(7)))
        # A start page is asked for by every run of Scrapy, which keeps no fingerprint of it.
        assert Counter(asked) == {"/": 2, **dict.fromkeys(others, 1)}


def test_imported_fingerprints_are_known_in_every_shard(redis_server: RedisServer, here: Path) -> None:
    (here / "done.txt").write_text("".join(f"http://s{number}.example/{number}\n" for number in range(40)))

    async def begin() -> None:
        fleet = await create_fleet(redis_server.url, "wide", Settings(delay=0, robots=False), shards="0-3/4")
        await fleet.aclose()

    async def check() -> None:
        fleet = await open_fleet(redis_server.url, "wide")
        try:
            counts = await fleet.counts()
            assert (counts.skipped, counts.queued, counts.leased, counts.stored) == (40 + 4, 0, 0, 0)
            # Wherever a request with this key turns up, it is known.
            again = [Request(f"http://t{number}.example/", 77, f"t{number}.example") for number in range(20)]
            assert await fleet.add(again) == 0
        finally:
            await fleet.aclose()

    async def know() -> None:
        fleet = await open_fleet(redis_server.url, "wide", worker="import")
        try:
            shards = len(await fleet.shards())
            assert shards == 4
            intake = Importer(fleet, fleet.settings, Known(), clock=SystemClock(), shards=shards)
            await intake.take([ImportedFingerprint(b"f" * 20)])
        finally:
            await fleet.aclose()

    class Known:
        """Map every fingerprint to a known key."""

        changed: Counter[str] = Counter()

        def request(self, found: ImportedRequest) -> Request | str:
            return "none here"

        def seen(self, seen: ImportedFingerprint, shards: int) -> list[Request] | str:
            return stand_ins(77, seen.fingerprint.hex(), shards)

    asyncio.run(begin())
    assert run("wide", "done.txt", "--done", "--frontier", redis_server.url) == 0
    assert run("wide", "done.txt", "--frontier", redis_server.url) == 0
    asyncio.run(know())
    asyncio.run(check())


def test_second_import_keeps_the_jobs_settings(here: Path) -> None:
    """On a folder, where the import itself does not count as a worker."""
    (here / "some.txt").write_text("http://a.example/1\n")
    (here / "more.txt").write_text("http://a.example/2\n")
    frontier = f"folder:{here / 'shared'}"
    assert run("kept", "some.txt", "--done", "--frontier", frontier, "--delay", "7") == 0
    assert run("kept", "more.txt", "--done", "--frontier", frontier, "--max-depth", "3") == 0

    async def look() -> Settings:
        fleet = await open_fleet(frontier, "kept", worker="looks")
        try:
            assert (await fleet.counts()).known == 2
            return fleet.settings
        finally:
            await fleet.aclose()

    settings = asyncio.run(look())
    assert (settings.delay, settings.max_depth) == (7.0, 3)
