"""The commands of a fleet on a shared folder: where pages are stored, and importing a tree of pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.storage.tree import Tree, place_of


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=3, pages_per_site=15, page_bytes=2000) as web:
        yield web


class Site:
    """A folder, with the commands that are given it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frontier = f"folder:{folder}/share?shards=4"

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "gossamer", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder,
            env={**os.environ, "GOSSAMER_FRONTIER": self.frontier},
        )
        assert done.returncode == code, done.stderr
        return done

    def files(self, kind: str) -> list[Path]:
        return [path for path in (self.folder / "share" / kind).rglob("*") if path.is_file()]


@pytest.fixture
def gossamer(tmp_path: Path) -> Site:
    return Site(tmp_path)


def of(web: SimWeb, job: str) -> tuple[str, ...]:
    return (*web.seeds, "--job", job, "--allow-private", "--delay", "0.01")


def test_a_submitted_job_keeps_its_pages_in_the_folder_and_export_finds_them(gossamer: Site, web: SimWeb) -> None:
    before = fetched(web.log())
    said = gossamer("submit", *of(web, "shop"), "--sink", f"folder:{gossamer.folder}/share").stderr
    assert "3 URLs added" in said
    gossamer("worker", "shop", "--frontier", gossamer.frontier, "--name", "w0")
    pages = fetched(web.log()) - before
    assert set(pages) == web.reachable()
    assert set(pages.values()) == {1}
    exported = gossamer("export", "shop", "--format", "urls").stdout.split()
    assert Counter(exported) == pages
    assert len(list((gossamer.folder / "share" / "results" / "shop" / "segments").iterdir())) == 1
    tree = Tree(gossamer.folder / "share")
    assert all(tree.has(url) for url in pages)
    assert len(gossamer.files("htmls")) + len(gossamer.files("errs")) == len(pages)


def test_pages_of_a_tree_are_not_fetched_again_and_those_it_lacks_are(gossamer: Site, web: SimWeb) -> None:
    sink = ("--sink", f"folder:{gossamer.folder}/share")
    gossamer("crawl", *of(web, "first"), *sink, "--quiet")
    results = gossamer.folder / "share" / "results"
    gathered = [json.loads(line)["url"] for line in (results / "first" / "pages.jsonl").read_text().splitlines()]
    assert set(gathered) == web.reachable()
    lost = sorted(set(gathered) - set(web.seeds))[::4]
    for number, url in enumerate(lost):
        for kind in ("htmls", "links")[: 1 + number % 2]:
            (gossamer.folder / "share" / kind / "/".join(place_of(url))).unlink()
    before = fetched(web.log())
    gossamer("crawl", *of(web, "second"), *sink, "--quiet")
    assert Counter(fetched(web.log())) - Counter(before) == Counter(lost)
    counts = json.loads(gossamer("status", "second", "--json").stdout)["counts"]
    assert (counts["known"], counts["finished"]) == (len(gathered), True)
    assert gossamer("export", "second", "--format", "urls").stdout.split() != []
    before = fetched(web.log())
    assert "finished before this run" in gossamer("crawl", *of(web, "second"), *sink).stderr
    assert fetched(web.log()) == before, "and the same command again finds nothing to do"


def test_moving_sites_and_duplicate_worker_names_are_refused(gossamer: Site, web: SimWeb) -> None:
    said = gossamer("submit", *of(web, "shop"), "--region-by", "auto", code=2).stderr
    assert "does not support region_by auto" in said
    gossamer("submit", *of(web, "shop"))
    gossamer("pause", "shop")
    command = [sys.executable, "-m", "gossamer", "worker", gossamer.frontier, "--job", "shop", "--name", "twin"]
    with subprocess.Popen(command, cwd=gossamer.folder, stderr=subprocess.DEVNULL) as first:
        try:
            heartbeats = gossamer.folder / "share" / "frontier" / "shop" / "workers"
            while not list(heartbeats.glob("twin*")):
                assert first.poll() is None
            said = gossamer("worker", "--job", "shop", "--name", "twin", code=1).stderr
        finally:
            first.kill()
    assert "another worker named 'twin'" in said
    assert "--name" in said
    # Its successor begins at once.
    gossamer("resume", "shop")
    gossamer("worker", "--job", "shop", "--name", "twin")
    assert json.loads(gossamer("status", "shop", "--json").stdout)["counts"]["finished"]


def test_a_summary_separates_failures_of_this_run_from_others(gossamer: Site) -> None:
    with SimWeb(sites=1, pages_per_site=15, page_bytes=2000, kinds=["errors"]) as web:
        said = gossamer("crawl", *of(web, "shop"), code=3).stderr
        failed = json.loads(gossamer("status", "shop", "--json").stdout)["counts"]["failed"]
        assert failed > 1
        assert f"failed    {failed} URLs\n" in said
        assert "earlier runs" not in said
        said = gossamer("crawl", *of(web, "shop"), code=3).stderr
        assert f"failed    {failed} in earlier runs" in said


def test_a_new_job_does_not_begin_where_another_has_stored_pages(gossamer: Site, web: SimWeb) -> None:
    gossamer("crawl", *of(web, "shop"), "--quiet")
    frontier = gossamer.folder / "share" / "frontier" / "shop"
    frontier.rename(gossamer.folder / "lost")
    for command in ("crawl", "submit"):
        said = gossamer(command, *of(web, "shop"), code=2).stderr
        assert "results/shop contains pages of another job" in said
        assert not frontier.exists()
    (gossamer.folder / "lost").rename(frontier)
    assert "finished before this run" in gossamer("crawl", *of(web, "shop")).stderr
