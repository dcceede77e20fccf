"""A store that loses its last second under a Scrapy project: start requests and links are stored again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings as ScrapySettings

from gossamer.frontier.backends import open_fleet
from gossamer.model import Counts, Grant, Request
from gossamer.scrapy.bridge import BridgeMessage, FrontierBridge
from gossamer.scrapy.options import read_options
from gossamer.settings import Settings
from gossamer.testing.servers import PostgresServer, RedisServer

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from chainweb import chain_web
from powercut import LOGGED, addresses, choices, cut_power, forget, logged_servers, progress, too_close
from processes import until
from scrapers import scrapy
from standbys import PostgresPair

pytestmark = pytest.mark.timeout(120)


class Scrapy:
    """A receiver that records the bridge's reports."""

    def __init__(self) -> None:
        self.is_open = False
        self.stored = 0
        self.away_after: list[int] = []
        """Number of stored messages at each time the cache of sent keys was cleared."""
        self.grants: list[Grant] = []

    def opened(self, secret: bytes, settings: Settings, known: int) -> None:
        self.is_open = True

    def arrived(self, grant: Grant, *, sent_at: float, written: int) -> None:
        self.grants.append(grant)

    def renewed(self, ends: dict[int, float], lost: Sequence[int]) -> None:
        pass

    def written(self, count: int, keys: Sequence[int], stale: int) -> None:
        self.stored = count

    def away(self) -> None:
        self.away_after.append(self.stored)

    def failed(self, error: BaseException) -> None:
        raise error

    def closed(self) -> None:
        self.is_open = False


@contextmanager
def bridge(url: str) -> Iterator[tuple[FrontierBridge, Scrapy]]:
    """A bridge that is at work."""

    def soon(act: Callable[..., object], *arguments: Any, **named: Any) -> None:
        act(*arguments, **named)

    output, values = (
        Scrapy(),
        {"GOSSAMER_FRONTIER": url, "GOSSAMER_SETTINGS": {"lease_seconds": 2, "forget_seconds": 5}},
    )
    found = FrontierBridge(read_options(ScrapySettings(values), "walk"), output, soon)
    found.start()
    try:
        until(lambda: output.is_open)
        yield found, output
    finally:
        found.finish()
        until(lambda: not output.is_open)


def start_requests(first: int, last: int) -> BridgeMessage:
    return BridgeMessage(tuple(Request(f"http://h{n}.test/", key=n, site=f"h{n}.test") for n in range(first, last)))


def counts(url: str) -> Counts:
    async def look() -> Counts:
        fleet = await open_fleet(url, "walk")
        try:
            return await fleet.counts()
        finally:
            await fleet.aclose()

    return asyncio.run(look())


@pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)
def test_start_requests_lost_by_redis_are_stored_again() -> None:
    with RedisServer(**LOGGED) as server, bridge(server.url) as (sender, output):
        sender.send(start_requests(1, 5))
        until(lambda: output.stored == 1)

        def more() -> None:
            sender.send(start_requests(5, 9))
            until(lambda: output.stored == 2)

        forget(server, more)
        server.start()
        sender.want(1)
        until(lambda: counts(server.url).known == 8)
        assert output.away_after


@pytest.mark.skipif(not PostgresServer.is_there(), reason="PostgreSQL is not installed")
def test_unnoticed_fail_over_clears_the_sent_keys() -> None:
    with PostgresPair() as pair, bridge(pair.url) as (sender, output):
        sender.send(start_requests(1, 5))
        until(lambda: output.stored == 1)
        # The standby has the job by now.
        time.sleep(1.0)
        pair.fall_behind()
        sender.send(start_requests(5, 9))
        until(lambda: output.stored == 2)
        assert not output.away_after
        pair.fail_over(0.0, at_once=True)
        sender.want(1)
        until(lambda: output.away_after == [2])
        until(lambda: counts(pair.url).known == 8)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)
@pytest.mark.parametrize("seed", range(3))
def test_scrapy_processes_lose_no_page_when_servers_lose_data(tmp_path: Path, seed: int) -> None:
    choose, delay = choices(seed), 0.2
    with chain_web(500, hosts=50, seed=seed) as web, logged_servers(1 + seed % 2) as servers:
        options = []
        for name, value in {
            "DNS_RESOLVER": "fleet.loopback.Loopback", "ROBOTSTXT_OBEY": "False", "DOWNLOAD_DELAY": str(delay),
            "GOSSAMER_SETTINGS": json.dumps({"lease_seconds": 5, "commit_seconds": 0.05, "forget_seconds": 5}),
        }.items():  # fmt: skip
            options += ["-s", f"{name}={value}"]
        running = [
            scrapy("walk", addresses(servers), *options, log=tmp_path / f"log{number}", SEEDS=web.seeds[0])
            for number in range(2)
        ]
        try:
            for share in (0.002, 0.2, 0.5):
                progress(web, share)
                cut_power(choose.choice(servers), lost_seconds=choose.uniform(0.5, 3.0))
            for process in running:
                assert process.wait(200) == 0
        finally:
            for process in running:
                process.kill()
                process.wait()
        assert set(web.fetched()) == web.all
        assert not web.impolite(delay), too_close(web, delay)
