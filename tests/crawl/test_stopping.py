"""Stopping a crawl: signals, limits, control commands, and cleanup."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from processes import children, command, crawl, environment, kill_tree, start, stored, until

from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb


def gossamer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=environment(),
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_drains_and_returns_leases_at_once(tmp_path: Path, number: int, code: int, workers: str) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=8, pages_per_site=50, page_bytes=2000, latency_seconds=0.05) as web:
        process = start(folder, web, "--delay", "0.02", "--workers", workers)
        until(lambda: (folder / "pages.jsonl").exists() and sum(stored(folder).values()) > 20)
        # Ctrl-C in a terminal reaches the workers too.
        os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(process.pid, number)
        assert process.wait(60) == code, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        before = len(web.log())
        assert set(fetched(web.log())) == set(stored(folder)), "what was fetched before the end is stored"
        # With leases of a minute, a resumed crawl could not go on at once if the old ones were still held.
        done = crawl(folder, web, "--delay", "0.02", "--workers", workers)
        assert done.returncode == 0, done.stderr
        verdict = web.judge()
        assert before < len(web.log())
    assert not verdict.missed
    assert not verdict.repeated


def test_a_second_signal_does_not_wait_for_the_drain(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=4, pages_per_site=30, page_bytes=2000, kinds=("hangs",)) as web:
        process = start(folder, web, "--delay", "0", "--fetch-seconds", "30", "--drain-seconds", "30")
        until(lambda: sum(stored(folder).values()) > 10)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(15) == 130
        kill_tree(process)
    assert set(stored(folder).values()) == {1}


def test_a_drain_does_not_wait_for_servers_that_hang(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=4, pages_per_site=30, page_bytes=2000, kinds=("hangs",)) as web:
        process = start(folder, web, "--delay", "0", "--fetch-seconds", "60", "--drain-seconds", "1")
        until(lambda: sum(stored(folder).values()) > 10)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
        kill_tree(process)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_sink_that_does_not_answer_does_not_keep_a_stopped_crawl(tmp_path: Path, workers: str) -> None:
    """The crawl fails within its grace and acknowledges nothing: the next run stores each page once."""
    folder = tmp_path / "job"
    with SimWeb(sites=4, pages_per_site=5, page_bytes=2000) as web, socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        sinks = ("--sink", "jsonl", "--sink", away)
        process = start(folder, web, *sinks, "--delay", "0.01", "--workers", workers, "--drain-seconds", "0.2")
        silent.settimeout(60)
        silent.accept()
        os.kill(process.pid, signal.SIGTERM)
        code, said = process.wait(60), process.stderr.read() if process.stderr else ""
        kill_tree(process)
        assert "stopped before" in said, said
        assert "the next run fetches them again" in said
        assert code == (1 if workers == "1" else 0)
        assert not sum(stored(folder).values())
        done = crawl(folder, web, "--sink", "jsonl", "--delay", "0.01", "--workers", workers)
        assert done.returncode == 0, done.stderr
        assert stored(folder) == Counter(web.reachable())


def test_max_seconds_ends_the_run_and_the_next_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=2, pages_per_site=40, page_bytes=2000) as web:
        done = crawl(folder, web, "--delay", "0.05", "--max-seconds", "1")
        assert done.returncode == 0
        assert 0 < sum(stored(folder).values()) < 80
        crawl(folder, web, "--delay", "0.05", "--max-seconds", "60")
        assert not web.judge().missed
        assert not web.judge().repeated


def test_a_second_crawl_of_the_same_job_is_refused_with_the_owners_id(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=2, pages_per_site=60, page_bytes=2000) as web:
        process = start(folder, web, "--delay", "0.1")
        until(lambda: (folder / "socket").exists())
        second = crawl(folder, web, "--delay", "0")
        assert second.returncode == 1
        assert f"pid {process.pid}" in second.stderr
        assert "gossamer worker" in second.stderr
        kill_tree(process)


def test_a_worker_from_another_terminal_joins_and_leaves_with_the_crawl(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=10, pages_per_site=30, page_bytes=2000, latency_seconds=0.05) as web:
        process = start(folder, web, "--delay", "0.02", "--concurrency", "2")
        until(lambda: (folder / "socket").exists())
        joined = gossamer("worker", str(folder))
        assert joined.returncode == 0, joined.stderr
        assert process.wait(30) == 0
        kill_tree(process)
        ports = {entry.port for entry in web.log()}
        assert not web.judge().missed
        assert not web.judge().repeated
    assert len(ports) > 2


def test_pause_resume_add_and_stop(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=3, pages_per_site=200, page_bytes=2000) as web:
        lines = command(folder, web.seeds[:2], "--delay", "0.05")
        process = subprocess.Popen(lines, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment())
        until(lambda: sum(stored(folder).values()) > 5)
        assert gossamer("pause", str(folder)).returncode == 0
        assert "paused" in gossamer("status", str(folder)).stdout
        until(lambda: _quiet_for(web, 0.5))
        assert gossamer("resume", str(folder)).returncode == 0
        before = len(web.log())
        until(lambda: len(web.log()) > before)
        added = gossamer("add", str(folder), web.seeds[2], web.seeds[0])
        assert "1 added, 1 already known" in added.stderr
        until(lambda: web.url(2) in fetched(web.log()))
        assert gossamer("stop", str(folder)).returncode == 0
        assert process.wait(60) == 0
        kill_tree(process)


def _quiet_for(web: SimWeb, seconds: float) -> bool:
    before = len(web.log())
    time.sleep(seconds)
    return len(web.log()) == before


def test_a_crawl_that_is_process_one_of_a_container_keeps_its_workers(tmp_path: Path) -> None:
    """Their parent is the process that orphans elsewhere go to, and they are none."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a process namespace: a crawl as process 1 is not checked")
    folder = tmp_path / "job"
    with SimWeb(sites=4, pages_per_site=10, page_bytes=2000) as web:
        crawling = [*alone, *command(folder, web.seeds, "--delay", "0", "--workers", "2")]
        done = subprocess.run(crawling, capture_output=True, text=True, timeout=90, check=False, env=environment())
        assert done.returncode == 0, done.stderr
        verdict = web.judge()
    assert not verdict.missed
    assert "starting it again" not in done.stderr


def test_no_worker_survives_its_supervisor(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=6, pages_per_site=100, page_bytes=2000) as web:
        process = start(folder, web, "--delay", "0.1", "--workers", "3")
        workers = until(lambda: len(found) >= 3 and found if (found := children(process.pid)) else None)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        kill_tree(process)
