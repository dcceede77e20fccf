"""Capacity plans: small cases by hand, and properties that hold for all requirements."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as some

from gossamer.cli import named
from gossamer.errors import ConfigError
from gossamer.lab import plan
from gossamer.lab.plan import (
    KNOWN_HOSTS,
    Figures,
    Hosts,
    MachineSize,
    Part,
    Requirements,
    StoreCost,
    plan_crawl,
    read_figures,
    reference,
    usual_hosts,
    what_if,
    write_figures,
)

change = msgspec.structs.replace
PLAIN = Figures(
    measured_on="2026-11-16",
    machine="none",
    version="0",
    small_page_cpu_seconds=0.001,
    large_page_cpu_seconds=0.002,
    host_cpu_seconds=0.0,
    tls_cpu_seconds=0.0,
    warc_cpu_seconds=0.0004,
    warc_ratio=0.25,
    frontiers={
        "redis": StoreCost(
            client_cpu_seconds=0.0,
            server_cpu_seconds=1e-4,
            queued_bytes=50,
            done_bytes=10,
            again_bytes=100,
            in_memory=True,
        )
    },
)
TRILLION = Requirements(pages=1e12, period_seconds=7 * 86_400, page_bytes=10_000, hosts=1.3e9)
requirements = some.builds(
    Requirements,
    pages=some.floats(1e9, 1e13),
    period_seconds=some.floats(3600, 1e8),
    page_bytes=some.floats(1000, 1e6),
    hosts=some.floats(1e6, 2e9),
    delay=some.floats(0.01, 60),
    latency_seconds=some.floats(0.01, 5),
    once=some.booleans(),
    regions=some.integers(1, 9),
    wire_ratio=some.floats(0.1, 1),
    busy_share=some.floats(0.2, 1),
)


def test_a_trillion_pages_a_week_by_hand() -> None:
    found = plan_crawl(TRILLION, PLAIN)
    assert found.pages_per_second == pytest.approx(1_653_439, rel=1e-6)
    assert found.raw_bytes == 10e15
    assert found.stored_bytes == 2.5e15
    assert found.requests_per_second == pytest.approx(1_653_439 / 0.82, rel=1e-6)
    # 1.5 s for each request of a site.
    assert found.most_of_a_host == pytest.approx(403_200)
    assert found.sites_at_once == pytest.approx(1.5 * found.requests_per_second)
    # 10 kB are 1 ms and 0.1 ms in the archive; what is no page costs 0.667 ms.
    assert found.cores == pytest.approx(1_653_439 * (0.0011 + (1 / 0.82 - 1) * (0.001 - 1e-3 / 3)), rel=1e-6)
    assert found.received_bits_per_second == pytest.approx(8 * (1_653_439 * 10_000 + found.requests_per_second * 800))


def test_a_small_crawl_by_hand() -> None:
    """86,400 pages per day on 10 equal hosts: one page per second, on one machine."""
    found = plan_crawl(Requirements(pages=86_400, period_seconds=86_400, page_bytes=10_000, hosts=10), PLAIN)
    assert (found.pages_per_second, found.workers, found.servers, found.shards) == (1.0, 1, 1, 1)
    assert found.raw_bytes == 864e6
    assert found.frontier_bytes == pytest.approx(86_400 * (100 + 0.14 / 0.57 * 50 + 0.29 / 0.57 * 10))
    assert found.between_regions_bits_per_second == 0


@given(requirements)
def test_twice_the_web_takes_twice_of_everything(needs: Requirements) -> None:
    one, two = plan_crawl(needs, PLAIN), plan_crawl(change(needs, pages=2 * needs.pages, hosts=2 * needs.hosts), PLAIN)
    for name in ("pages_per_second", "raw_bytes", "stored_bytes", "cores", "frontier_bytes", "sites_at_once"):
        assert getattr(two, name) == pytest.approx(2 * getattr(one, name))
    for name in ("workers", "servers", "shards"):
        assert 2 * (getattr(one, name) - 1) <= getattr(two, name) <= 2 * getattr(one, name)


@given(requirements)
def test_more_pages_on_the_same_hosts_never_take_less(needs: Requirements) -> None:
    one, two = plan_crawl(needs, PLAIN), plan_crawl(change(needs, pages=2 * needs.pages), PLAIN)
    assert two.raw_bytes >= 2 * one.raw_bytes
    assert two.cores >= one.cores
    assert two.cost >= one.cost
    assert two.polite_share <= one.polite_share + 1e-9


RELIEFS: dict[Part, Any] = {
    "politeness": lambda needs, figures: (change(needs, delay=needs.delay / 2, latency_seconds=1e-3), figures),
    "worker cores": lambda needs, figures: (needs, _less_cpu(figures)),
    "worker memory": lambda needs, figures: (change(needs, lane_bytes=needs.lane_bytes / 2, process_bytes=1), figures),
    "bandwidth": lambda needs, figures: (change(needs, wire_ratio=needs.wire_ratio / 2, header_bytes=0), figures),
    "frontier cpu": lambda needs, figures: (needs, _store(figures, server_cpu_seconds=5e-5)),
    "frontier space": lambda needs, figures: (needs, _store(figures, queued_bytes=25, done_bytes=5, again_bytes=50)),
    "storage": lambda needs, figures: (needs, change(figures, warc_ratio=figures.warc_ratio / 2)),
    "traffic": lambda needs, figures: (change(needs, sent_bytes=needs.sent_bytes / 2), figures),
}


def _less_cpu(figures: Figures) -> Figures:
    return change(figures, small_page_cpu_seconds=5e-4, large_page_cpu_seconds=1e-3, warc_cpu_seconds=2e-4)


def _store(figures: Figures, **values: float) -> Figures:
    return change(figures, frontiers={"redis": change(figures.frontiers["redis"], **values)})


@given(requirements)
def test_relieving_the_named_bottleneck_lowers_the_cost(needs: Requirements) -> None:
    found = plan_crawl(needs, PLAIN)
    better = plan_crawl(*RELIEFS[found.bottleneck](needs, PLAIN))
    if found.bottleneck == "politeness":
        assert found.polite_share < 0.999
        assert better.polite_share > found.polite_share
    else:
        assert found.polite_share >= 0.999
        assert better.cost < found.cost or max(found.workers, found.servers) == 1


@given(requirements)
def test_next_bottleneck_is_the_largest_saving(needs: Requirements) -> None:
    """Halve the needs of workers, of the frontier, of storage, and of traffic, one at a time."""
    found = plan_crawl(needs, PLAIN)
    half = {
        "workers": (
            change(
                needs,
                lane_bytes=needs.lane_bytes / 2,
                wire_ratio=needs.wire_ratio / 2,
                header_bytes=needs.header_bytes / 2,
            ),
            _less_cpu(PLAIN),
        ),
        "frontier": (
            needs,
            _store(PLAIN, server_cpu_seconds=5e-5, queued_bytes=25, done_bytes=5, again_bytes=50),
        ),
        "storage": RELIEFS["storage"](needs, PLAIN),
        "traffic": (
            change(needs, sent_bytes=needs.sent_bytes / 2, prices=change(needs.prices, between_regions_gb=0.01)),
            PLAIN,
        ),
    }
    saved = {group: found.cost - plan_crawl(*relief).cost for group, relief in half.items()}
    groups = dict.fromkeys(found.worker_needs, "workers") | dict.fromkeys(found.server_needs, "frontier")
    dearest = groups.get(found.next_bottleneck, found.next_bottleneck)
    # Whole machines are rented, none of which costs a thousand dollars.
    assert saved[dearest] >= 0.99 * max(saved.values()) - 2000


@given(some.floats(1e3, 1e6), some.integers(2, 3000), some.floats(1, 1e5))
def test_polite_share_is_the_sum_over_all_hosts(mean: float, number: int, most: float) -> None:
    hosts = Hosts(mean * number, number)
    sizes = [hosts.largest * rank**-hosts.exponent for rank in range(1, number + 1)]
    scale = hosts.pages / sum(sizes)
    by_hand = sum(min(size * scale, most) for size in sizes)
    assert hosts.within(most) == pytest.approx(by_hand, rel=0.12)
    assert hosts.within(most) <= hosts.pages
    assert hosts.within(2 * most) >= hosts.within(most) - 1e-6


def test_the_shape_of_the_web_is_that_of_the_crawls_it_was_drawn_from() -> None:
    """CC-MAIN-2026-30: the top 500 of 33.3 M domains hold 5.1 % of the pages; 2.136 bn pages on 40.5 M hosts."""
    assert Hosts(2.136e9, 33.3e6).share_of_top(500) == pytest.approx(0.051, abs=0.004)
    assert usual_hosts(2.136e9) == pytest.approx(40.5e6, rel=0.01)
    assert usual_hosts(1e12) == KNOWN_HOSTS
    assert Hosts(1e6, 1).within(10) == pytest.approx(10)


def test_larger_machines_reduce_their_number() -> None:
    narrow = change(TRILLION, worker=MachineSize(cores=64, memory_bytes=256e9, bits_per_second=1e9))
    found, wider = (
        plan_crawl(narrow, PLAIN),
        plan_crawl(change(narrow, worker=change(narrow.worker, bits_per_second=2e9)), PLAIN),
    )
    assert max(found.worker_needs, key=lambda need: found.worker_needs[need]) == "bandwidth"
    assert math.isclose(wider.workers, found.workers / 2, rel_tol=0.01)


def test_every_variant_differs_from_the_request() -> None:
    first, *others = what_if(TRILLION, reference())
    assert first.change == "as asked"
    assert len({change for change, _ in others}) == len(others) > 12
    assert [name for name, found in others if found == first.plan] == []


@pytest.mark.parametrize(
    ("text", "read", "value"),
    [
        ("1e12", plan.count, 1e12),
        ("1,000", plan.count, 1000),
        ("2bn", plan.count, 2e9),
        ("10kB", plan.byte_count, 10_000),
        ("1 KiB", plan.byte_count, 1024),
        ("7d", plan.seconds, 604_800),
        ("500ms", plan.seconds, 0.5),
        ("36h", plan.seconds, 129_600),
    ],
)
def test_human_readable_quantities_are_parsed(text: str, read: Any, value: float) -> None:
    assert read(text) == value


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1e99", "5 parsecs", "1.2.3", "nan", "inf"])
def test_invalid_quantities_are_rejected(text: str) -> None:
    for read in (plan.count, plan.byte_count, plan.seconds):
        with pytest.raises(ConfigError):
            read(text)


def test_figures_round_trip(tmp_path: Any) -> None:
    write_figures(tmp_path / "a" / "figures.json", PLAIN)
    assert read_figures(tmp_path / "a" / "figures.json") == PLAIN
    (tmp_path / "bad.json").write_text('{"machine": 1}')
    for name in ("bad.json", "none.json"):
        with pytest.raises(ConfigError):
            read_figures(tmp_path / name)


def test_plan_command_prints_the_source_of_its_figures(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["--pages", "1e12", "--every", "7d", "--page-size", "10kB", "--store", "redis"]
    done = CliRunner().invoke(named("plan"), words)
    assert done.exit_code == 0, done.output
    assert "1.65 M pages/s" in done.output
    assert "10 PB a pass" in done.output
    assert f"figures: reference, {reference().measured_on}" in done.output
    write_figures(tmp_path / "gossamer" / "figures.json", PLAIN)
    assert "figures: measured here" in CliRunner().invoke(named("plan"), words).output
    found = json.loads(CliRunner().invoke(named("plan"), [*words, "--json", "--compression", "0.5"]).output)
    assert found["plans"]["as asked"]["stored_bytes"] == 5e15
    with pytest.raises(ConfigError, match="no figures"):
        CliRunner().invoke(named("plan"), [*words[:-1], "oracle"], catch_exceptions=False)
