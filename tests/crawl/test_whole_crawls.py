"""Whole crawls of a generated web, verified by the server's log and the output files."""

from __future__ import annotations

import json
from pathlib import Path

from processes import crawl, four_is_long, rows, stored

from gossamer.lab.simweb.log import answered, fetched, gaps, max_overlap, robots_fetches
from gossamer.lab.simweb.process import SimWeb

DELAY = 0.05
KINDS = ("plain", "links", "bodies", "robots", "errors", "flaky", "resets")


def test_every_allowed_page_is_fetched_once_and_politely(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=42, pages_per_site=12, kinds=KINDS, page_bytes=3000, crawl_delay_seconds=0.2) as web:
        done = crawl(
            tmp_path / "job",
            web,
            "--delay",
            str(DELAY),
            "--workers",
            workers,
            "--fetch-seconds",
            "2",
            "--site-failures",
            "2",
        )
        assert done.returncode == 3, done.stderr
        verdict = web.judge()
        log = web.log()
    assert not verdict.missed
    assert not verdict.forbidden
    assert not verdict.repeated
    assert not verdict.unknown
    assert min(gaps(log).values()) >= DELAY
    assert max(max_overlap(log).values()) == 1
    pages = stored(tmp_path / "job")
    assert set(pages.values()) == {1}
    assert set(answered(log)) <= set(pages)
    assert set(pages) <= set(fetched(log))


@four_is_long
def test_robots_txt_is_asked_for_once_a_site(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=6, pages_per_site=10, page_bytes=2000) as web:
        crawl(tmp_path / "job", web, "--delay", "0", "--workers", workers, "--batch", "2")
        asked = robots_fetches(web.log())
    assert len(asked) == 6
    assert set(asked.values()) == {1}


def test_max_pages_is_exact(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=10, pages_per_site=30, page_bytes=2000) as web:
        for limit in (57, 57, 121):
            done = crawl(tmp_path / "job", web, "--delay", "0", "--workers", workers, "--max-pages", str(limit))
            assert done.returncode == 0, done.stderr
            assert sum(stored(tmp_path / "job").values()) == limit
        assert sum(fetched(web.log()).values()) == 121


@four_is_long
def test_a_crawl_goes_on_where_max_pages_ended_it(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=3, pages_per_site=20, page_bytes=2000) as web:
        crawl(tmp_path / "job", web, "--delay", "0", "--max-pages", "10", "--workers", workers)
        done = crawl(tmp_path / "job", web, "--delay", "0", "--max-pages", "1000", "--workers", workers)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
        assert not web.judge().repeated
    assert set(stored(tmp_path / "job").values()) == {1}


@four_is_long
def test_depth_is_counted_from_the_seeds(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=1, pages_per_site=60, page_bytes=2000, links_per_page=2) as web:
        crawl(tmp_path / "job", web, "--delay", "0", "--max-depth", "2", "--workers", workers)
    depths = [row["depth"] for row in rows(tmp_path / "job" / "pages.jsonl")]
    assert max(depths) == 2
    assert depths.count(0) == 1


def test_items_of_every_page_are_stored_once(tmp_path: Path, workers: str) -> None:
    spider = tmp_path / "shop.py"
    spider.write_text(
        "import gossamer\n\n"
        "class Shop(gossamer.Spider):\n"
        "    def parse(self, page):\n"
        "        for item in page.css('div.item'):\n"
        "            name, price = item.css('.name::text').get(), item.css('.price::text').get()\n"
        "            yield {'url': page.url, 'name': name, 'price': price}\n"
        "        yield from page.follow_all()\n"
    )
    with SimWeb(sites=4, pages_per_site=15, page_bytes=3000) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--spider", str(spider), "--workers", workers)
        assert done.returncode == 0, done.stderr
        plan = web.plan
    found = sorted((item["url"], item["name"], item["price"]) for item in rows(tmp_path / "job" / "items.jsonl"))
    expected = sorted(
        (plan.url(site, plan.path(site, page)), item["name"], item["price"])
        for site in range(4)
        for page in range(15)
        for item in plan.items(site, page)
    )
    assert found == expected


@four_is_long
def test_the_summary_as_json_agrees_with_the_files(tmp_path: Path, workers: str) -> None:
    with SimWeb(sites=3, pages_per_site=10, page_bytes=2000) as web:
        done = crawl(tmp_path / "job", web, "--delay", "0", "--json", "--workers", workers)
    summary = json.loads(done.stdout)
    assert summary["state"] == "finished"
    assert summary["counts"]["stored"] == sum(stored(tmp_path / "job").values()) == 30


@four_is_long
def test_a_frontier_in_memory_stores_the_same_pages(tmp_path: Path, workers: str) -> None:
    options = ("--delay", "0", "--frontier", "memory:", "--workers", workers)
    with SimWeb(sites=3, pages_per_site=10, page_bytes=2000) as web:
        done = crawl(tmp_path / "job", web, *options)
        assert done.returncode == 0, done.stderr
        again = crawl(tmp_path / "job", web, *options)
        assert not web.judge().missed
        assert not web.judge().repeated
    assert again.returncode == 2
    assert "--job" in again.stderr
    assert set(stored(tmp_path / "job")) == set(web.plan.reachable())
    assert not (tmp_path / "job" / "frontier.db").exists()
