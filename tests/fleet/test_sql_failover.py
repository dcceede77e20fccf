"""A database fail-over that loses the last second: no page is lost, and the delay holds."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.clock import SystemClock
from gossamer.frontier.backends import check
from gossamer.model import Finding
from gossamer.testing.servers import MariaServer, PostgresServer, SqlServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
sys.path.insert(0, str(Path(__file__).parent))
from chainweb import ChainWeb, chain_web
from processes import command, environment, kill_tree, stored, until
from standbys import MariaPair, Pair, PostgresPair, Rewound

DELAY = 0.3
LEASE = 4.0
SEEDS = range(10)


@pytest.fixture(params=[PostgresPair, MariaPair], ids=["PostgreSQL", "MariaDB"])
def pair(request: pytest.FixtureRequest) -> Pair:
    kind: type[Pair] = request.param
    if not kind.server.is_there():
        pytest.skip(f"{kind.server.__doc__} is not installed")
    return kind()


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


def test_doctor_reports_the_effect_of_a_fail_over(pair: Pair) -> None:
    async def found(url: str) -> dict[str, Finding]:
        return {one.subject: one async for one in check(url, clock=SystemClock())}

    with pair:
        alone = asyncio.run(found(pair.primary.url))["standbys"]
        assert alone.state == "good"
        assert "its asynchronous standby repeats the pages that are missing there" in alone.says
        # In several databases a page and its links may be apart, and nothing bounds how far behind a standby is.
        several = asyncio.run(found(f"{pair.primary.url},{pair.standby.url}"))["standbys"]
        assert several.state == "weak"
        assert "lacks more than 10 s (forget_seconds) loses pages" in several.says
        assert "--forget-seconds" in several.mend
        refused = asyncio.run(found(pair.standby.url))["frontier"]
        assert refused.state == "bad"
        assert "standby" in refused.says or "read-only" in refused.says


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
        pair.fail_over(chance.uniform(0.6, 1.6), at_once=seed % 2 == 0)
        judge(web, folder, crawl, f"fail-over, seed {seed}")


@pytest.fixture(params=[PostgresServer, MariaServer], ids=["PostgreSQL", "MariaDB"])
def two(request: pytest.FixtureRequest) -> Iterator[tuple[SqlServer, SqlServer]]:
    kind: type[PostgresServer] | type[MariaServer] = request.param
    if not kind.is_there():
        pytest.skip(f"{kind.__doc__} is not installed")
    with kind(in_memory=True) as one, kind(in_memory=True) as two:
        yield one, two


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("survivors", ["workers live", "workers die"])
@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_databases_one_forgets_a_second(
    two: tuple[SqlServer, SqlServer], survivors: str, seed: int, tmp_path: Path
) -> None:
    """Its data are those of a second before. Links that the other one's pages had brought it come from the outbox."""
    chance = random.Random(seed)
    with chain_web(seed=seed) as web:
        folder, url = tmp_path / "job", f"{two[0].url},{two[1].url}"
        options = ("--shards", "8", "--forget-seconds", "5")
        crawl = start(folder, web, url, *options)
        victim = Rewound(two[seed % 2])
        when = chance.randrange(200, 2400)
        until(lambda: len(web.log()) > when or crawl.poll() is not None, 120)
        victim.keep()
        time.sleep(chance.uniform(0.6, 1.6))
        if survivors == "workers die":
            kill_tree(crawl)
        victim.forget()
        if survivors == "workers die":
            crawl = start(folder, web, url, *options)
        judge(web, folder, crawl, f"two databases, {survivors}, seed {seed}")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_side_forgets_a_second_while_shards_move(
    two: tuple[SqlServer, SqlServer], side: str, seed: int, tmp_path: Path
) -> None:
    """At any moment of `gossamer spread`, which is run again where it fails; workers find each shard in one place."""
    chance = random.Random(seed)
    with chain_web(seed=seed) as web:
        folder = tmp_path / "job"
        crawl = start(folder, web, two[0].url, "--shards", "4", "--forget-seconds", "5")
        victim = Rewound(two[side == "target"])
        until(lambda: len(web.log()) > 300 or crawl.poll() is not None, 120)
        url = f"{two[0].url},{two[1].url}"
        spread = spreading(folder, url)
        time.sleep(chance.uniform(2.0, 12.0))
        victim.keep()
        time.sleep(chance.uniform(0.6, 1.6))
        victim.forget()
        for _ in range(10):
            if spread.wait(200) == 0:
                break
            spread = spreading(folder, url)
        assert spread.returncode == 0
        judge(web, folder, crawl, f"spread, the {side} forgets, seed {seed}")


def spreading(folder: Path, url: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "gossamer", "spread", str(folder), "--frontier", url]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
