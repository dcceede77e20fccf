"""`gossamer scale`: the recommended number of workers, and its explanation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import gossamer
from hypothesis import given
from hypothesis import strategies as st

from gossamer.jobs.scaling import Advice, advise, measure
from gossamer.model import Counts, Heartbeat, RegionView, ShardView
from gossamer.settings import Settings, build
from gossamer.testing.servers import RedisServer


def shard(number: int = 0, **regions: RegionView) -> ShardView:
    views = {name.replace("nowhere", ""): view for name, view in regions.items()}
    return ShardView(shard=number, server="here", counts=Counts(), regions=views)


def advice(
    *regions: dict[str, RegionView], queued: int = 1_000_000, heartbeats: tuple[Heartbeat, ...] = (), **choice: Any
) -> Advice:
    settings: Settings = choice.pop("settings", Settings())
    counts = Counts(queued=queued, leased=choice.pop("leased", 0), job=choice.pop("job", "running"))
    views = [shard(number, **some) for number, some in enumerate(regions)]
    return advise(counts, views, heartbeats, settings=settings, **choice)


def ready(count: int) -> dict[str, RegionView]:
    return {"nowhere": RegionView(ready=count)}


def test_scale_long_queue_of_few_sites_needs_one_worker() -> None:
    found = advice(ready(12), queued=50_000_000)
    assert found.workers == 1
    assert "12 sites are ready" in found.why
    assert "1 worker is enough" in found.why


def test_scale_recommends_workers_by_ready_sites() -> None:
    found = advice(ready(5_000))
    # 1.25 s for a page of each: 4,000 pages a second, and 200 for a worker.
    assert found.workers == 20
    assert advice(ready(5_000), settings=build({"delay": 9.75})).workers == 5, "lanes that are held, not pages"
    assert advice(*[ready(1_000)] * 5).workers == 20, "however many shards they lie in"


def test_scale_uses_the_rate_of_saturated_workers() -> None:
    slow = tuple(Heartbeat(worker=f"w{n}", rate=50.0, load=1.0, fetching=60, active=64) for n in range(3))
    found = advice(ready(5_000), heartbeats=slow)
    assert found.is_measured
    assert found.worker_pages_per_second == 50.0
    assert found.workers == 80
    idle = tuple(Heartbeat(worker=f"w{n}", rate=0.5, load=0.01, fetching=0) for n in range(3))
    assert advice(ready(5_000), heartbeats=idle).is_measured is False


def test_scale_uses_each_sites_own_delay() -> None:
    slow = [{"site": f"s{n}", "queued": 100, "delay": 10.0} for n in range(100)]
    assert advice(ready(100), sites=slow).pages_per_second == pytest.approx(100 / 10.25, abs=0.1)
    assert advice(ready(200), sites=slow).pages_per_second == pytest.approx(100 / 10.25 + 100 / 1.25, abs=0.1)


def test_scale_slow_responses_need_more_concurrency() -> None:
    waiting = (Heartbeat(worker="w", rate=12.0, load=0.05, fetching=60, active=64),)
    assert measure(waiting).latency == 5.0
    found = advice(ready(1_200), heartbeats=waiting, settings=build({"concurrency": 64}))
    # 1,200 lanes with a page in 6 s each, of which 5 are spent on the wire: 1,000 fetches at once.
    assert found.workers == 16


def test_scale_ignores_work_of_less_than_a_minute() -> None:
    found = advice(ready(10_000), queued=10_000)
    assert found.workers == 10, "for the lanes"
    assert advice(ready(500), queued=500).workers == 1
    assert "only 500 pages are queued" in advice(ready(500), queued=500).why


def test_scale_recommends_zero_and_names_the_next_due_time() -> None:
    found = advice({"nowhere": RegionView(later=3, due_in=3_600.0)}, queued=0)
    assert (found.workers, found.due_in) == (0, 3_600.0)
    assert "3,600 s" in found.why
    assert advice({"nowhere": RegionView()}, queued=0).due_in is None
    assert advice(queued=0).workers == 0


def test_f66_last_worker_stays_while_work_is_running_or_due_soon() -> None:
    assert advice({"nowhere": RegionView(later=1, soon=1, due_in=50.0)}, queued=1).workers == 1
    assert advice({"nowhere": RegionView(later=1, due_in=500.0)}, queued=0, leased=1).workers == 1


@pytest.mark.parametrize("job", ["paused", "stopping", "finished", "missing"])
def test_scale_stopped_job_needs_no_worker(job: str) -> None:
    assert advice(ready(5_000), job=job).workers == 0
    assert job in advice(ready(5_000), job=job).why


def test_scale_counts_workers_per_region() -> None:
    found = advice({"eu": RegionView(ready=3), "us": RegionView(ready=500), "nowhere": RegionView(ready=100)})
    assert {name: need.workers for name, need in found.regions.items()} == {"": 0, "eu": 1, "us": 2}
    assert found.workers == 3
    lonely = advice({"eu": RegionView(ready=3), "nowhere": RegionView(ready=5_000)})
    assert lonely.regions["eu"].workers == 1
    assert lonely.workers == 20


def test_scale_limits_apply_and_are_named() -> None:
    assert advice(ready(5_000), most=4).workers == 4
    assert "limit" in advice(ready(5_000), most=4).why
    assert advice(ready(0), least=2).workers == 2
    assert "limit" not in advice(ready(5_000), least=2, most=40).why


@given(
    lanes=st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    queued=st.integers(0, 10**9),
    rates=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1.0), st.integers(0, 64)), max_size=5),
    delay=st.floats(0, 1e4),
)
def test_scale_recommendation_stays_in_bounds(
    lanes: list[int], queued: int, rates: list[tuple[float, float, int]], delay: float
) -> None:
    heartbeats = tuple(Heartbeat(worker=str(n), rate=r, load=load, fetching=f) for n, (r, load, f) in enumerate(rates))
    regions = {f"r{number}": RegionView(ready=count) for number, count in enumerate(lanes)}
    found = advice(regions, queued=queued, heartbeats=heartbeats, settings=build({"delay": delay}))
    assert (found.workers > 0) == (sum(lanes) > 0)
    assert found.workers <= sum(lanes)
    assert found.why


def test_only_a_fleet_is_scaled(tmp_path: Path) -> None:
    refused = gossamer("scale", "shop", cwd=tmp_path)
    assert refused.returncode == 2
    assert b"hint:" in refused.stderr


def test_scale_prints_only_the_number_to_stdout(redis_server: RedisServer, tmp_path: Path) -> None:
    frontier = {"GOSSAMER_FRONTIER": redis_server.url}
    seeds = [f"http://s{number}.test/" for number in range(12)]
    made = gossamer(
        "submit", *seeds, "--job", "scaled", "--sink", f"jsonl:{tmp_path}", cwd=tmp_path, **frontier
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    said = gossamer("scale", "scaled", cwd=tmp_path, **frontier)
    assert (said.returncode, said.stdout) == (0, b"1\n")
    assert b"12 sites are ready" in said.stderr
    quiet = gossamer("scale", "scaled", "--quiet", "--min", "3", cwd=tmp_path, **frontier)
    assert (quiet.stdout, quiet.stderr) == (b"3\n", b"")
    details = json.loads(gossamer("scale", "scaled", "--json", cwd=tmp_path, **frontier).stdout)
    assert (details["job"], details["workers"], details["lanes"], details["live"]) == ("scaled", 1, 12, 0)
    assert details["due_in"] == 0
    gossamer("pause", "scaled", cwd=tmp_path, **frontier)
    assert gossamer("scale", "scaled", "--quiet", cwd=tmp_path, **frontier).stdout == b"0\n"
    crossed = gossamer("scale", "scaled", "--min", "3", "--max", "2", cwd=tmp_path, **frontier)
    assert crossed.returncode == 2
