"""Continuous crawls and site quotas in a database."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager

import pytest

from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier_behavior import BIG, QuotaTests, RevisitTests
from gossamer.testing.harness import Harness, outcome, page, pages, scenario
from gossamer.testing.servers import MariaServer, PostgresServer


class _Policies(RevisitTests, QuotaTests):
    url = ""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.sql(settings, self.url)

    @scenario(delay=0.0, site_share=0.1, share_window=100)
    async def test_turns_are_not_enough_for_a_fair_share(self, harness: Harness) -> None:
        """One site has whole batches, the others one page at a time: by turns it would get ten of 25."""
        await harness.frontier.add(pages(*range(1_000_000, 1_000_300), site=BIG))
        await harness.frontier.add([page(site * 1000, f"{site}.example") for site in range(15)])
        handed: Counter[str] = Counter()
        for _ in range(150):
            (lease,) = (await self.lease(harness.frontier, 1, batch=10)).leases
            handed[lease.site] += len(lease.requests)
            more = () if lease.site == BIG else (page(lease.requests[0].key + 1, lease.site),)
            await harness.frontier.complete([outcome(lease, one.key, links=more) for one in lease.requests])
        assert 0.08 < handed[BIG] / handed.total() < 0.21


class TestPostgreSQL(_Policies):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> None:
        self.url = postgres_server.url


class TestMariaDB(_Policies):
    @pytest.fixture(autouse=True)
    def _server(self, maria_server: MariaServer) -> None:
        self.url = maria_server.url


class TestShards(QuotaTests):
    """Eight shards with few sites: some are alone in theirs."""

    test_a_crawl_of_one_site_is_not_slowed = None  # type: ignore[assignment]

    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> None:
        self.url = postgres_server.url

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.sql(settings, self.url, shards="8")
