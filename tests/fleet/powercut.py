"""Power cuts of real Redis servers: everything that was acknowledged and not synced is lost."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from chainweb import ChainWeb
from processes import stored, until

LOGGED: dict[str, Any] = {"appendonly": "yes", "appendfsync": "everysec", "auto_aof_rewrite_percentage": "0"}
"""A server whose append-only file only grows, so that a copy of it is what was on the disk at that moment."""


@contextmanager
def logged_servers(count: int, **options: str) -> Iterator[list[RedisServer]]:
    """Servers with an append-only file."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(**{**LOGGED, **options})) for _ in range(count)]


def cut_power(server: RedisServer, *, lost_seconds: float, down_seconds: float = 0.0) -> None:
    """kill -9 of a server that then comes back without what it acknowledged in its last seconds."""
    forget(server, lambda: time.sleep(lost_seconds))
    time.sleep(down_seconds)
    server.start()


def forget(server: RedisServer, meanwhile: Callable[[], None]) -> None:
    """kill -9 of a server after something else has happened, all of which it forgets."""
    files, kept = server.folder / "appendonlydir", server.folder / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    # Redis writes the file before it answers, and cuts off half a command when it reads it.
    shutil.copytree(files, kept)
    meanwhile()
    server.kill()
    shutil.rmtree(files)
    kept.rename(files)


def is_whole(web: ChainWeb, folder: Path, *, delay: float) -> None:
    """Every page of the web is in the export once, and no host had two requests within its delay."""
    found = stored(folder)
    missing = web.all - set(found)
    assert not missing, f"{len(missing)} of {len(web.all)} pages are not in the export"
    assert set(found) == web.all
    assert set(found.values()) == {1}
    assert not web.impolite(delay), f"less than {delay} apart: {too_close(web, delay)}"


def too_close(web: ChainWeb, delay: float) -> list[str]:
    """Requests to the same host within its delay, with their times since the first of all, and their connections."""
    log = sorted(web.log(), key=lambda entry: entry.arrived_at)
    last: dict[str, Any] = {}
    found: list[str] = []
    began = log[0].arrived_at
    for entry in log:
        before = last.get(entry.origin)
        if before is not None and entry.arrived_at - before.headers_at < delay:
            times = " ".join(f"{one.arrived_at - began:.2f} ({one.port} {one.target})" for one in (before, entry))
            found.append(times)
        last[entry.origin] = entry
    return found


def progress(web: ChainWeb, share: float) -> None:
    """Wait until this share of the pages has been requested."""
    until(lambda: len(web.fetched()) >= share * web.chain.pages, 120)


def choices(seed: int) -> random.Random:
    """What is left to chance in a test."""
    return random.Random(f"power cut {seed}")


def addresses(servers: Sequence[RedisServer]) -> str:
    """Servers as a frontier takes them."""
    return ",".join(server.url for server in servers)


def run_id(server: RedisServer) -> str:
    """Another after each start."""
    with redis.Redis.from_url(server.url) as store:
        return str(store.info("server")["run_id"])
