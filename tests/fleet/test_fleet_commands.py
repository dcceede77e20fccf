"""The commands of a fleet: submit, worker, status, pause, resume, stop, add, export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.lab.simweb.log import fetched, gaps
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import until

PASSWORD = "open-sesame"
pytestmark = pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password=PASSWORD) as running:
        yield running


def gossamer(server: RedisServer, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """A command that finds the frontier's address in its environment."""
    environment = {**os.environ, "GOSSAMER_FRONTIER": server.url, **extra}
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def worker(server: RedisServer, job: str, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gossamer", "worker", "--job", job, "--name", name],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GOSSAMER_FRONTIER": server.url},
    )


def test_a_submitted_job_is_done_by_workers_that_know_only_its_name(server: RedisServer, tmp_path: Path) -> None:
    with SimWeb(sites=6, pages_per_site=20, page_bytes=2000) as web:
        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        options = ("--seeds", str(tmp_path / "seeds"), "--job", "shop", "--allow-private", "--delay", "0.03")
        submitted = gossamer(server, "submit", *options, "--sink", f"jsonl:{tmp_path}/shared", "--sink", "parquet")
        assert submitted.returncode == 0, submitted.stderr
        assert "6 URLs added" in submitted.stderr
        assert PASSWORD not in submitted.stderr
        workers = [worker(server, "shop", f"w{number}") for number in range(3)]
        for process in workers:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
        verdict, log = web.judge(), web.log()
    assert not verdict.missed
    assert not verdict.repeated
    assert min(gaps(log).values()) >= 0.03
    status = json.loads(gossamer(server, "status", "shop", "--json").stdout)
    assert (status["state"], status["counts"]["stored"]) == ("finished", 120)
    exported = gossamer(server, "export", "shop", "--format", "urls").stdout.split()
    assert Counter(exported) == Counter(fetched(log))
    counted = gossamer(server, "sql", "shop", "SELECT count(*), count(DISTINCT url) FROM pages", "--csv")
    assert counted.stdout.splitlines()[1:] == ["120,120"], counted.stderr
    assert 1 <= len(list((tmp_path / "shared" / "parquet" / "pages").iterdir())) <= 3, "a file of each worker"


def test_submit_refuses_a_sink_that_only_one_machine_has(server: RedisServer) -> None:
    refused = gossamer(server, "submit", "https://example.com", "--job", "lonely")
    assert refused.returncode == 2
    assert "--sink jsonl:/" in refused.stderr
    assert gossamer(server, "status", "lonely").returncode == 1


def test_a_job_is_paused_resumed_and_given_more(server: RedisServer, tmp_path: Path) -> None:
    options = ("--job", "steered", "--sink", f"jsonl:{tmp_path}", "--allow-private", "--delay", "0")
    with SimWeb(sites=2, pages_per_site=5, page_bytes=2000) as web:
        gossamer(server, "submit", web.seeds[0], *options)
        assert gossamer(server, "pause", "steered").returncode == 0
        assert json.loads(gossamer(server, "status", "steered", "--json").stdout)["state"] == "paused"
        added = gossamer(server, "add", "steered", *web.seeds)
        assert "1 added, 1 already known" in added.stderr
        gossamer(server, "resume", "steered")
        process = worker(server, "steered", "only")
        process.communicate(timeout=60)
        assert not web.judge().missed


SPIDER = """
import gossamer

class Titles(gossamer.Spider):
    def parse(self, page):
        yield {"url": page.url, "title": page.title}
        yield from page.follow_all()
"""


def test_workers_run_the_submitted_spider_until_the_job_is_stopped_and_go_on_when_it_is_resumed(
    server: RedisServer, tmp_path: Path
) -> None:
    spider = tmp_path / "titles.py"
    spider.write_text(SPIDER)
    options = ("--job", "titles", "--sink", f"jsonl:{tmp_path}/out", "--allow-private", "--delay", "0.05")
    with SimWeb(sites=2, pages_per_site=60, page_bytes=2000) as web:
        assert gossamer(server, "submit", str(spider), *web.seeds, *options).returncode == 0
        first = worker(server, "titles", "first")
        until(lambda: len(web.log()) > 10)
        assert gossamer(server, "stop", "titles").returncode == 0
        _, said = first.communicate(timeout=60)
        assert first.returncode == 0, said
        assert web.judge().missed, "it was to be stopped in the middle"
        assert gossamer(server, "resume", "titles").returncode == 0
        _, said = (second := worker(server, "titles", "second")).communicate(timeout=60)
        assert second.returncode == 0, said
        assert not web.judge().missed
        assert not web.judge().repeated
        reachable = web.reachable()
    items = gossamer(server, "export", "titles", "--format", "items").stdout.splitlines()
    assert {json.loads(line)["url"] for line in items} == set(reachable)
    assert len(items) == len(reachable) == 120


def test_two_jobs_in_one_redis_do_not_meet(server: RedisServer, tmp_path: Path) -> None:
    with SimWeb(sites=2, pages_per_site=6, page_bytes=2000) as web:
        for number, name in enumerate(("one", "one:{two}*\n")):
            options = ("--job", name, "--sink", f"jsonl:{tmp_path}/{number}", "--allow-private", "--delay", "0")
            assert gossamer(server, "submit", web.seeds[number], *options).returncode == 0
            _, said = (process := worker(server, name, "w")).communicate(timeout=60)
            assert process.returncode == 0, said
        assert set(fetched(web.log()).values()) == {1}
    for number in range(2):
        assert len(gossamer(server, "export", f"{tmp_path}/{number}", "--format", "urls").stdout.split()) == 6
    listed = {job["job"]: job["state"] for job in json.loads(gossamer(server, "status", "--json").stdout)}
    assert (listed["one"], listed["one:{two}*\n"]) == ("finished", "finished")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("redis://:wrong@127.0.0.1:{port}/0", "password"),
        ("redis://:wrong@127.0.0.1:1/0", "refused"),
        ("redis://127.0.0.1:{port}/0", "password"),
    ],
)
def test_a_wrong_address_is_an_error_without_its_password(server: RedisServer, address: str, words: str) -> None:
    done = gossamer(server, "status", "shop", GOSSAMER_FRONTIER=address.format(port=server.port))
    assert done.returncode == 1
    assert words in done.stderr.lower()
    assert "hint:" in done.stderr
    assert "wrong" not in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_job_is_an_error_with_a_hint(server: RedisServer) -> None:
    done = gossamer(server, "worker", "--job", "nothing-here")
    assert done.returncode == 1
    assert "nothing-here" in done.stderr
    assert "hint:" in done.stderr
