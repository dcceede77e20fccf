"""Politeness as seen by the server: lanes, per-site settings, Retry-After, back-off, traps, and budgets."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from processes import crawl, environment, four_is_long, rows, stored

from gossamer.lab.simweb.log import fetched, gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb


def settings_file(folder: Path, text: str) -> Path:
    (folder / "gossamer.toml").write_text(text)
    return folder


def crawl_in(folder: Path, web: SimWeb, *options: str) -> object:
    """A crawl that is started in `folder`, whose gossamer.toml it reads."""
    import subprocess

    from processes import command

    return subprocess.run(
        command(folder / "job", web.seeds, *options),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )


@four_is_long
def test_lanes_keep_the_rate_and_fetch_in_parallel(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=1, pages_per_site=40, page_bytes=2000, latency_seconds=0.3) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0.05", "--per-site", "4", "--batch", "4", "--workers", workers)
        assert done.returncode == 0, done.stderr
        log = web.log()
        assert not web.judge().missed
        assert not web.judge().repeated
    assert 2 <= max(max_overlap(log).values()) <= 4
    spans = sorted(entry.arrived_at for entry in log)
    # Four lanes with four delays each: in any second at most one request a delay, and one for each lane to start with.
    assert all(later - first >= 0.05 * (20 - 4) for first, later in zip(spans, spans[20:], strict=False))


@four_is_long
def test_one_site_can_have_its_own_delay_headers_and_budget(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=3, pages_per_site=12, page_bytes=2000) as web:
        slow, small = (web.plan.url(site).split("/")[2] for site in (0, 1))
        settings_file(
            tmp_path,
            f'delay = 0.02\n[sites."{slow}"]\ndelay = 0.2\nheaders = {{ "User-Agent" = "guest" }}\n'
            f'[sites."{small}"]\nbudget = 5\n',
        )
        crawl_in(tmp_path, web, "--workers", workers)
        log = web.log()
    least = gaps(log)
    assert least[slow] >= 0.2
    assert 0.02 <= min(gap for site, gap in least.items() if site != slow) < 0.2
    assert {entry.agent for entry in log if entry.site == slow} == {"guest"}
    assert sum(small in url for url in stored(tmp_path / "job")) == 5
    assert len(stored(tmp_path / "job")) == 12 + 5 + 12


def test_retry_after_holds_the_whole_site_across_restarts(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=1, pages_per_site=14, page_bytes=2000, kinds=("flaky",), retry_after_seconds=2) as web:
        crawl(tmp_path / "job", web, "--delay", "0", "--max-seconds", "0.6")
        crawl(tmp_path / "job", web, "--delay", "0", "--workers", workers)
        log = web.log()
        assert not web.judge().missed
    refusals = [entry for entry in log if entry.status in (429, 503)]
    assert len(refusals) >= 2
    for refusal in refusals:
        following = [entry.arrived_at for entry in log if entry.arrived_at > refusal.headers_at]
        assert not following or min(following) - refusal.headers_at >= 2


@four_is_long
def test_an_unreachable_site_is_closed_and_delays_no_other(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=4, pages_per_site=60, page_bytes=2000) as web:
        web.darken(0)
        done = crawl(
            tmp_path / "job", web, "--delay", "0.01", "--site-failures", "3", "--no-robots", "--workers", workers
        )
        assert done.returncode == 3, done.stderr
        tries = sum(entry.origin in web.url(0) for entry in web.log())
    assert tries <= 3
    assert len(stored(tmp_path / "job")) == 3 * 60 + 1


@four_is_long
@pytest.mark.parametrize("trap", ["calendar", "sessions", "deep", "soft404", "facets"])
def test_a_trap_ends_at_the_budget_and_other_pages_are_fetched(tmp_path: Path, trap: str, workers: str) -> None:
    with SimWeb(sites=2, pages_per_site=20, page_bytes=2000, kinds=(trap, "plain")) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--site-budget", "150", "--workers", workers)
        assert done.returncode == 0, done.stderr
        missed = web.judge().missed
        asked = fetched(web.log())
    assert not missed
    assert sum(asked.values()) <= 150 + 20


@four_is_long
def test_adaptive_delay_follows_the_latency_of_a_site_and_keeps_its_crawl_delay(tmp_path: Path, workers: str) -> None:
    kinds = ("plain", "robots-delay")
    with SimWeb(
        sites=2, pages_per_site=7, page_bytes=2000, latency_seconds=0.2, kinds=kinds, crawl_delay_seconds=0.4
    ) as web:
        crawl(tmp_path / "job", web, "--delay", "0.01", "--adaptive-delay", "--batch", "2", "--workers", workers)
        log = web.log()
        assert not web.judge().missed
    plain, slow = ([entry for entry in log if entry.origin in web.url(site)] for site in (0, 1))
    assert min(later.arrived_at - first.headers_at for first, later in pairwise(plain[4:])) >= 0.15
    assert min(later.arrived_at - first.headers_at for first, later in pairwise(slow)) >= 0.4


def test_dfs_goes_deep_before_wide(tmp_path: Path) -> None:
    with SimWeb(sites=1, pages_per_site=31, page_bytes=1000, links_per_page=2) as web:
        crawl(tmp_path / "dfs", web, "--delay", "0", "--strategy", "dfs", "--batch", "1")
        crawl(tmp_path / "bfs", web, "--delay", "0", "--batch", "1")
    deep = [row["depth"] for row in rows(tmp_path / "dfs" / "pages.jsonl")]
    wide = [row["depth"] for row in rows(tmp_path / "bfs" / "pages.jsonl")]
    assert wide == sorted(wide)
    assert deep[:4] == [0, 1, 2, 3]
