"""Crawling from Python."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from processes import stored

import gossamer
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb


class Shop(gossamer.Spider):
    def parse(self, page: gossamer.Page) -> Any:
        yield {"title": page.title}
        yield page.follow(page.links()[0], label="second")

    def parse_second(self, page: gossamer.Page) -> Any:
        yield {"second": page.title}


def test_async_for_gives_every_page() -> None:
    async def titles(web: SimWeb) -> list[str]:
        return [page.title async for page in gossamer.crawl(*web.seeds, delay=0, allow_private=True)]

    with SimWeb(sites=2, pages_per_site=10, page_bytes=2000) as web:
        found = asyncio.run(titles(web))
        plan = web.plan
    assert sorted(found) == sorted(plan.title(site, page) for site in range(2) for page in range(10))


def test_plain_for_gives_every_page_and_its_items() -> None:
    with SimWeb(sites=1, pages_per_site=10, page_bytes=2000) as web:
        pages = list(gossamer.crawl(web.seeds[0], spider=Shop, delay=0, allow_private=True))
    assert [page.label for page in pages] == ["", "second"]
    assert [list(item) for page in pages for item in page.items] == [["title"], ["second"]]


def test_leaving_the_loop_stops_the_crawl() -> None:
    with SimWeb(sites=1, pages_per_site=0, page_bytes=2000) as web:
        for number, _ in enumerate(gossamer.crawl(web.seeds[0], delay=0, allow_private=True)):
            if number == 5:
                break
        before = len(web.log())
        assert 6 <= before < 500
        assert len(web.log()) == before


def test_with_a_job_the_crawl_is_kept_and_resumed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"delay": 0, "allow_private": True, "job": str(tmp_path / "job")}
    with SimWeb(sites=1, pages_per_site=20, page_bytes=2000) as web:
        for number, _ in enumerate(gossamer.crawl(web.seeds[0], batch=1, **options)):
            if number == 5:
                break
        list(gossamer.crawl(web.seeds[0], **options))
        assert set(fetched(web.log()).values()) == {1}
    assert len(stored(tmp_path / "job")) == 20


def test_two_crawls_run_in_one_process() -> None:
    async def both(first: SimWeb, second: SimWeb) -> list[int]:
        async def count(web: SimWeb) -> int:
            return len([page async for page in gossamer.crawl(*web.seeds, delay=0, allow_private=True)])

        return list(await asyncio.gather(count(first), count(second)))

    with (
        SimWeb(sites=1, pages_per_site=12, page_bytes=2000) as one,
        SimWeb(sites=1, pages_per_site=7, page_bytes=2000) as two,
    ):
        assert asyncio.run(both(one, two)) == [12, 7]


@pytest.mark.parametrize(
    ("keyword", "suggestion"),
    [("delai", "'delay'"), ("max_page", "'max_pages'"), ("jobs", "'job'"), ("xyzzy", "docs/reference/settings.md")],
)
def test_an_unknown_keyword_is_a_type_error_with_a_suggestion(keyword: str, suggestion: str) -> None:
    settings: dict[str, Any] = {keyword: 3}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'") as error:
        gossamer.crawl("https://example.com", **settings)
    assert suggestion in str(error.value)
    assert isinstance(error.value, gossamer.ConfigError), "as before"


def test_a_wrong_value_of_a_setting_is_a_config_error() -> None:
    with pytest.raises(gossamer.ConfigError, match="delay"):
        gossamer.crawl("https://example.com", delay="slow")


def test_a_crawl_without_seeds_is_rejected() -> None:
    with pytest.raises(gossamer.ConfigError, match="no seed to crawl from"):
        gossamer.crawl([])


def test_seeds_from_a_file_and_a_list_are_crawled(tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=2, page_bytes=2000) as web:
        (tmp_path / "seeds.txt").write_text(f"# one\n{web.seeds[0]}\n", "utf-8")
        pages = gossamer.crawl(tmp_path / "seeds.txt", iter(web.seeds[1:]), delay=0, allow_private=True)
        assert len(list(pages)) == 4
