from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import pytest
from hypothesis import settings

from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier_machine import FrontierMachine
from gossamer.testing.harness import Harness
from gossamer.testing.servers import RedisServer


class MemoryMachine(FrontierMachine):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.memory(settings)


class SqliteMachine(FrontierMachine):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.sqlite(settings)


class RemoteMachine(FrontierMachine):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.remote(settings)


class RedisMachine(FrontierMachine):
    url: ClassVar[str]

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url, fold=2)


class RedisShardsMachine(FrontierMachine):
    url: ClassVar[str]

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url, shards="3", fold=2)


class TestMemory(MemoryMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


class TestSqlite(SqliteMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


class TestRemote(RemoteMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


class TestRedis(RedisMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=30, stateful_step_count=50, deadline=None)

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        RedisMachine.url = redis_server.url


class TestRedisShards(RedisShardsMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=10, stateful_step_count=50, deadline=None)

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer, second_redis_server: RedisServer) -> None:
        RedisShardsMachine.url = f"{redis_server.url},{second_redis_server.url}"
