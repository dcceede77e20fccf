"""A login on a fleet: the site's cookies move with it to other workers and machines."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from gossamer.testing.servers import RedisServer, SqlServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import command, environment, kill_tree
from test_login import PASSWORD, SPIDER, Members


@pytest.fixture(scope="session", params=["redis_server", "postgres_server"])
def server(request: pytest.FixtureRequest) -> RedisServer | SqlServer:
    found: RedisServer | SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def frontier(server: RedisServer | SqlServer, empty_databases: Callable[..., list[str]]) -> str:
    """The address of a frontier for a fleet, empty."""
    if isinstance(server, SqlServer):
        return empty_databases(server, "members")[0]
    with redis.Redis.from_url(server.url) as store:
        store.flushall()
    return server.url


def test_a_login_goes_along_when_its_site_moves_to_other_workers(frontier: str, tmp_path: Path) -> None:
    """Three workers, whose leases are short, take turns with the site; then all are killed, and three others go on."""
    spider = tmp_path / "members.py"
    spider.write_text(SPIDER)
    options = ("--delay", "0", "--no-robots", "--workers", "3", "--batch", "2", "--lease-seconds", "2")
    known = {**environment(), "LOGIN_PASSWORD": PASSWORD}
    with Members(60) as web:
        words = command(tmp_path / "job", [web.url()], "--frontier", frontier, "--spider", str(spider), *options)
        first = subprocess.Popen(words, env=known, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        while sum(asked.target[1:].isdecimal() for asked in web.log) < 20:
            assert first.poll() is None
            time.sleep(0.01)
        kill_tree(first)
        again = subprocess.run(words, env=known, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 0, again.stderr
        inside = [asked for asked in web.log if asked.target == "/home" or asked.target[1:].isdecimal()]
        assert {asked.target for asked in inside} == {"/home", *(f"/{number}" for number in range(60))}
        assert {asked.headers.get("cookie") for asked in inside} == {"member=yes"}
        assert [asked.target for asked in web.log].count("/in") == 1
