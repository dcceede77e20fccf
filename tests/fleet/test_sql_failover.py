"""A database server that fails over to one that lacks its last second: nothing is lost, and no site is hurried."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
sys.path.insert(0, str(Path(__file__).parent))
from chainweb import ChainWeb, chain_web
from processes import command, environment, kill_tree, stored, until
from standbys import MariaPair, Pair, PostgresPair

DELAY = 0.3
LEASE = 4.0
SEEDS = range(10)


@pytest.fixture(params=[PostgresPair, MariaPair], ids=["PostgreSQL", "MariaDB"])
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.param()
    kind = {"PostgresPair": "PostgreSQL", "MariaPair": "MariaDB"}[type(found).__name__]
    from gossamer.testing.sqlservers import MariaServer, PostgresServer

    if not {"PostgreSQL": PostgresServer, "MariaDB": MariaServer}[kind].is_there():
        pytest.skip(f"{kind} is not installed")
    return found


def start(folder: Path, web: ChainWeb, url: str, *options: str) -> subprocess.Popen[str]:
    words = command(folder, web.seeds, *web.options, "--frontier", url, "--delay", str(DELAY), *options)
    words += ["--lease-seconds", str(LEASE), "--workers", "4"]
    return subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment()
    )


def judge(web: ChainWeb, folder: Path, crawl: subprocess.Popen[str], name: str) -> None:
    """Every page is exported once, and no site was requested within its delay."""
    try:
        said = crawl.communicate(timeout=240)[1]
    finally:
        kill_tree(crawl)
    pages, fetched = stored(folder), web.fetched()
    lost, impolite = web.all - set(pages), web.impolite(DELAY)
    print(
        f"{name}: {len(lost)} of {len(web.all)} pages lost, {len(impolite)} gaps {[round(gap, 2) for gap in impolite]},"
        f" {sum(fetched.values()) - len(fetched)} repeated"
    )
    assert crawl.returncode == 0, said[-3000:]
    assert not lost
    assert set(pages) == web.all
    assert set(pages.values()) == {1}
    assert not impolite


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fail_over_that_forgets_a_second_loses_nothing(pair: Pair, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with chain_web(seed=seed) as web, pair:
        folder = tmp_path / "job"
        crawl = start(folder, web, pair.url)
        when = chance.randrange(200, 2400)
        until(lambda: len(web.log()) > when or crawl.poll() is not None, 120)
        pair.fail_over(chance.uniform(0.6, 1.6))
        judge(web, folder, crawl, f"fail-over, seed {seed}")
