"""The present code opens and finishes a job in which an older version was killed.

`fixtures/killed-job.tar.xz` is the folder of a job that commit a8aafd7 (November 2026) ran with its clock set to July
2025: `gossamer crawl URL... --delay 0.1 --allow-private --extract title=h1::text`, with the sinks jsonl, csv, sqlite,
and warc. When it was killed with `kill -9`, it had written 13 of the 24 pages of WEB, and committed 9 of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.errors import ConfigError
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import FORMATS, load

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import environment

ARCHIVE = Path(__file__).parent / "fixtures" / "killed-job.tar.xz"
# The port is part of the stored URLs. It is below the range from which Linux assigns ports.
WEB = WebPlan(seed=7, sites=2, pages_per_site=12, page_bytes=500, links_per_page=4, port=24817)
COMMITTED = 9


@pytest.fixture
def web() -> Iterator[SimWeb]:
    web = SimWeb(WEB)
    try:
        web.start()
    except ConfigError as error:
        pytest.skip(f"{error}: the fixture's URLs need port {WEB.port}, so the older job is not checked")
    try:
        yield web
    finally:
        web.stop()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "killed-job"


def gossamer(*arguments: str) -> str:
    """Run a command and return its stdout."""
    command = [sys.executable, "-m", "gossamer", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_and_export_read_a_job_of_an_older_version(job: Path) -> None:
    counts = json.loads(gossamer("status", str(job), "--json"))["counts"]
    assert (counts["done"], counts["queued"], counts["failed"]) == (COMMITTED, 13, 0)
    exported = gossamer("export", str(job), "--format", "urls").split()
    assert len(exported) == len(set(exported)) == 13


def test_a_job_of_an_older_version_is_finished_with_each_page_once(job: Path, web: SimWeb) -> None:
    gossamer("crawl", *web.seeds, "--job", str(job), "--quiet")
    pages = sorted(web.reachable())
    assert len(pages) == 24
    for format_ in ("urls", "items"):
        lines = gossamer("export", str(job), "--format", format_).splitlines()
        assert sorted(json.loads(line)["url"] if format_ == "items" else line for line in lines) == pages
    for sink in ("jsonl", "csv", "sqlite", "warc"):
        reader = next(load(FORMATS[sink].reader)(StoredJob.of(job)))
        assert sorted(record.page.url for record in reader.records(all_visits=True)) == pages, sink
    assert fetched(web.log()).total() == len(pages) - COMMITTED
