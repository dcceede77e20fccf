"""A crawl over several databases by its commands: adding a database, and compacting old rows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer.lab.simweb.log import gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import SqlServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import environment, kill_tree, start, stored, until

DELAY = 0.25


@pytest.fixture(
    scope="session",
    # MariaDB 10.11 sometimes crashed while its clients were killed here.
    params=["postgres_server", pytest.param("maria_server", marks=pytest.mark.long)],
)
def running(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def places(running: SqlServer, empty_databases: Callable[..., list[str]]) -> list[str]:
    found = empty_databases(running, "one", "two", "three")
    if running.scheme == "postgresql":
        # Any password is taken there; the user in MariaDB has none.
        found = [url.replace("@", ":open-sesame@") for url in found]
    return found


def gossamer(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(),
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_database_that_is_added_in_the_middle_takes_its_shards(places: list[str], tmp_path: Path) -> None:
    """The command that moves them is killed twice, and run again; workers that knew two databases find the third."""
    folder = tmp_path / "job"
    with SimWeb(sites=10, pages_per_site=140, page_bytes=2000, latency_seconds=0.01) as web:
        crawl = start(
            folder,
            web,
            "--frontier",
            ",".join(places[:2]),
            "--delay",
            str(DELAY),
            "--workers",
            "2",
            "--shards",
            "6",
            "--forget-seconds",
            "5",
        )
        until(lambda: len(web.log()) > 50)
        words = ("spread", str(folder), "--frontier", ",".join(places))
        for seconds in (0.5, 0.6):
            killed = subprocess.Popen(
                [sys.executable, "-m", "gossamer", *words],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
            )
            time.sleep(seconds)
            killed.kill()
            killed.wait()
        done = gossamer(*words)
        assert done.returncode == 0, done.stderr
        assert "6 shards on " in done.stderr
        assert len(web.log()) < len(web.plan.reachable()), "it was to be in the middle"
        shown = gossamer("status", str(folder), "--frontier", places[2], "--json")
        assert shown.returncode == 0, shown.stderr
        assert "open-sesame" not in shown.stdout + shown.stderr + done.stdout + done.stderr
        views = json.loads(shown.stdout)["shards"]
        assert len(views) == 6
        assert all(view["server"] for view in views)
        assert crawl.wait(150) == 0, crawl.stderr.read() if crawl.stderr else ""
        kill_tree(crawl)
        log = web.log()
        assert not web.judge().missed
        assert not web.judge().repeated
        assert set(stored(folder).values()) == {1}
        assert min(gaps(log).values()) >= DELAY
        assert max(max_overlap(log).values()) == 1
    kept = gossamer("compact", str(folder), "--frontier", places[2])
    assert "0 rows deleted" in kept.stderr
    compacted = gossamer("compact", str(folder), "--frontier", places[2], "--older-than", "0s")
    assert compacted.returncode == 0, compacted.stderr
    assert f"{len(web.plan.reachable()):,} rows deleted" in compacted.stderr


def test_invalid_ages_and_databases_are_refused() -> None:
    assert "use a number with s, m, h, d, or w" in gossamer("compact", "x", "--older-than", "soon").stderr
    refused = gossamer("compact", "x", "--frontier", "redis://127.0.0.1:1/0")
    assert refused.returncode == 2
    assert "only jobs in postgresql or mysql can be compacted" in refused.stderr
