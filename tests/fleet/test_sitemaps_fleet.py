"""Sitemaps on frontiers of a fleet: every backend finds their pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gossamer.lab.simweb.process import SimWeb

FAST = ("--allow-private", "--delay", "0", "--commit-seconds", "0.05")


@pytest.fixture(scope="session", params=["redis_server", "postgres_server", "maria_server", "folder"])
def shared_frontier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "folder":
        return f"folder:{tmp_path_factory.mktemp('share')}"
    server: Any = request.getfixturevalue(request.param)
    return str(server.url)


def test_pages_that_only_sitemaps_know_are_crawled_by_a_fleet(shared_frontier: str, tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=12, kinds=("robots-sitemap",), page_bytes=2000) as web:
        words = ["--frontier", shared_frontier, "--job", "listed", "--sitemaps", *FAST]
        done = subprocess.run(
            [sys.executable, "-m", "gossamer", "crawl", *web.seeds, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        verdict = web.judge(sitemaps=True)
        assert not verdict.missed
        assert not verdict.unknown
        read = [entry.url for entry in web.log() if "/sitemap" in entry.url]
        assert len(read) == len(set(read)) == 2 * 3
