"""Truncated pages are reported in their record, in every sink, in the summary, and in reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from rawweb import RawWeb, page

from gossamer.model import PageRow
from gossamer.storage.query import Search
from gossamer.storage.reader import StoredJob, open_stored

SINKS = ("jsonl", "csv", "sqlite", "parquet", "warc")
CUT = "max_links:20"
COMMAND = (sys.executable, "-m", "gossamer")


def gossamer(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *words], capture_output=True, text=True, check=check, timeout=60
    )


def crawl(web: RawWeb, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    at = f"http://127.0.0.1:{web.port}/"
    return gossamer("crawl", at, "--job", str(folder), "--delay", "0", "--allow-private", *options)


def links(count: int) -> bytes:
    return page(*(f"/{number}" for number in range(count)))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_links_beyond_the_limit_show_in_every_report(tmp_path: Path, workers: str) -> None:
    folder = tmp_path / "job"
    sinks = [word for name in SINKS for word in ("--sink", name)]
    with RawWeb() as web:
        web.answers = {"/": links(30), **{f"/{number}": page() for number in range(30)}}
        done = crawl(web, folder, "--max-links", "10", "--workers", workers, *sinks)
        home = f"http://127.0.0.1:{web.port}/"
    assert "1 page: max_links dropped 20 links on 1 page (raise --max-links)" in done.stderr
    lines = [json.loads(line) for line in (folder / "pages.jsonl").open()]
    assert {line["url"].rpartition("/")[2]: line.get("cut") for line in lines if line.get("cut")} == {"": CUT}
    assert len(lines) == 11

    for name in SINKS:
        assert read(folder, name, home).cut == CUT, name
        assert not read(folder, name, f"{home}1").cut, name

    story = json.loads(gossamer("why", home, "--job", str(folder), "--json").stdout)
    assert story["cut"] == CUT
    output = gossamer("why", home, "--job", str(folder)).stdout
    assert "max_links dropped 20 links (raise --max-links)" in " ".join(output.split())
    dropped = " ".join(gossamer("why", f"{home}25", "--job", str(folder)).stdout.split())
    assert "1 page had more links than max_links" in dropped
    dropped = " ".join(gossamer("why", f"{home}25", "--job", str(folder), "--from", home).stdout.split())
    assert f"was cut by a limit ({CUT})" in dropped

    status = json.loads(gossamer("status", str(folder), "--json").stdout)
    assert status["cut"] == {
        "pages": 1,
        "reasons": {"max_links": {"pages": 1, "lost": 20, "setting": "max_links"}},
    }
    assert "1 pages (max_links: 1)" in gossamer("status", str(folder)).stdout
    report = gossamer("report", str(folder), "--out", "-").stdout
    assert "<td>max_links</td><td>1</td><td>20 links</td><td>max_links</td>" in report
    rows = gossamer("sql", str(folder), "SELECT url FROM pages WHERE cut LIKE 'max_links:%'", "--csv").stdout
    assert rows.split() == ["url", home]
    steps = gossamer("sql", str(folder), "SELECT url FROM requests WHERE cut <> ''", "--csv").stdout
    assert steps.split() == ["url", home]


def read(folder: Path, sink: str, url: str) -> PageRow:
    """The line of a page, as a job that has only this sink has it."""
    apart = folder / "apart" / sink
    apart.mkdir(parents=True, exist_ok=True)
    names = {"jsonl": "pages.jsonl", "csv": "pages.csv", "sqlite": "pages.db", "parquet": "parquet", "warc": "archive"}
    place = apart / names[sink]
    if not place.exists():
        place.symlink_to(folder / names[sink])
    return next(StoredJob.of(apart).need("rows").rows(Search(url=url)))


def test_a_crawl_without_truncated_pages_reports_none(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers = {"/": links(3), **{f"/{number}": page() for number in range(3)}}
        done = crawl(web, tmp_path / "job")
    assert "cut" not in done.stderr
    assert '"cut"' not in (tmp_path / "job/pages.jsonl").read_text()
    assert '"cut"' not in "".join(path.read_text() for path in (tmp_path / "job/trail").glob("*.jsonl"))


def test_a_replayed_page_stays_cut(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers = {"/": links(30), **{f"/{number}": page() for number in range(30)}}
        crawl(web, tmp_path / "job", "--max-links", "10", "--sink", "warc", "--sink", "jsonl")
    gossamer("replay", str(tmp_path / "job"), "--out", str(tmp_path / "again"), "--extract", "title=title::text")
    lines = [json.loads(line) for line in (tmp_path / "again/pages.jsonl").open()]
    assert [line["cut"] for line in lines if line.get("cut")] == [CUT]
    with open_stored(tmp_path / "job") as stored:
        assert sorted(one.response.cut for one in stored.pages()) == [""] * 10 + [CUT]


@pytest.mark.parametrize("place", ["folder", "redis"])
def test_a_fleet_reports_its_truncated_pages(tmp_path: Path, place: str, request: pytest.FixtureRequest) -> None:
    frontier, job = f"folder:{tmp_path}/share?shards=2", f"links-{uuid4().hex[:8]}"
    if place == "redis":
        frontier = request.getfixturevalue("redis_server").url
    with RawWeb() as web:
        elsewhere = page("http://elsewhere.example/")
        web.answers = {"/": links(30), **{f"/{number}": elsewhere for number in range(30)}}
        at = f"http://127.0.0.1:{web.port}/"
        options = ["--delay", "0", "--allow-private", "--max-links", "10", "--workers", "2"]
        done = subprocess.run(
            [*COMMAND, "crawl", at, "--job", job, "--frontier", frontier, *options],
            capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip
        output = subprocess.run(
            [*COMMAND, "status", job, "--frontier", frontier, "--json"],
            capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip
        why = subprocess.run(
            [*COMMAND, "why", f"{at}25", "--job", job, "--frontier", frontier],
            capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip
    assert "1 page: max_links dropped 20 links on 1 page (raise --max-links)" in done.stderr
    if place == "redis":
        # On a folder nothing stays of a worker that has left.
        assert "not followed: 10 on another site" in done.stderr
    assert json.loads(output.stdout)["cut"]["reasons"]["max_links"]["lost"] == 20
    assert "1 page had more links than max_links" in " ".join(why.stdout.split())
    exported = [json.loads(line) for path in tmp_path.rglob("pages.jsonl") for line in path.open()]
    assert [line["cut"] for line in exported if line.get("cut")] == [CUT]
