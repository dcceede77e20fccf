"""Pods as the chart renders them, run as processes: probed, scaled, ended and killed, with nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from kubelet import Workload
from manifests import one, rendered

from gossamer.fleet import open_fleet
from gossamer.model import Counts, Pulse
from gossamer.sim.log import fetched, gaps, max_overlap
from gossamer.testing.servers import RedisServer, free_port
from gossamer.testing.web import SimWeb

DELAY = 0.05
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


def seen(server: RedisServer) -> tuple[Counts, list[Pulse]]:
    """The counts of the job, and its workers."""

    async def look() -> tuple[Counts, list[Pulse]]:
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
    """The addresses of the pages in all segments, each as often as it stands there."""
    gossamer_export = subprocess.run(
        [sys.executable, "-m", "gossamer", "export", str(folder / "shared")],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [json.loads(line)["url"] for line in gossamer_export.stdout.splitlines()]


def nothing_is_lost(web: SimWeb, folder: Path) -> None:
    verdict, log = web.judge(), web.log()
    assert not verdict.missed
    assert not verdict.forbidden
    assert min(gaps(log).values()) >= DELAY
    assert max(max_overlap(log).values()) == 1
    assert set(stored(folder)) == set(fetched(log))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="yes", appendfsync="everysec") as running_server:
        yield running_server


def test_f65_a_pod_waits_for_its_job_works_and_leaves_within_its_grace(server: RedisServer, tmp_path: Path) -> None:
    """F65: ready before there is a job, but not while the frontier is away nor from SIGTERM on; it leaves nothing."""
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
        counts, pulses = seen(server)
        pages = [entry for entry in web.log() if entry.target != "/robots.txt"]
        assert counts.leased == 0
        assert counts.stored == len(pages)
        assert max(pulse.memory_bytes for pulse in pulses) < 400 * 1024 * 1024
        assert [(pulse.worker, pulse.left) for pulse in pulses] == [(pod.name, True)]


@pytest.mark.long
def test_f65_a_pinned_pod_that_dies_comes_back_under_its_name_and_takes_up_its_shards(
    server: RedisServer, tmp_path: Path
) -> None:
    """F65: the same StatefulSet name back; the shards of all pods together are those of the job."""
    objects = rendered(values(server, pinned=True, replicas=2, shards=5))
    workers = Workload(objects, "StatefulSet", "-worker", tmp_path)
    with running(workers), SimWeb(sites=8, pages_per_site=25, page_bytes=2000) as web:
        submit(server, tmp_path, web.seeds, "--shards", "5")
        workers.scale(one(objects, "StatefulSet")["spec"]["replicas"])
        until(lambda: len(web.log()) > 24, workers.pods[0].said)
        assert {pulse.shards for pulse in seen(server)[1]} == {"0-1/5", "2-4/5"}
        workers.replace(workers.pods[0])
        workers.pods[0].until_ready()
        until(lambda: is_finished(server), workers.pods[0].said)
        workers.scale(0)
        nothing_is_lost(web, tmp_path)
    assert workers.codes == [0, 0]
    assert workers.names[0] == workers.names[2]


class Keda:
    """KEDA as far as it matters here: polls what a ScaledObject says, and gives the number of replicas."""

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


@pytest.mark.long
def test_f22_f66_workers_follow_the_advice_up_down_to_zero_and_back_with_nothing_lost(
    server: RedisServer, tmp_path: Path
) -> None:
    """F22, F65, F66: 1 -> 4 -> 1 -> 0 -> 2 by `/api/scale`, each pod ended by SIGTERM within its grace."""
    more = {"autoscaling": {"kind": "keda", "max": 4}}
    objects = rendered(values(server, free_port()) | more)
    service = Workload(objects, "Deployment", "-service", tmp_path)
    workers = Workload(objects, "Deployment", "-worker", tmp_path)
    keda = Keda(objects)
    plan = {"sites": 89, "pages_per_site": 12, "page_bytes": 2000, "latency_seconds": 0.02}
    with running(service, workers), SimWeb(**plan) as web:
        service.scale(1)
        service.pods[0].until_ready()
        first, second, third = web.seeds[:1], web.seeds[1:65], web.seeds[65:]
        # One fetch at once, so that few sites are enough for many workers.
        submit(server, tmp_path, first, "--concurrency", "1", "--scope", "site")
        steps: list[int] = []

        def follow() -> int:
            wanted = keda.replicas()
            if not steps or steps[-1] != wanted:
                steps.append(wanted)
            workers.scale(wanted)
            return wanted

        until(lambda: follow() == 1 and web.log(), "no first worker")
        gossamer(server, "add", "shop", *second)
        until(lambda: follow() == 4, lambda: f"never four: {steps}")
        until(lambda: follow() == 1, lambda: f"never one again: {steps}")
        until(lambda: follow() == 0 and is_finished(server), lambda: f"never none: {steps}")
        assert workers.pods == []
        # Nobody works: the advice stays at none.
        assert [keda.replicas() for _ in range(5)] == [0] * 5
        gossamer(server, "add", "shop", *third)
        until(lambda: follow() >= 2, lambda: f"never back: {steps}")
        until(lambda: follow() == 0 and is_finished(server), lambda: f"never at rest: {steps}")
        service.scale(0)
        nothing_is_lost(web, tmp_path)
        assert not web.judge().repeated
    assert set(workers.codes) == {0}
    assert service.codes == [0]
