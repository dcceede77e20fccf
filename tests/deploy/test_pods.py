"""Pods of the chart, run as processes: probed, scaled, terminated, and killed, without loss."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import Request, urlopen

import pytest
import redis
from kubelet import Workload
from manifests import one, rendered

import gossamer as package
from gossamer.frontier.backends import open_fleet
from gossamer.lab.simweb.log import fetched, gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Counts, Heartbeat
from gossamer.settings import VERSION
from gossamer.testing.servers import RedisServer, free_port

DELAY = 0.05
MOST_BYTES = 400 * 1024 * 1024
pytestmark = pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)


def values(server: RedisServer, port: int = 8090, **worker: Any) -> dict[str, Any]:
    return {
        "job": "shop",
        "redis": {"enabled": False},
        "frontier": {"url": server.url},
        "service": {"listenOn": "127.0.0.1", "port": port},
        "storage": {"enabled": False},
        "worker": worker,
    }


def gossamer(server: RedisServer, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", *words],
        env={**os.environ, "GOSSAMER_FRONTIER": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(server: RedisServer, folder: Path, seeds: list[str], *more: str) -> None:
    (folder / "seeds").write_text("\n".join(seeds))
    options = ("--allow-private", "--delay", str(DELAY), "--lease-seconds", "5", "--commit-seconds", "0.05")
    place = ("--sink", f"jsonl:{folder}/shared", "--seeds", str(folder / "seeds"))
    gossamer(server, "submit", "--job", "shop", *place, *options, *more)


def seen(server: RedisServer) -> tuple[Counts, list[Heartbeat]]:
    """The counts of the job, and its workers."""

    async def look() -> tuple[Counts, list[Heartbeat]]:
        fleet = await open_fleet(server.url, "shop")
        try:
            return await fleet.counts(), list(await fleet.workers())
        finally:
            await fleet.aclose()

    return asyncio.run(look())


def is_finished(server: RedisServer) -> bool:
    return seen(server)[0].job == "finished"


def until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = 90.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.1)
    return found


@contextmanager
def running(*workloads: Workload) -> Iterator[None]:
    try:
        yield
    finally:
        for workload in workloads:
            workload.close()


def stored(folder: Path) -> list[str]:
    """The URLs of the pages in all segments, including repeated ones."""
    gossamer_export = subprocess.run(
        [sys.executable, "-m", "gossamer", "export", str(folder / "shared")],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [json.loads(line)["url"] for line in gossamer_export.stdout.splitlines()]


def nothing_is_lost(web: SimWeb, folder: Path, *others: str) -> None:
    verdict, log = web.judge(), web.log()
    assert not verdict.missed
    assert not verdict.forbidden
    assert min(gaps(log).values()) >= DELAY
    assert max(max_overlap(log).values()) == 1
    assert set(stored(folder)) == {*fetched(log), *others}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="yes", appendfsync="everysec") as running_server:
        yield running_server


def test_f65_pod_waits_works_and_stops_within_its_grace_period(server: RedisServer, tmp_path: Path) -> None:
    """F65: ready without a job, but not while the frontier is down or after SIGTERM; it leaves no files."""
    workers = Workload(rendered(values(server)), "Deployment", "-worker", tmp_path)
    with running(workers), SimWeb(sites=4, pages_per_site=40, page_bytes=2000, latency_seconds=2.0) as web:
        workers.scale(1)
        (pod,) = workers.pods
        pod.until_ready()
        server.kill()
        until(lambda: not pod.probe("readinessProbe"), pod.said, 30)
        assert pod.probe("livenessProbe")
        server.start()
        pod.until_ready()
        submit(server, tmp_path, web.seeds)
        until(lambda: len(web.log()) > 4, pod.said)
        pod.terminate()
        assert pod.gone() == 0, pod.said
        # The last word stays in the file: without it the pod would have been ready until its end.
        assert not pod.probe("readinessProbe")
        counts, heartbeats = seen(server)
        pages = [entry for entry in web.log() if entry.target != "/robots.txt"]
        assert counts.leased == 0
        assert counts.stored == len(pages)
        assert max(heartbeat.memory_bytes for heartbeat in heartbeats) < MOST_BYTES
        assert [(heartbeat.worker, heartbeat.left) for heartbeat in heartbeats] == [(pod.name, True)]


@pytest.mark.long
def test_f65_pinned_pod_restarts_with_its_name_and_shards(server: RedisServer, tmp_path: Path) -> None:
    """F65: the pod keeps its StatefulSet name, and all pods together cover the job's shards."""
    objects = rendered(values(server, pinned=True, replicas=2, shards=5))
    workers = Workload(objects, "StatefulSet", "-worker", tmp_path)
    with running(workers), SimWeb(sites=8, pages_per_site=25, page_bytes=2000) as web:
        submit(server, tmp_path, web.seeds, "--shards", "5")
        workers.scale(one(objects, "StatefulSet")["spec"]["replicas"])
        until(lambda: len(web.log()) > 24, workers.pods[0].said)
        assert {heartbeat.shards for heartbeat in seen(server)[1]} == {"0-1/5", "2-4/5"}
        workers.replace(workers.pods[0])
        workers.pods[0].until_ready()
        until(lambda: is_finished(server), workers.pods[0].said)
        workers.scale(0)
        nothing_is_lost(web, tmp_path)
    assert workers.codes == [0, 0]
    assert workers.names[0] == workers.names[2]


class Keda:
    """A minimal KEDA: polls the trigger of a ScaledObject, and computes the number of replicas."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self._spec = one(objects, "ScaledObject")["spec"]
        (self._trigger,) = self._spec["triggers"]
        reference = self._trigger["authenticationRef"]["name"]
        (target,) = one(objects, "TriggerAuthentication", reference)["spec"]["secretTargetRef"]
        self._token = one(objects, "Secret", target["name"])["stringData"][target["key"]]
        service = one(objects, "Service", "-service")["metadata"]["name"]
        self._url = self._trigger["metadata"]["url"].replace(f"{service}.gossamer.svc", "127.0.0.1")

    def replicas(self) -> int:
        request = Request(self._url, headers={"Authorization": f"Bearer {self._token}"})
        with urlopen(request, timeout=10) as answer:
            found = json.load(answer)
        for part in self._trigger["metadata"]["valueLocation"].split("."):
            found = found[part]
        wanted = ceil(found / float(self._trigger["metadata"]["targetValue"]))
        return int(min(max(wanted, self._spec["minReplicaCount"]), self._spec["maxReplicaCount"]))


class Gate(ThreadingHTTPServer):
    """A site with one page that is served once the gate opens; until then, a worker leases its lane."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _AtTheGate)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.asked, self.opened = Event(), Event()
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _AtTheGate(BaseHTTPRequestHandler):
    server: Gate

    def do_GET(self) -> None:
        if self.path == "/":
            self.server.asked.set()
            self.server.opened.wait()
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.long
@pytest.mark.timeout(900)
def test_f22_f66_autoscaling_to_zero_and_back_loses_nothing(server: RedisServer, tmp_path: Path) -> None:
    """F22, F65, F66: 1 -> 16 -> 1 -> 0 -> 4 by `/api/scale`, each pod ended by SIGTERM within its grace."""
    more = {"autoscaling": {"kind": "keda", "max": 16}}
    objects = rendered(values(server, free_port()) | more)
    service = Workload(objects, "Deployment", "-service", tmp_path)
    workers = Workload(objects, "Deployment", "-worker", tmp_path)
    keda = Keda(objects)
    plan: dict[str, Any] = {"sites": 320, "pages_per_site": 6, "page_bytes": 2000, "latency_seconds": 0.02}
    with running(service, workers), SimWeb(**plan) as web, Gate() as gate:
        service.scale(1)
        service.pods[0].until_ready()
        # One fetch at once, so that few sites are enough for many workers; and one site that keeps the last one.
        options = ("--concurrency", "1", "--scope", "site", "--fetch-seconds", "900", "--drain-seconds", "3")
        submit(server, tmp_path, [gate.url], *options)
        steps: list[int] = []

        def follow() -> int:
            wanted = keda.replicas()
            if not steps or steps[-1] != wanted:
                steps.append(wanted)
            workers.scale(wanted)
            return wanted

        def reach(count: int, also: Callable[[], bool] = lambda: True) -> None:
            until(lambda: follow() == count and also(), lambda: f"never {count}: {steps}", 300)

        reach(1, gate.asked.is_set)
        gossamer(server, "add", "shop", *web.seeds[:256])
        reach(16)
        reach(1)
        gate.opened.set()
        reach(0, lambda: is_finished(server))
        assert workers.pods == []
        # Nobody works: the advice stays at none.
        assert [keda.replicas() for _ in range(5)] == [0] * 5
        gossamer(server, "add", "shop", *web.seeds[256:])
        reach(4)
        reach(0, lambda: is_finished(server))
        service.scale(0)
        nothing_is_lost(web, tmp_path, gate.url)
        assert not web.judge().repeated
        assert max(heartbeat.memory_bytes for heartbeat in seen(server)[1]) < MOST_BYTES
    assert len(set(workers.names)) >= 20
    assert set(workers.codes) == {0}
    assert service.codes == [0]


def next_version(folder: Path, *changes: tuple[str, str, str]) -> list[dict[str, str]]:
    """Create another version of the sources with (file, old, new) replaced; returns the environment to run it."""
    copy = folder / "gossamer"
    shutil.copytree(Path(package.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in (("settings.py", f'VERSION = "{VERSION}"', 'VERSION = "99.0"'), *changes):
        text = (copy / name).read_text("utf-8")
        assert text.count(old) == 1
        (copy / name).write_text(text.replace(old, new), "utf-8")
    return [{"name": "PYTHONPATH", "value": str(folder)}]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_f24_rolling_update_on_one_frontier(server: RedisServer, tmp_path: Path) -> None:
    """F24: versions with the same format work together; a different format is an error and changes nothing."""
    script = ("frontier/redis/lua/seen.lua", "function operations.add()", "function operations.add() -- another one")
    together = next_version(tmp_path / "next", script)
    apart = next_version(tmp_path / "later", ("frontier/redis/server.py", "FORMAT = 2", "FORMAT = 3"))
    old = Workload(rendered(values(server), release="old"), "Deployment", "-worker", tmp_path)
    new = Workload(rendered(values(server, env=together), release="new"), "Deployment", "-worker", tmp_path)
    later = Workload(rendered(values(server, env=apart), release="later"), "Deployment", "-worker", tmp_path)
    with running(old, new, later), SimWeb(sites=56, pages_per_site=30, page_bytes=2000, latency_seconds=0.02) as web:
        # A worker with one fetch at once holds 16 sites at most: three of four pods have some of the 48.
        submit(server, tmp_path, web.seeds[:8], "--concurrency", "1")
        old.scale(2)
        until(lambda: len(web.log()) > 8, lambda: old.pods[0].said)
        with redis.Redis.from_url(server.url) as store:
            record = {key: store.hgetall(key) for key in store.keys("*:root")}
            later.scale(1)
            assert later.pods[0].process.wait(60) == 1
            assert "was written by another version of Gossamer" in later.pods[0].said
            assert record
            assert {key: store.hgetall(key) for key in record} == record
        new.scale(2)
        for pod in new.pods:
            pod.until_ready()
        gossamer(server, "add", "shop", *web.seeds[8:])
        both = {VERSION, "99.0"}
        until(
            lambda: {heartbeat.version for heartbeat in seen(server)[1] if heartbeat.pages} == both,
            lambda: new.pods[0].said,
        )
        old.scale(0)
        until(lambda: is_finished(server), lambda: new.pods[0].said)
        new.scale(0)
        nothing_is_lost(web, tmp_path)
        assert not web.judge().repeated
    assert old.codes == new.codes == [0, 0]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_worker_with_the_settings_of_the_chart_stays_under_400_mb(server: RedisServer, tmp_path: Path) -> None:
    """64 concurrent fetches of 300 KB pages with 500 links each, more than on most sites."""
    workers = Workload(rendered(values(server)), "Deployment", "-worker", tmp_path)
    plan: dict[str, Any] = {"sites": 128, "pages_per_site": 6, "page_bytes": 300_000, "links_per_page": 500}
    with running(workers), SimWeb(**plan) as web:
        workers.scale(1)
        submit(server, tmp_path, web.seeds, "--delay", "0")
        until(lambda: is_finished(server), workers.pods[0].said, 400)
        assert workers.pods[0].peak_bytes < MOST_BYTES
        assert not web.judge().missed
