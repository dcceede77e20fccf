from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rawweb import RawWeb, reply
from siphashc import siphash

from gossamer.engine import near_duplicates
from gossamer.engine.near_duplicates import NearDuplicates
from gossamer.engine.parsing import Extracted, SpiderRunner
from gossamer.extract.spider import Spider
from gossamer.model import Lease, Request, Response
from gossamer.settings import Settings
from gossamer.storage.reader import open_stored


def words(seed: int) -> str:
    random_ = random.Random(seed)
    return " ".join("".join(random_.choices("abcdefgh", k=5)) for _ in range(300))


STORY, OTHER = words(1), words(2)


def html(title: str, text: str, *hrefs: str) -> bytes:
    links = "".join(f'<a href="{href}">x</a>' for href in hrefs)
    return reply(f"<title>{title}</title><nav>{title} {links}</nav><h1>{title}</h1><p>{text}</p>")


def lease(memo: dict[str, Any], *keys: int, lane: int = 0) -> Lease:
    requests = tuple(Request("http://s.example/", key) for key in keys)
    return Lease(site="s.example", lane=lane, token=1, requests=requests, ttl=60, delay=1, memo=memo)


def test_one_of_several_near_duplicates_is_stored_and_all_are_recorded(tmp_path: Path) -> None:
    """Their links are followed like those of any page; a page with little text is no copy."""
    with RawWeb() as web:
        web.answers = {
            "/robots.txt": reply("", status="404 Not Found"),
            "/": html("Home", OTHER, "/a", "/b?session=1", "/short1", "/short2"),
            "/a": html("Story", STORY),
            "/b?session=1": html("The story, printed 5 May", STORY, "/c"),
            "/c": html("The story again", STORY + " edited"),
            "/short1": html("Photo", "a picture"),
            "/short2": html("Photo", "a picture"),
        }
        command = [sys.executable, "-m", "gossamer", "crawl", f"http://127.0.0.1:{web.port}/", "--job", str(tmp_path)]
        options = ["--delay", "0", "--allow-private", "--dedupe", "--extract", "title=h1::text"]
        sinks = ["--sink", "jsonl", "--sink", "warc", "--quiet", "--json"]
        done = subprocess.run([*command, *options, *sinks], capture_output=True, check=True, timeout=60)
    rows = {json.loads(line)["url"].rpartition("/")[2]: json.loads(line) for line in (tmp_path / "pages.jsonl").open()}
    assert set(rows) == {"", "a", "b?session=1", "c", "short1", "short2"}
    copies = {name for name, row in rows.items() if row.get("copy_of")}
    assert copies == {"b?session=1", "c"}
    assert {rows[name]["copy_of"] for name in copies} == {rows["a"]["simhash"]}
    assert json.loads(done.stdout)["copies"] == 2
    titles = [json.loads(line)["title"] for line in (tmp_path / "items.jsonl").open()]
    assert sorted(titles) == ["Home", "Photo", "Photo", "Story"]
    with open_stored(tmp_path) as stored:
        kept = {page.url.rpartition("/")[2] for page in stored.pages()}
        assert kept == {"", "a", "short1", "short2"}


def test_stored_simhashes_move_with_the_site_between_workers() -> None:
    """A page fetched again, after a kill or on a revisit, is no copy of itself; lanes learn of each other."""
    memo: dict[str, Any] = {}
    first = NearDuplicates(lease(memo, 1, 2, 3))
    assert first.saw(1, 0) is None
    assert first.note(1) == {}
    assert first.saw(2, 0b111) == 0
    assert first.saw(3, 0b1111_0000) is None
    memo |= first.note(3)
    second = NearDuplicates(lease(memo, 4, lane=1))
    assert second.saw(1, 1) is None
    assert second.saw(4, 0b1111_0001) == 0b1111_0000
    again = NearDuplicates(lease(memo, 1, 5))
    assert again.saw(1, 0b11) is None
    assert again.saw(5, 0b11111) == 0b11


@pytest.mark.parametrize("cut", [{"max_links": 3}, {"disconnect": None}])
def test_a_truncated_page_is_no_near_duplicate(cut: dict[str, int | None]) -> None:
    memo: dict[str, Any] = {}
    copies = NearDuplicates(lease(memo, 1, 2, 3, 4))
    part = Extracted(simhash=0, has_enough_text=True, cut=cut)
    assert copies.saw(1, part.compared) is None
    assert copies.saw(2, 0) is None, "the part is no original"
    assert copies.saw(3, part.compared) is None, "the part is no copy"
    assert copies.saw(4, 0) == 0


def test_truncated_pages_do_not_pause_a_path_as_near_duplicates() -> None:
    extractor = SpiderRunner(Spider(), Settings(dedupe=True, recrawl="table"))
    response = Response(
        url="http://s.example/a/1",
        status=200,
        headers=(("content-type", "text/html"),),
        body=html("Story", STORY).partition(b"\r\n\r\n")[2],
        cut="disconnect:?",
    )
    for _ in range(2):
        found = asyncio.run(extractor.extract(Request("http://s.example/a/1"), response))
        assert (found.path_simhash, found.query_simhash, found.simhash, found.main) == (None, None, None, "")


def test_the_memo_is_bounded_and_drops_the_oldest_simhashes() -> None:
    memo: dict[str, Any] = {}
    for number in range(400):
        copies = NearDuplicates(lease(memo, number))
        assert copies.saw(number, number * 0x9E3779B97F4A7C15 % 2**64) is None
        memo |= copies.note(number)
    assert len(memo["kept.0"]) == 256 * 24
    assert NearDuplicates(lease(memo, 9)).saw(9999, 399 * 0x9E3779B97F4A7C15 % 2**64) is not None
    assert NearDuplicates(lease(memo, 9)).saw(9999, 0) is None


def test_a_simhash_has_the_bits_that_most_pairs_of_words_have() -> None:
    """Counted for all bits at once; here one by one."""
    for count in (1, 2, 3, 7, 100, 300):
        found = STORY.split()[:count]
        hashes = [siphash(b"gossamer simhash", " ".join(pair)) for pair in zip(found, [*found[1:], ""])]
        slow = sum(1 << bit for bit in range(64) if 2 * sum(one >> bit & 1 for one in hashes) > count)
        assert near_duplicates.simhash_of(found) == slow


def test_main_text_is_extracted_once_for_traps_changes_and_duplicates() -> None:
    extractor = SpiderRunner(Spider(), Settings(dedupe=True, recrawl="table"))
    body = html("Story", STORY).partition(b"\r\n\r\n")[2]
    response = Response(url="http://s.example/", status=200, headers=(("content-type", "text/html"),), body=body)
    first, second = (asyncio.run(extractor.extract(Request("http://s.example/"), response)) for _ in range(2))
    assert first.simhash == second.simhash == second.path_simhash
    assert first.path_simhash is None
    assert first.main
    assert first.has_enough_text
