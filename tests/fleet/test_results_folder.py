"""Results folders of fleets: a worker without the job's folder is refused, and lost results are fetched again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from gossamer.engine.heartbeat import LIVE_SECONDS
from gossamer.frontier.backends import open_fleet
from gossamer.frontier.redis.server import job_key
from gossamer.jobs.results_folder import count_records
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.verify import children
from gossamer.model import Heartbeat
from gossamer.storage.segments import has_records

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from chainweb import chain_web
from processes import until

SERVERS = {"redis": "redis_server", "postgresql": "postgres_server", "mariadb": "maria_server"}
OPTIONS = ("--allow-private", "--delay", "0", "--commit-seconds", "0.02", "--lease-seconds", "5")


@pytest.fixture(params=["folder", *SERVERS])
def frontier(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a frontier of each kind."""
    kind = str(request.param)
    return (
        str(request.getfixturevalue(SERVERS[kind]).url) if kind in SERVERS else f"folder:{tmp_path}/frontier?shards=4"
    )


@pytest.fixture
def job() -> str:
    return f"results-{uuid4().hex[:8]}"


class Machine:
    """Commands as people run them on one machine: its working folder is its own."""

    def __init__(self, frontier: str, home: Path) -> None:
        self.home = home
        self._frontier = frontier
        home.mkdir(parents=True, exist_ok=True)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gossamer", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.home,
            env={**os.environ, "GOSSAMER_FRONTIER": self._frontier},
        )  # fmt: skip

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, said = process.communicate(timeout=120)
        assert process.returncode == code, f"{words}: {process.returncode}\n{out}\n{said}"
        assert "Traceback" not in said
        return subprocess.CompletedProcess(words, code, out, said)

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", job, "--json").stdout)
        return found

    def urls(self, job: str, *words: str) -> list[str]:
        return self.run("export", job, "--format", "urls", *words).stdout.split()


def work(machine: Machine, job: str, *names: str) -> None:
    """Have workers of these names work until the job is over; each writes segments of its own."""
    workers = [machine.start("worker", "--job", job, "--name", name) for name in names]
    for worker in workers:
        _, said = worker.communicate(timeout=120)
        assert worker.returncode == 0, said


def crawl(machine: Machine, job: str, web: SimWeb, shared: Path) -> None:
    """A job that two machines have done, the first of them twenty pages of it."""
    for name, most in (("one", 20), ("two", 1000)):
        limits = ("--max-pages", str(most))
        machine.run("submit", *web.seeds, "--job", job, "--sink", f"jsonl:{shared}", *limits, *OPTIONS)
        work(machine, job, name)


def beat(frontier: str, job: str, *, left: bool = False) -> None:
    """Send the heartbeat of a worker that then is killed, or with `left` the one with which it leaves."""

    async def send() -> None:
        fleet = await open_fleet(frontier, job, worker="killed")
        await fleet.beat(Heartbeat(worker="killed", left=left))
        await fleet.aclose()

    asyncio.run(send())


def lose(folder: Path) -> int:
    """Lose the segments of the first worker, as with the disk of its machine; how many pages."""
    (path,) = (folder / "segments").glob("one-*.jsonl")
    lines = path.read_bytes().count(b"\n")
    path.unlink()
    return lines


def test_a_worker_without_the_results_folder_is_refused_and_stores_nothing(
    frontier: str, job: str, tmp_path: Path
) -> None:
    """The folder is not mounted: an empty mount point is in its place."""
    machine, shared = Machine(frontier, tmp_path / "home"), tmp_path / "shared"
    with SimWeb(sites=2, pages_per_site=6, page_bytes=2000) as web:
        machine.run("submit", *web.seeds, "--job", job, "--sink", f"jsonl:{shared}", *OPTIONS)
        shared.rename(tmp_path / "elsewhere")
        for bare in (False, True):
            if bare:
                shared.mkdir()
            refused = machine.run("worker", "--job", job, code=2)
            assert "results.id" in refused.stderr
            assert str(shared) in refused.stderr
            assert "hint: mount the folder" in refused.stderr
            assert not web.log(), "nothing is fetched for nowhere"
            assert not shared.exists() or not any(shared.rglob("*.jsonl"))
        shared.rmdir()
        (tmp_path / "elsewhere").rename(shared)
        machine.run("worker", "--job", job)
        assert not web.judge().missed
        assert len(machine.urls(job)) == 12


def test_a_second_machine_with_its_own_folder_is_refused_without_an_option(
    redis_server: object, job: str, tmp_path: Path
) -> None:
    frontier = str(redis_server.url)  # type: ignore[attr-defined]
    here, there = Machine(frontier, tmp_path / "here"), Machine(frontier, tmp_path / "there")
    with SimWeb(sites=3, pages_per_site=20, page_bytes=2000) as web:
        here.run("crawl", *web.seeds, "--job", job, "--quiet", "--max-pages", "10", *OPTIONS)
        assert (here.home / "crawls" / job / "results.id").exists()
        for words in (("worker", "--job", job), ("crawl", *web.seeds, "--job", job, "--quiet", *OPTIONS)):
            refused = there.run(*words, code=2)
            assert "--own-results" in refused.stderr
            assert not (there.home / "crawls" / job / "segments").exists()
        # The same command again goes on, with nothing to set up.
        here.run("crawl", *web.seeds, "--job", job, "--quiet", "--max-pages", "30", *OPTIONS)
        there.run("crawl", *web.seeds, "--job", job, "--quiet", "--own-results", "--max-pages", "60", *OPTIONS)
        assert (there.home / "crawls" / job / "segments").exists()
        assert set(fetched(web.log()).values()) == {1}
    failed = here.run("export", job, "--format", "urls", code=1)
    assert "30 of 60 stored pages" in failed.stderr
    # Gathered by hand, they are whole.
    for path in (there.home / "crawls" / job / "segments").iterdir():
        shutil.copy(path, here.home / "crawls" / job / "segments")
    assert len(set(here.urls(job))) == 60


def test_of_two_machines_that_make_a_job_at_once_one_is_refused(redis_server: object, job: str, tmp_path: Path) -> None:
    """Each has marked a folder of its own; the settings name one of them."""
    machines = [Machine(str(redis_server.url), tmp_path / name) for name in ("here", "there")]  # type: ignore[attr-defined]
    with SimWeb(sites=2, pages_per_site=10, page_bytes=2000) as web:
        crawls = [one.start("crawl", *web.seeds, "--job", job, "--quiet", *OPTIONS) for one in machines]
        said = [crawl.communicate(timeout=120)[1] for crawl in crawls]
        kept = [one.home / "crawls" / job for one in machines if has_records(one.home / "crawls" / job)]
        assert len(kept) == 1, said
        assert sorted(crawl.returncode for crawl in crawls)[0] == 0, said
        assert any("results.id" in words for words in said)
        assert count_records(kept[0]) == 20


def test_a_job_of_an_older_version_goes_on_without_a_marker(redis_server: object, job: str, tmp_path: Path) -> None:
    frontier = str(redis_server.url)  # type: ignore[attr-defined]
    machine, shared = Machine(frontier, tmp_path / "home"), tmp_path / "shared"
    with SimWeb(sites=2, pages_per_site=6, page_bytes=2000) as web:
        machine.run("submit", *web.seeds, "--job", job, "--sink", f"jsonl:{shared}", *OPTIONS)
        _forget_the_id(frontier, job)
        shutil.rmtree(shared)
        machine.run("worker", "--job", job)
        assert not (shared / "results.id").exists()
        assert len(machine.urls(job)) == 12
        # Another folder would have every page fetched again: somebody has to say that it is this one.
        assert "--adopt-folder" in machine.run("repair", job, code=2).stderr
        # With the marker that `repair` gives it, it is checked from then on.
        machine.run("repair", job, "--adopt-folder")
        assert (shared / "results.id").exists()
        (shared / "results.id").unlink()
        machine.run("worker", "--job", job, code=2)


def _forget_the_id(frontier: str, job: str) -> None:
    """Have the record of a job as an older version wrote it."""
    import redis

    with redis.Redis.from_url(frontier) as store:
        key = f"gossamer:{{{job}}}:root"
        settings = json.loads(store.hget(key, "settings"))
        del settings["results_id"]
        store.hset(key, "settings", json.dumps(settings))


def test_lost_segments_are_reported_and_their_pages_fetched_again(frontier: str, job: str, tmp_path: Path) -> None:
    machine, shared = Machine(frontier, tmp_path / "home"), tmp_path / "shared"
    with SimWeb(sites=4, pages_per_site=20, page_bytes=2000) as web:
        crawl(machine, job, web, shared)
        whole = machine.status(job)
        assert (whole["state"], whole["results"]["missing"], whole["warnings"]) == ("finished", 0, [])
        before = Counter(machine.urls(job))
        assert set(before) == set(fetched(web.log()))
        lost = lose(shared)

        # It is reported, with a command that can be pasted.
        seen = machine.status(job)
        assert (seen["state"], seen["results"]["missing"]) == ("finished", lost)
        assert f"gossamer repair {job} --frontier" in seen["warnings"][0]
        machine.run("status", job, "--check", code=1)
        # So it is right after a worker was killed, which counts as alive for a while.
        beat(frontier, job)
        failed = machine.run("export", job, "--format", "urls", code=1)
        beat(frontier, job, left=True)
        assert f"{lost} of {sum(before.values())} stored pages" in failed.stderr
        assert not failed.stdout
        assert f"queue them again with: gossamer repair {job}" in failed.stderr
        machine.run("export", str(shared), "--format", "urls", code=1)
        assert len(machine.urls(job, "--incomplete")) == sum(before.values()) - lost

        repaired = json.loads(machine.run("repair", job, "--json").stdout)
        assert [repaired[name] for name in ("missing", "queued", "lost", "written_off")] == [lost, lost, 0, 0]
        # Once more changes nothing.
        again = json.loads(machine.run("repair", job, "--json").stdout)
        assert (again["missing"], again["queued"], again["stored"]) == (0, 0, sum(before.values()) - lost)
        requests = len(fetched(web.log()))
        assert machine.status(job)["state"] == "resting"
        work(machine, job, "one", "two")
        times = fetched(web.log())
        assert len(times) == requests, "nothing else is fetched"
        assert Counter(times.values()) == {1: sum(before.values()) - lost, 2: lost}
        found = machine.status(job)
        assert (found["state"], found["results"]["missing"]) == ("finished", 0)
        assert Counter(machine.urls(job)) == before, "every page exactly once"


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(10))
def test_a_machine_dies_with_its_disk_in_mid_crawl(frontier: str, job: str, tmp_path: Path, seed: int) -> None:
    """Its worker is killed and all that it stored is gone, half of the time with its request log; the others finish."""
    choose = random.Random(f"disk {seed}")
    delay, with_log = choose.uniform(0.1, 0.3), seed % 2 == 1
    machine, shared = Machine(frontier, tmp_path / "home"), tmp_path / "shared"
    with chain_web(300, hosts=40, seed=seed) as web:
        words = ("--sink", f"jsonl:{shared}", *OPTIONS, *web.options, "--delay", str(delay))
        machine.run("submit", *web.seeds, "--job", job, *words)
        workers = {name: machine.start("worker", "--job", job, "--name", name) for name in ("one", "two", "three")}
        try:
            share = choose.uniform(0.1, 0.8)
            until(lambda: len(web.fetched()) >= share * 300, 120)
            segments = {
                name: written
                for name in workers
                if (written := [*(shared / "segments").glob(f"{name}-*")]) and has_lines(written)
            }
            name = choose.choice(sorted(segments))
            workers[name].kill()
            workers.pop(name).communicate()
            killed_at = time.monotonic()
            for path in shared.rglob(f"{name}-*"):
                if path.is_file() and (with_log or path.parent.name == "segments"):
                    path.unlink()
            for worker in workers.values():
                _, said = worker.communicate(timeout=120)
                assert worker.returncode == 0, said
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()

        # Until then nobody knows that it will not come back.
        time.sleep(max(0.0, killed_at + LIVE_SECONDS + 1 - time.monotonic()))
        left = machine.urls(job, "--incomplete")
        lost, requests = web.all - set(left), sum(web.fetched().values())
        seen = machine.status(job)
        assert len(left) == len(set(left))
        assert lost
        assert (seen["state"], seen["results"]["missing"]) == ("finished", len(lost))
        # So it is right after a worker was killed, which counts as alive for a while.
        beat(frontier, job)
        failed = machine.run("export", job, "--format", "urls", code=1)
        beat(frontier, job, left=True)
        assert f"{len(lost)} of 300 stored pages" in failed.stderr

        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        by_name = frontier.startswith("redis")
        walk = ("--walk", "--seeds", f"{tmp_path}/seeds") if by_name and with_log else ()
        repaired = json.loads(machine.run("repair", job, "--json", *walk).stdout)
        assert repaired["missing"] == len(lost)
        work(machine, job, "four", "five")
        if not walk:
            assert repaired["queued"] == len(lost)
            assert sum(web.fetched().values()) - requests == len(lost), "nothing else is fetched"
        found = machine.status(job)
        assert (found["state"], found["results"]["missing"]) == ("finished", 0)
        assert Counter(machine.urls(job)) == Counter(web.all)
        assert not web.impolite(delay)


def has_lines(paths: list[Path]) -> bool:
    return any(b"\n" in path.read_bytes() for path in paths)


def test_records_that_a_finished_frontier_has_forgotten_are_reported(
    redis_server: object, job: str, tmp_path: Path
) -> None:
    """A server lost more than forget_seconds: the job is finished without pages that it once knew."""
    url = str(redis_server.url)  # type: ignore[attr-defined]
    machine = Machine(url, tmp_path / "home")
    with SimWeb(sites=2, pages_per_site=10, page_bytes=2000) as web:
        done = machine.run("crawl", *web.seeds, "--job", job, "--quiet", *OPTIONS)
        assert "forget_seconds" not in done.stderr
        with redis.Redis.from_url(url) as store:
            store.hincrby(job_key(job), "stored", -3)
        warnings: Any = machine.status(job)["warnings"]
        (warning,) = warnings
        assert warning.startswith("3 recorded pages are not known to the frontier any more")
        assert f"gossamer add {job}" in warning
        again = machine.run("crawl", *web.seeds, "--job", job, *OPTIONS)
        assert "3 recorded pages are not known" in again.stderr
        # Where the whole job is gone, an export is not compared with anything.
        with redis.Redis.from_url(url) as store:
            store.flushall()
        found = machine.run("export", job, "--format", "urls")
        assert len(found.stdout.split()) == 20
        assert "not checked for missing records" in found.stderr


def test_a_healthy_job_raises_no_alarm(frontier: str, job: str, tmp_path: Path) -> None:
    """Redirects, robots, sitemaps, failures, resets, sites that stay dark, and workers that are killed on the way."""
    machine = Machine(frontier, tmp_path / "home")
    kinds = ("plain", "redirects", "loops", "errors", "flaky", "resets", "robots-part", "robots-sitemap", "robots-500")
    options = ("--sitemaps", "--backoff-seconds", "0.05", "--site-failures", "1", "--max-depth", "6", "--workers", "2")
    with SimWeb(sites=9, pages_per_site=25, page_bytes=2000, kinds=kinds) as web:
        words = ("crawl", *web.seeds, "--job", job, "--quiet", "--json", *options, *OPTIONS)
        crawl = machine.start(*words)
        for most in (20, 60):
            until(lambda most=most: len(web.log()) > most or crawl.poll() is not None, 60)  # type: ignore[misc]
            for pid in children(crawl.pid)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        out, said = crawl.communicate(timeout=120)
        # Some pages failed; a record that is missing would be an error.
        assert crawl.returncode == 3, said
        counts = json.loads(out)["counts"]
        assert counts["failed"]
        assert counts["skipped"]
    found = machine.status(job)
    assert (found["state"], found["results"]["missing"]) == ("finished", 0)
    assert len(machine.urls(job)) >= counts["stored"]
    repaired = json.loads(machine.run("repair", job, "--json").stdout)
    assert (repaired["missing"], repaired["queued"], repaired["written_off"]) == (0, 0, 0)
    after = machine.status(job)
    assert (after["state"], after["counts"]["stored"]) == ("finished", counts["stored"])
    assert not any("not known to the frontier" in warning for warning in after["warnings"])


def test_on_redis_lost_pages_that_nothing_names_are_found_by_a_walk(
    redis_server: object, job: str, tmp_path: Path
) -> None:
    """The request log is lost too: then only links lead to the lost pages."""
    machine, shared = Machine(str(redis_server.url), tmp_path / "home"), tmp_path / "shared"  # type: ignore[attr-defined]
    with SimWeb(sites=3, pages_per_site=20, page_bytes=2000) as web:
        crawl(machine, job, web, shared)
        before = Counter(machine.urls(job))
        lost = lose(shared)
        shutil.rmtree(shared / "trail")
        first = json.loads(machine.run("repair", job, "--json", code=1).stdout)
        assert first["queued"] + first["lost"] == lost
        assert first["lost"]
        assert "--walk" in machine.run("repair", job, code=1).stderr
        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        walked = json.loads(machine.run("repair", job, "--json", "--walk", "--seeds", f"{tmp_path}/seeds").stdout)
        assert walked["walked"]
        work(machine, job, "one", "two")
        found = machine.status(job)
        assert (found["state"], found["results"]["missing"]) == ("finished", 0)
        assert Counter(machine.urls(job)) == before


def test_a_lost_results_folder_is_begun_anew_only_if_that_is_said(frontier: str, job: str, tmp_path: Path) -> None:
    machine, shared = Machine(frontier, tmp_path / "home"), tmp_path / "shared"
    with SimWeb(sites=2, pages_per_site=8, page_bytes=2000) as web:
        crawl(machine, job, web, shared)
        shutil.rmtree(shared)
        shared.mkdir()
        machine.run("status", job, "--check", code=1)
        refused = machine.run("export", job, "--format", "urls", code=1)
        assert "mounted" in refused.stderr
        refused = machine.run("repair", job, code=2)
        assert "--adopt-folder" in refused.stderr
        words = ["repair", job, "--json", "--adopt-folder"]
        if frontier.startswith("redis"):
            # Of an empty folder nothing can be learned: the job begins again with its seeds.
            (tmp_path / "seeds").write_text("\n".join(web.seeds))
            words += ["--walk", "--seeds", f"{tmp_path}/seeds"]
        repaired = json.loads(machine.run(*words).stdout)
        assert repaired["missing"] == 16
        work(machine, job, "one", "two")
        assert machine.status(job)["results"]["missing"] == 0
        assert len(set(machine.urls(job))) == len(machine.urls(job)) == 16


def test_a_repair_waits_for_the_workers_to_leave(redis_server: object, job: str, tmp_path: Path) -> None:
    machine, shared = Machine(str(redis_server.url), tmp_path / "home"), tmp_path / "shared"  # type: ignore[attr-defined]
    with SimWeb(sites=2, pages_per_site=200, page_bytes=2000) as web:
        slow = [word if word != "0" else "0.2" for word in OPTIONS]
        machine.run("submit", *web.seeds, "--job", job, "--sink", f"jsonl:{shared}", *slow)
        worker = machine.start("worker", "--job", job, "--name", "busy")
        try:
            while not machine.status(job)["workers"]:
                pass
            refused = machine.run("repair", job, code=2)
            assert "busy" in refused.stderr
            assert f"gossamer stop {job}" in refused.stderr
            # What is being written at this moment is no reason to fail.
            machine.run("export", job, "--format", "urls")
        finally:
            machine.run("stop", job)
            worker.communicate(timeout=120)
