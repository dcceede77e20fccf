"""`gossamer bench`: measures everything, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from gossamer.lab.bench import measure_archive, measure_store
from gossamer.lab.plan import read_figures
from gossamer.testing.servers import RedisServer


def test_measuring_a_store_leaves_it_unchanged(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
        store.set("mine", "stays")
        found = measure_store(redis_server.url, known=1000, pages=64)
        assert store.keys() == [b"mine"]
    assert found.in_memory
    assert found.client_cpu_seconds > 0
    assert 20 < found.queued_bytes < 1000
    assert found.done_bytes < 1000
    assert found.again_bytes < 1000


def test_an_archive_is_smaller_than_its_pages() -> None:
    spent, ratio = asyncio.run(measure_archive(20))
    assert spent > 0
    assert 0.1 < ratio < 0.9


@pytest.mark.long
def test_the_command_writes_figures_that_a_plan_can_use(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = [sys.executable, "-m", "gossamer", "bench", "--quick", "--no-servers", "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    figures = read_figures(out)
    assert list(figures.frontiers) == ["sqlite"]
    assert 0 < figures.small_page_cpu_seconds < 0.1
    assert figures.machine in done.stdout
