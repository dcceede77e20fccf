from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.frontier import policy

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
seconds = st.floats(0, 1e6)


def rank(strategy: str, *, priority: int = 0, depth: int = 0, hops: int = 0) -> int:
    return policy.rank(strategy, priority=priority, depth=depth, hops=hops)


@given(st.sampled_from(["bfs", "dfs", "best", "random"]), st.integers(-1000, 1000), st.integers(0, 500))
def test_a_larger_priority_is_sooner_at_any_depth(strategy: str, priority: int, depth: int) -> None:
    assert rank(strategy, priority=priority + 1, depth=depth) < rank(strategy, priority=priority, depth=0)
    assert rank(strategy, priority=priority + 1, depth=0) < rank(strategy, priority=priority, depth=depth)


def test_depth_decides_by_strategy() -> None:
    assert rank("bfs", depth=1) < rank("bfs", depth=2)
    assert rank("dfs", depth=2) < rank("dfs", depth=1)
    assert rank("best", depth=2) == rank("best", depth=1) == rank("random", depth=7)


@given(st.integers(-1000, 1_000_000), st.integers(0, 500), st.integers(1, 10))
def test_the_next_hop_of_a_redirect_is_before_everything(priority: int, depth: int, hops: int) -> None:
    assert rank("bfs", depth=depth, hops=hops) < rank("bfs", priority=priority)


@given(st.integers(1, 10**9), st.floats(0.1, 100), st.floats(1, 1e5))
def test_backoff_doubles_up_to_its_cap(failures: int, base: float, cap: float) -> None:
    wait = policy.backoff(failures, base=base, cap=cap)
    assert min(base, cap) <= wait <= cap * 1.1
    exact = policy.backoff(failures, base=base, cap=cap, jitter=0.0)
    assert exact <= policy.backoff(failures + 1, base=base, cap=cap, jitter=0.0) <= 2 * exact


def test_backoff_has_jitter() -> None:
    assert len({policy.backoff(3, base=10, cap=1000) for _ in range(50)}) > 10


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("604801", policy.HOLD_MAX_SECONDS),
        ("9" * 400, policy.HOLD_MAX_SECONDS),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        ("Sun, 01 Mar 2026 14:00:00 +0200", 0.0),
        ("Sun, 01 Mar 2026 12:01:00", 60.0),
        ("Sunday, 01-Mar-26 12:01:30 GMT", 90.0),
        ("Sun Mar  1 12:01:30 2026", 90.0),
        (format_datetime(NOW - timedelta(days=9), usegmt=True), 0.0),
        (format_datetime(NOW + timedelta(days=9), usegmt=True), policy.HOLD_MAX_SECONDS),
        ("Fri, 31 Dec 9999 23:59:59 GMT", policy.HOLD_MAX_SECONDS),
    ],
)
def test_retry_after_is_exact_up_to_seven_days(value: str, wait: float) -> None:
    assert policy.retry_after(value, now=NOW.timestamp()) == wait


@pytest.mark.parametrize("value", ["", " ", "soon", "-5", "1.5", "١٢", "²", "1e3", "0x10", "Fri, 99 Foo 2026", "\x00"])
def test_retry_after_that_says_nothing_usable_is_none(value: str) -> None:
    assert policy.retry_after(value, now=NOW.timestamp()) is None


@given(
    st.one_of(st.text(max_size=60), st.from_regex(r"\w{3}, \d+ \w{3} -?\d+ \d+:\d+:\d+ [-+A-Z0-9]+", fullmatch=True))
)
def test_retry_after_survives_any_header(value: str) -> None:
    wait = policy.retry_after(value, now=NOW.timestamp())
    assert wait is None or 0 <= wait <= policy.HOLD_MAX_SECONDS


@given(seconds, seconds, st.sampled_from([200, 301, 404, 429, 500, 503]), st.floats(0, 300))
def test_adaptive_delay_is_never_under_its_floor(previous: float, latency: float, status: int, floor: float) -> None:
    assert policy.adaptive_delay(previous, latency=latency, status=status, floor=floor) >= floor


def test_adaptive_delay_follows_latency_and_backs_off_on_429() -> None:
    def delay(previous: float, latency: float, status: int = 200) -> float:
        return policy.adaptive_delay(previous, latency=latency, status=status, floor=1.0)

    assert delay(1.0, 5.0) == 5.0
    assert delay(9.0, 1.0) == 5.0, "half-way down"
    assert delay(2.0, 0.0) == 1.0
    assert delay(9.0, 1.0, 404) == 9.0, "an error page is quick and proves nothing"
    assert delay(4.0, 0.1, 429) == 8.0
    assert delay(50.0, 0.1, 503) == 60.0
    assert policy.adaptive_delay(0.0, latency=0.0, status=503, floor=0.0) == 1.0, "one without a delay gets one"


@given(st.integers(1, 1000), st.floats(0.001, 1000), st.floats(1, 600))
def test_a_batch_fits_into_half_a_lease(batch: int, delay: float, lease: float) -> None:
    size = policy.batch_size(batch, delay=delay, seconds=lease, waiting=10**6, lanes=1)
    assert 1 <= size <= batch
    assert size == 1 or size * delay <= lease / 2


def test_a_batch_without_delay_is_whole() -> None:
    assert policy.batch_size(32, delay=0.0, seconds=1.0, waiting=10**6, lanes=8) == 32
    assert policy.batch_size(32, delay=0.0, seconds=1.0, waiting=0, lanes=1) == 32


@given(st.integers(1, 1000), st.integers(0, 10_000), st.integers(2, 100))
def test_a_lane_takes_its_part_of_what_waits(batch: int, waiting: int, lanes: int) -> None:
    size = policy.batch_size(batch, delay=0.0, seconds=60.0, waiting=waiting, lanes=lanes)
    assert 1 <= size <= batch
    assert size in (batch, 4) or size * lanes < waiting + lanes


def test_faults_are_forgiven_after_a_quiet_time() -> None:
    def next_one(before: int, *, seconds_after_hold: float) -> int:
        return policy.incidents(before, quiet_from=1000.0, now=1000.0 + seconds_after_hold, forgive_seconds=1800.0)

    assert next_one(0, seconds_after_hold=-1000.0) == 1
    assert next_one(3, seconds_after_hold=1.0) == 4
    assert next_one(3, seconds_after_hold=1799.0) == 4
    assert next_one(3, seconds_after_hold=1800.0) == 1
