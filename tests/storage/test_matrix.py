"""Every command that reads stored data, over every format: it works, or one sentence names what is missing."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gossamer.cli import gossamer
from gossamer.errors import ConfigError
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.verify import drop_tables, isolated_sinks, read_back
from gossamer.testing.servers import SqlServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import crawl, environment

FORMATS = ("jsonl", "csv", "sqlite", "parquet", "warc", "folder", "postgresql", "mysql")
SPIDER = """
import gossamer

class Titles(gossamer.Spider):
    def parse(self, page):
        yield {"url": page.url}
        yield from page.follow_all()
"""
COMMANDS = {
    "export jsonl": "export {job} --format jsonl",
    "export csv": "export {job} --format csv",
    "export urls": "export {job} --format urls",
    "export parquet": "export {job} --format parquet --out {out}/pages.parquet",
    "export items": "export {job} --format items",
    "export items of pages": "export {job} --format items --where status=200",
    "export rejected": "export {job} --format rejected",
    "export every visit": "export {job} --format urls --all-visits",
    "export warc": "export {job} --format warc --out {out}/pages.warc.gz",
    "export markdown": "export {job} --format markdown --out {out}/pages",
    "replay": "replay {job} --spider {spider} --out {out}/replay --quiet",
    "sql pages": "sql {job} --csv|SELECT|count(*)|AS|n|FROM|pages",
    "sql items": "sql {job} --csv|SELECT|count(*)|AS|n|FROM|items",
    "sql requests": "sql {job} --csv|SELECT|count(*)|AS|n|FROM|requests|WHERE|status|=|200",
    "diff": "diff {job} {job} --json",
    "report": "report {job} --out {out}/report.html",
    "why": "why {url} --job {job} --json",
    "audit": "audit {site} --job {job} --json",
}
ROWS = {name for name in COMMANDS if name not in ("export warc", "export markdown", "replay")}
WORKS = {
    "jsonl": ROWS - {"export items of pages"},
    "csv": ROWS - {"export items of pages"},
    "sqlite": ROWS,
    "parquet": ROWS,
    "warc": set(COMMANDS),
    "folder": {"export rejected", "why", "audit", "sql requests"},
    "postgresql": ROWS,
    "mysql": ROWS,
}
"""Format -> the commands that work on a job with nothing else. All others are refused."""
SAYS_SO = {("folder", "sql pages"), ("folder", "sql items")}
"""Questions that are answered from the request log, with a warning that there are no rows."""


class Job:
    """A job with one sink, and the records it should store."""

    def __init__(self, kind: str, folder: Path, sink: str, spider: Path, urls: set[str]) -> None:
        self.kind, self.folder, self.sink, self.spider, self.urls = kind, folder, sink, spider, urls

    def words(self, name: str, out: Path) -> list[str]:
        """A command as it is typed, about this job."""
        url = min(self.urls)
        values = {"job": self.folder, "out": out, "spider": self.spider, "url": url, "site": url.split("/")[2]}
        first, _, query = COMMANDS[name].format(**values).partition("|")
        return [*first.split(), *filter(None, [query.replace("|", " ")])]


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=1, pages_per_site=6, page_bytes=2000) as running:
        yield running


@pytest.fixture(scope="module", params=FORMATS)
def job(request: pytest.FixtureRequest, web: SimWeb, tmp_path_factory: pytest.TempPathFactory) -> Job:
    home = tmp_path_factory.mktemp(request.param)
    sink = f"folder:{home}/tree" if request.param == "folder" else request.param
    if request.param in ("postgresql", "mysql"):
        kind = {"postgresql": "postgres_server", "mysql": "maria_server"}[request.param]
        server: SqlServer = request.getfixturevalue(kind)
        sink = f"{server.url}?table=m{secrets.token_hex(4)}"
    spider = home / "titles.py"
    spider.write_text(SPIDER)
    done = crawl(home / "job", web, "--delay", "0", "--sink", sink, "--spider", str(spider))
    assert done.returncode == 0, done.stderr
    assert "report" not in done.stderr or request.param not in ("postgresql", "mysql")
    return Job(request.param, home / "job", sink, spider, web.plan.reachable())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_works_or_is_refused_in_one_sentence(
    job: Job, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = job.words(name, tmp_path)
    done = CliRunner().invoke(gossamer, words, standalone_mode=False)
    if (job.kind, name) in SAYS_SO:
        assert done.exception is None, done.exception
        assert "0" in done.stdout.split()
        assert [text.startswith("the tables of pages and items are empty") for text in caplog.messages] == [True]
    elif name in WORKS[job.kind]:
        assert done.exception is None, done.exception
        assert not done.return_value
        check(name, done.stdout, job, tmp_path)
    else:
        # A ConfigError ends the command with exit code 2.
        error = done.exception
        while isinstance(error, ExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, ConfigError), (error, done.stdout)
        assert done.stdout == ""
        for text in (str(error), error.hint):
            assert text
            assert "\n" not in text
        written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".draft")]
        assert written == []


@pytest.mark.parametrize("job", ["folder"], indirect=True)
def test_a_refusal_is_exit_code_2_and_an_error_with_a_hint(job: Job, tmp_path: Path) -> None:
    for name in ("export csv", "replay", "report"):
        done = subprocess.run(
            [sys.executable, "-m", "gossamer", *job.words(name, tmp_path)],
            capture_output=True, text=True, timeout=60, check=False, env=environment(),
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
        said = [line.strip().partition(":")[0] for line in done.stderr.splitlines()]
        assert said == ["error", "hint"], done.stderr


def check(name: str, said: str, job: Job, out: Path) -> None:
    """It is all there."""
    count = len(job.urls)
    match name:
        case "export jsonl":
            assert {json.loads(line)["url"] for line in said.splitlines()} == job.urls
        case "export csv":
            assert len(said.splitlines()) == count + 1
        case "export urls" | "export every visit":
            assert set(said.splitlines()) == job.urls
        case "export items" | "export items of pages":
            assert {json.loads(line)["url"] for line in said.splitlines()} == job.urls
        case "export rejected":
            assert said == ""
        case "export parquet":
            assert (out / "pages.parquet").stat().st_size > 0
        case "export warc":
            assert (out / "pages.warc.gz").stat().st_size > 0
        case "export markdown":
            assert len(list((out / "pages").rglob("*.md"))) == count
        case "replay":
            rows = (out / "replay" / "items.jsonl").read_text().splitlines()
            assert {json.loads(line)["url"] for line in rows} == job.urls
        case "sql pages" | "sql items" | "sql requests":
            robots = name == "sql requests"
            assert said.split() == ["n", str(count + robots)]
        case "diff":
            assert json.loads(said.splitlines()[-1])
        case "report":
            assert f"{count}" in (out / "report.html").read_text()
        case "why" | "audit":
            assert sorted(job.urls)[0] in said


def test_verify_reads_back_what_it_can(job: Job, tmp_path: Path) -> None:
    """The sinks of a proof are read back by the same readers, or refused before it begins."""
    if job.sink.startswith("folder:"):
        with pytest.raises(ConfigError, match="cannot read this sink back"):
            isolated_sinks([job.sink], "t")
        return
    rows = asyncio.run(read_back(job.sink, job.folder, is_fleet=False))
    assert {(row.url, row.status) for row in rows} == {(url, 200) for url in job.urls}


@pytest.mark.parametrize("kind", ["postgres_server", "maria_server"])
def test_verify_drops_the_tables_of_its_proof(
    request: pytest.FixtureRequest, web: SimWeb, kind: str, tmp_path: Path
) -> None:
    server: SqlServer = request.getfixturevalue(kind)
    (sink,) = isolated_sinks([server.url], f"v{secrets.token_hex(4)}")
    done = crawl(tmp_path / "job", web, "--delay", "0", "--sink", sink)
    assert done.returncode == 0, done.stderr
    assert len(asyncio.run(read_back(sink, tmp_path / "job", is_fleet=False))) == len(web.plan.reachable())
    asyncio.run(drop_tables(sink))
    with pytest.raises(ConfigError, match="has no table"):
        asyncio.run(read_back(sink, tmp_path / "job", is_fleet=False))
