from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier import FrontierSuite
from gossamer.testing.harness import Harness, pages
from gossamer.testing.servers import RedisServer

HOSTILE = Path(__file__).parents[2] / "../shared/suites/hostile-strings/blns.json"


class _Ours(FrontierSuite):
    def strings(self) -> list[str]:
        if not HOSTILE.exists():
            pytest.skip(f"{HOSTILE} is not there: hostile strings are not checked")
        return [*super().strings(), *json.loads(HOSTILE.read_text("utf-8"))]


class TestMemory(_Ours):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.memory(settings)


class TestSqlite(_Ours):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.sqlite(settings)


class TestRemote(_Ours):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.remote(settings)


class TestRedis(_Ours):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url)


class TestRedisFolding(TestRedis):
    """Queues are folded from four requests on."""

    # It wants them all in one batch, and a batch may end where a block begins.
    test_p3_an_add_whose_caller_went_away_adds_each_key_once = None  # type: ignore[assignment]

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url, fold=4)


class TestRedisShards(_Ours):
    """Six shards on two servers."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer, second_redis_server: RedisServer) -> None:
        self.url = f"{redis_server.url},{second_redis_server.url}"

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url, shards="6")


WORKER = """
import asyncio, sys
from pathlib import Path
from gossamer.engine.remote import RemoteFrontier, connect
from gossamer.model import Outcome

async def main(folder, name, dies_after):
    connection, _ = await connect(Path(folder), worker=name)
    frontier = RemoteFrontier(connection)
    done = 0
    while (grant := await frontier.lease(2, batch=3, seconds=3600)).job != "finished":
        for lease in grant.leases:
            if done >= dies_after:
                print("dying", flush=True)
                await asyncio.sleep(3600)
            await frontier.complete([
                Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=one.key, status="done")
                for one in lease.requests
            ])
            done += len(lease.requests)
        if not grant.leases:
            await frontier.idle(grant)
    print("finished", done, flush=True)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_p8_processes_share_one_owner_and_one_may_be_killed() -> None:
    async def run() -> None:
        async with harnesses.remote(Settings(delay=0.0)) as harness:
            for site in range(20):
                await harness.frontier.add(pages(*range(site * 100, site * 100 + 20), site=f"{site}.example"))
            workers = [
                await asyncio.create_subprocess_exec(
                    sys.executable, "-c", WORKER, str(harness.path.parent), name, dies_after, stdout=subprocess.PIPE
                )
                for name, dies_after in (("doomed", "5"), ("one", "9999"), ("two", "9999"))
            ]
            try:
                doomed, *others = workers
                assert doomed.stdout is not None
                if await doomed.stdout.readline() == b"dying\n":
                    doomed.kill()
                said = [(await worker.communicate())[0].split() for worker in others]
            finally:
                for worker in workers:
                    if worker.returncode is None:
                        worker.kill()
                    await worker.wait()
            assert all(words[0] == b"finished" for words in said)
            counts = await harness.frontier.counts()
            assert (counts.done, counts.stale, counts.leased, counts.finished) == (400, 0, 0, True)

    asyncio.run(run())
