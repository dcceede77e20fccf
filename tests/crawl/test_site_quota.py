"""Site quotas and priorities in whole crawls, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer.engine.links import MAX_SCORE, Linker, RecentKeys
from gossamer.extract.spider import Spider
from gossamer.frontier.policy import SiteQuota
from gossamer.lab.virtual_web import play
from gossamer.model import Request
from gossamer.settings import Settings, SiteSettings

SECRET = b"0123456789abcdef"


def test_a_big_site_keeps_to_its_share_while_others_are_ready() -> None:
    """Two fetches at once, and a site with eight lanes that would take more than a third of them."""
    small = {f"small{number}.test": 40 for number in range(15)}
    stage, done = play(
        {"big.test": 500, **small},
        seconds_each=1.0,
        delay=0.0,
        concurrency=2,
        batch=4,
        share_window=100,
        sites={"big.test": SiteSettings(lanes=8)},
    )
    assert done.counts.done == 500 + 15 * 40
    busy = [asked.host for asked in stage.asked[:600]]
    for start in range(100, 500, 50):
        assert busy[start : start + 100].count("big.test") <= 20
    assert {asked.host for asked in stage.asked[-300:]} == {"big.test"}, "what was left of it came last, and fast"


def test_a_crawl_of_one_site_takes_the_same_time_with_a_share() -> None:
    took = [
        max(play({"a.test": 400}, delay=0.5, site_share=share, share_window=10)[0].times("a.test"))
        for share in (0.1, 1.0)
    ]
    assert took[0] == pytest.approx(took[1], rel=0.05)


def test_a_share_looks_back_half_a_window_at_least() -> None:
    share = SiteQuota(Settings(site_share=0.1, share_window=100))
    assert share.left("a") == 10
    assert not share.count("a", 10)
    assert (share.left("a"), share.left("b")) == (0, 10)
    assert share.count("b", 40), "half a window is full"
    assert (share.left("a"), share.left("b")) == (0, 0), "and is still looked at"
    assert share.count("c", 50)
    assert (share.left("a"), share.left("b"), share.left("c")) == (10, 10, 0)


def test_few_counters_are_kept() -> None:
    share = SiteQuota(Settings(site_share=0.1, share_window=1000))
    for site in range(100_000):
        share.count(f"{site}.test", 1)
    assert len(share._now) + len(share._before) <= 1000


class Scored(Spider):
    def score(self, request: Request) -> Any:
        path = request.url.rpartition("/")[2]
        if path == "bad":
            raise ValueError("no score")
        return {"huge": 10**9, "low": -(10**9), "word": "many"}.get(path, int(path) if path.isdigit() else 0)


def linked(*paths: str) -> dict[str, int]:
    linker = Linker(Settings(), SECRET, RecentKeys(), score=Scored().score)
    page = Request("http://a.test/", site="a.test")
    return {
        link.url.rpartition("/")[2]: link.priority
        for link in linker.follow(page, tuple(f"http://a.test/{path}" for path in paths))
    }


def test_links_get_the_priority_that_the_spider_scores() -> None:
    assert linked("7", "-", "huge", "low") == {"7": 7, "-": 0, "huge": MAX_SCORE, "low": -MAX_SCORE}


def test_a_score_that_raises_costs_the_link_its_priority_only() -> None:
    assert linked("bad", "word", "5") == {"bad": 0, "word": 0, "5": 5}


def test_a_priority_of_the_spiders_own_goes_before_its_score() -> None:
    linker = Linker(Settings(), SECRET, RecentKeys(), score=Scored().score)
    page = Request("http://a.test/", site="a.test")
    made = (Request("http://a.test/7", priority=3), Request("http://a.test/8"))
    assert [link.priority for link in linker.adopt(page, made)] == [3, 8]


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "best", "random"])
def test_a_score_orders_the_crawl_in_every_strategy(strategy: str) -> None:
    from gossamer.jobs.local_run import LocalRun
    from gossamer.lab.virtual_time import LoopClock, run
    from gossamer.lab.virtual_web import Stage

    async def crawl() -> list[str]:
        clock = LoopClock()
        stage, spider = Stage(clock, {"a.test": 30}, lambda host, path, at: None), Scored()
        spider.fetch_middleware = [stage.middleware]
        settings = Settings(strategy=strategy, batch=1)  # type: ignore[arg-type]
        await LocalRun(None, settings, ["http://a.test/"], spider=spider, clock=clock).run()
        return [asked.path for asked in stage.asked]

    assert run(crawl()) == ["/", *(f"/{number}" for number in range(29, 0, -1))]
