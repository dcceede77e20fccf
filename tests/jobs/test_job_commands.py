"""Command output for a running, a stopped, and a fleet's job: the formats that scripts parse."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import environment, kill_tree, start, stored, until

COUNTS = (
    "queued", "delayed", "leased", "done", "failed", "skipped", "parked", "stale", "stored", "revisits", "freshness",
    "known", "sites", "ready_sites", "held_sites", "outbox", "active_sites", "job", "finished", "changes",
)  # fmt: skip
LISTED = ("job", "state", "stored", "queued", "delayed", "failed", "known", "sites")
WORDS = ["stored", "queued", "delayed", "leased", "done", "failed", "skipped", "parked", "known", "sites"]


def gossamer(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env={**environment(), **changes},
    )  # fmt: skip


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=3, pages_per_site=100, page_bytes=2000) as web:
        yield web


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    return redis_server


@pytest.mark.parametrize("workers", ["1", "2"])
def test_running_local_job(web: SimWeb, tmp_path: Path, workers: str) -> None:
    folder = tmp_path / "job"
    process = start(folder, web, "--delay", "0.1", "--workers", workers)
    try:
        until(lambda: sum(stored(folder).values()) > 5)
        assert gossamer("pause", str(folder)).stderr == f"{folder}: paused\n"
        found = json.loads(gossamer("status", str(folder), "--json").stdout)
        assert list(found) == ["state", "counts", "sites", "workers", "rejected", "cut"]
        assert (found["state"], tuple(found["counts"])) == ("paused", COUNTS)
        assert {site["site"] for site in found["sites"]} == {seed.split("/")[2] for seed in web.seeds}
        assert len(found["workers"]) == (0 if workers == "1" else 2)
        assert all(isinstance(pid, int) for pid in found["workers"].values()), "name -> process"
        assert found["cut"] == {"pages": 0, "reasons": {}}
        lines = gossamer("status", str(folder)).stdout.splitlines()
        assert lines[0] == f"{folder}: paused"
        assert [line.split()[0] for line in lines[1:11]] == WORDS
        assert "queued, delay 0.1 s" in lines[11]
        assert gossamer("resume", str(folder)).stderr == f"{folder}: running\n"
        added = gossamer("add", str(folder), web.seeds[0], f"{web.seeds[0]}new")
        assert (added.returncode, added.stderr) == (0, f"{folder}: 1 added, 1 already known\n")
        (output,) = json.loads(gossamer("audit", web.seeds[0], "--job", str(folder), "--json").stdout)["workers"][:1]
        assert output
        why = json.loads(gossamer("why", web.seeds[0], "--job", str(folder), "--json").stdout)
        assert (why["job"], why["job_state"], why["seen"]) == (str(folder), "running", True)
        assert gossamer("stop", str(folder)).stderr == f"{folder}: stopping\n"
        assert process.wait(60) == 0
    finally:
        kill_tree(process)


def test_stopped_local_job(web: SimWeb, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    process = start(folder, web, "--delay", "0.02", "--max-pages", "10")
    try:
        assert process.wait(60) == 0
    finally:
        kill_tree(process)
    for state, limit in (("finished", "10"), ("resting", "1000")):
        settings = (folder / "job.toml").read_text()
        (folder / "job.toml").write_text(settings.replace("max_pages = 10\n", f"max_pages = {limit}\n"))
        found = json.loads(gossamer("status", str(folder), "--json").stdout)
        assert list(found) == ["state", "counts", "sites", "workers", "rejected", "cut"]
        assert (found["state"], tuple(found["counts"]), found["workers"]) == (state, COUNTS, {})
        assert found["counts"]["stored"] >= 10
        assert {"site", "queued", "delay", "hold", "closed", "memo"} <= set(found["sites"][0])
        assert gossamer("status", str(folder)).stdout.startswith(f"{folder}: {state}\n")
        why = json.loads(gossamer("why", web.seeds[0], "--job", str(folder), "--json").stdout)
        assert (why["job_state"], why["state"]) == (state, "done")
    for words in (["pause"], ["resume"], ["stop"], ["add", "http://x.example/"]):
        refused = gossamer(words[0], str(folder), *words[1:])
        assert refused.returncode == 1
        assert f"error: job '{folder}' is not running\n" in refused.stderr
        assert f"hint: start it with: gossamer crawl --job {folder}\n" in refused.stderr
    missing = gossamer("audit", "elsewhere.example", "--job", str(folder))
    assert (missing.returncode, "has no site elsewhere.example" in missing.stderr) == (2, True)


@pytest.mark.parametrize("words", [["status"], ["pause"], ["add", "http://x.example/"], ["report"]])
def test_a_job_that_is_not_there(tmp_path: Path, words: list[str]) -> None:
    missing = gossamer(words[0], f"{tmp_path}/none", *words[1:])
    assert missing.returncode == 2
    assert f"{tmp_path}/none" in missing.stderr
    assert missing.stdout == ""


def test_a_job_on_a_fleet(server: RedisServer, web: SimWeb, tmp_path: Path) -> None:
    fleet = {"GOSSAMER_FRONTIER": server.url}
    options = ("--job", "shop", "--sink", f"jsonl:{tmp_path}/out", "--allow-private", "--delay", "0")
    assert gossamer("submit", web.seeds[0], *options, **fleet).returncode == 0
    found = json.loads(gossamer("status", "shop", "--json", **fleet).stdout)
    assert list(found) == [
        "state", "counts", "rate", "workers", "sites", "regions", "shards", "warnings", "results", "cut",
    ]  # fmt: skip
    assert (found["state"], tuple(found["counts"]), found["workers"], found["rate"]) == ("resting", COUNTS, [], 0)
    assert (found["cut"], found["results"]["recorded"]) == (None, 0)
    assert list(found["results"]) == ["folder", "recorded", "missing", "warning"]
    assert found["warnings"] == ["no worker is running: start one with gossamer worker FRONTIER --job NAME"]
    assert list(found["shards"][0]) == ["shard", "server", "counts", "regions"]
    assert list(found["regions"][""]) == ["ready", "later", "soon", "due_in", "workers", "rate"]
    listed = json.loads(gossamer("status", "--json", **fleet).stdout)
    assert [(tuple(job), job["job"], job["state"]) for job in listed] == [(LISTED, "shop", "resting")]
    assert gossamer("pause", "shop", **fleet).stderr == "shop: paused\n"
    assert gossamer("status", "shop", **fleet).stdout.startswith("shop: paused\n")
    assert gossamer("resume", "shop", **fleet).stderr == "shop: running\n"
    assert gossamer("scale", "shop", "--quiet", **fleet).stdout == "1\n"
    why = json.loads(gossamer("why", web.seeds[0], "--job", "shop", "--json", **fleet).stdout)
    assert (why["job_state"], why["state"], why["waits"]["for"]) == ("resting", "queued", "resting")
    worker = gossamer("worker", "--job", "shop", "--name", "w", **fleet)
    assert worker.returncode == 0, worker.stderr
    found = json.loads(gossamer("status", "shop", "--json", "--check", **fleet).stdout)
    (one,) = found["workers"]
    assert {"worker", "region", "host", "pid", "pages", "rate", "left", "silent", "live"} <= set(one)
    assert (one["worker"], one["live"], found["results"]["missing"]) == ("w", False, 0)
    audited = json.loads(gossamer("audit", web.seeds[0], "--job", "shop", "--json", **fleet).stdout)
    assert (audited["job"], audited["workers"], audited["sent"] >= 100) == ("shop", ["w"], True)
    assert gossamer("report", "shop", "--out", "-", **fleet).stdout.startswith("<!doctype html>")
    gone = gossamer("status", "none", **fleet)
    assert (gone.returncode, "none" in gone.stderr) == (1, True)
    (tmp_path / "out" / "results.id").unlink()
    unseen = gossamer("status", "shop", "--check", **fleet)
    assert (unseen.returncode, "is not the job's results folder" in unseen.stdout) == (1, True)
