from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.frontier import recrawl
from gossamer.frontier.recrawl import Found, Rule, VisitOutcome
from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier_behavior import QuotaTests, RevisitTests
from gossamer.testing.harness import Harness
from gossamer.testing.servers import RedisServer

DAY, WEEK = 86_400.0, 7 * 86_400.0
SETTINGS = Settings()
TABLE, ADAPTIVE = Rule("table"), Rule("adaptive")


class _Policies(RevisitTests, QuotaTests):
    pass


class TestMemory(_Policies):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.memory(settings)


class TestSqlite(_Policies):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.sqlite(settings)


class TestRemote(_Policies):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.remote(settings)


class TestFolder(_Policies):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.folder(settings)


class TestRedis(_Policies):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url)


class TestRedisShards(_Policies):
    """Eight shards on two servers, with few sites: some are alone in theirs."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer, second_redis_server: RedisServer) -> None:
        self.url = f"{redis_server.url},{second_redis_server.url}"

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.redis(settings, self.url, shards="8")


def test_the_setting_is_read() -> None:
    assert recrawl.parse_rule("") == Rule("")
    assert recrawl.parse_rule("table") == TABLE
    assert recrawl.parse_rule("budget=86400/d") == Rule("budget", 1.0)
    assert recrawl.parse_rule("budget=1.5/m").visits_per_second == 1.5 / 60


def weeks_after(*codes: int, settings: Settings = SETTINGS) -> list[float | None]:
    """The waits, in weeks, after visits that ended with these codes."""
    visited, waits = VisitOutcome(), []
    for code in codes:
        if code == 200:
            visited = recrawl.succeeded(visited, "same", settings, now=1.0)
        else:
            visited = recrawl.failed(visited, code)
        wait = recrawl.again_in(visited, TABLE, settings)
        waits.append(None if wait is None else wait / WEEK)
    return waits


def test_visits_follow_the_interval_table() -> None:
    assert weeks_after(200, 500, 500, 500, 500, 200, 500) == [1, 2, 4, 8, 8, 1, 2]


def test_the_table_is_a_setting() -> None:
    settings = Settings(revisit_seconds=3 * WEEK, revisit_failures=(5 * WEEK,))
    assert weeks_after(200, 0, 0, 200, settings=settings) == [3, 5, 5, 3]


def test_gone_pages_fade_out() -> None:
    assert weeks_after(404, 404, 410, 404, 404) == [2, 4, 8, 8, None]
    assert weeks_after(404, 404, 404, 404, 500, 404) == [2, 4, 8, 8, 8, 8], "not in a row"


def test_without_recrawl_nothing_comes_again() -> None:
    assert recrawl.again_in(VisitOutcome(seen_at=1.0), Rule(""), SETTINGS) is None


@given(st.lists(st.booleans(), max_size=200))
def test_adaptive_intervals_stay_in_their_bounds(changes: list[bool]) -> None:
    visited = recrawl.succeeded(VisitOutcome(), "new", SETTINGS, now=1.0)
    for changed in changes:
        before = visited.interval
        visited = recrawl.succeeded(visited, "changed" if changed else "same", SETTINGS, now=2.0)
        assert SETTINGS.revisit_min_seconds <= visited.interval <= SETTINGS.revisit_max_seconds
        assert visited.interval <= before if changed else visited.interval >= before


def test_a_hint_makes_the_first_interval_shorter_and_never_longer() -> None:
    def first(lastmod: float | None) -> float:
        return recrawl.succeeded(VisitOutcome(), "new", SETTINGS, now=1e9, lastmod=lastmod).interval

    assert first(None) == WEEK
    assert first(1e9 - DAY) == DAY
    assert first(1e9 - 50 * WEEK) == WEEK
    assert first(1e9 + DAY) == WEEK, "a date in the future says nothing"
    assert first(1e9) == SETTINGS.revisit_min_seconds


@pytest.mark.parametrize(
    ("before", "digest", "text", "found"),
    [
        (VisitOutcome(), "a", "x", "new"),
        (VisitOutcome(seen_at=1.0, digest="a", text="x"), "b", "x", "same"),
        (VisitOutcome(seen_at=1.0, digest="a", text="x"), "a", "y", "changed"),
        (VisitOutcome(seen_at=1.0, digest="a"), "a", "", "same"),
        (VisitOutcome(seen_at=1.0, digest="a"), "b", "", "changed"),
        (VisitOutcome(seen_at=1.0, digest="a", text="x"), "b", "", "changed"),
    ],
)
def test_the_main_text_decides_what_is_a_change(before: VisitOutcome, digest: str, text: str, found: Found) -> None:
    assert recrawl.compared(before, digest=digest, text=text) == found


@given(st.text(max_size=2000), st.text(max_size=2000), st.floats(0, 4e9), st.integers(0, 10**9))
def test_a_state_is_small_and_comes_back_whole(etag: str, modified: str, now: float, failures: int) -> None:
    visited = VisitOutcome(
        etag=recrawl.validator(etag),
        modified=recrawl.validator(modified),
        digest="f" * 40,
        text="f" * 16,
        seen_at=now,
        interval=now / 3,
        failures=failures,
        looks=now / 7,
        changes=now / 9,
        watched=now / 11,
        rate=1e-7 / 3,
        fresh=1 / 3,
    )
    packed = msgspec.json.encode(recrawl.written(visited))
    assert len(packed) <= 1024
    assert recrawl.read(msgspec.json.decode(packed)) == visited


@pytest.mark.parametrize("state", [None, {}, {"etag": 5}, {"other": "thing"}, {"looks": "many"}])
def test_an_invalid_state_counts_as_no_visit(state: dict[str, Any] | None) -> None:
    assert recrawl.read(state) == VisitOutcome()


@pytest.mark.parametrize("value", ["x" * 301, "é", 'a"\r\nX: y', "\0"])
def test_an_invalid_validator_is_not_stored(value: str) -> None:
    assert recrawl.validator(value) == ""


rates = st.floats(1e-9, 1e-2)
spans = st.floats(60.0, 1e8)


@given(rates, spans)
def test_freshness_is_a_share_and_falls_with_the_interval(rate: float, span: float) -> None:
    assert 0.0 < recrawl.freshness(rate, span) <= 1.0
    assert recrawl.freshness(rate, span) >= recrawl.freshness(rate, 2 * span)


def test_freshness_is_that_of_a_poisson_process() -> None:
    assert recrawl.freshness(1.0, 1.0) == pytest.approx(1 - math.exp(-1))
    assert recrawl.freshness(1e-12, 1.0) == 1.0


def gain(rate: float, interval: float) -> float:
    """What one visit a second more would add to the freshness of a page."""
    visits, step = 1.0 / interval, 1e-6 / interval
    more, less = (recrawl.freshness(rate, 1.0 / (visits + by)) for by in (step, -step))
    return (more - less) / (2 * step)


def test_at_a_price_one_more_visit_gains_as_much_on_every_page() -> None:
    price = 20_000.0
    for rate in (1e-7, 1e-6, 1e-5, 3e-5):
        interval = recrawl.interval_at(price, rate, shortest=1.0, longest=1e9)
        assert gain(rate, interval) == pytest.approx(price, rel=0.01)
    assert recrawl.interval_at(price, 1.0 / price, shortest=1.0, longest=1e9) == 1e9, "it changes too fast"


groups = st.lists(st.tuples(st.integers(1, 10_000), rates), min_size=1, max_size=8)


@given(groups, st.floats(1e-6, 10.0))
def test_a_budget_is_spent_and_not_overdrawn(pages: list[tuple[float, float]], budget: float) -> None:
    shortest, longest = 3600.0, 365 * DAY
    price = recrawl.price_of(pages, budget, shortest=shortest, longest=longest)
    used = sum(count / recrawl.interval_at(price, rate, shortest=shortest, longest=longest) for count, rate in pages)
    least, most = sum(count for count, _ in pages) / longest, sum(count for count, _ in pages) / shortest
    assert used <= max(budget, least) * 1.02
    is_even = all(price * rate < 0.999 for _, rate in pages)
    assert used >= min(budget, most) * 0.98 or not is_even


def test_a_budget_is_spent_where_it_gains_most() -> None:
    pages = [(100.0, 1 / DAY), (100.0, 1 / (30 * DAY))]
    budget = 200 / (7 * DAY)
    price = recrawl.price_of(pages, budget, shortest=3600.0, longest=365 * DAY)
    best = [recrawl.interval_at(price, rate, shortest=3600.0, longest=365 * DAY) for _, rate in pages]

    def total(intervals: list[float]) -> float:
        return sum(count * recrawl.freshness(rate, span) for (count, rate), span in zip(pages, intervals, strict=True))

    assert sum(100 / span for span in best) == pytest.approx(budget, rel=0.01)
    for share in (0.3, 0.4, 0.5, 0.6, 0.7):
        other = [100 / (share * budget), 100 / ((1 - share) * budget)]
        assert total(best) >= total(other) - 0.01


@given(st.integers(0, 300), st.floats(0, 1), st.floats(1.0, 1e8))
def test_a_rate_is_finite_positive_and_grows_with_the_changes(looks: int, share: float, watched: float) -> None:
    found = [recrawl.estimated_rate(looks, changes, watched, prior_seconds=WEEK) for changes in range(looks + 1)]
    assert all(0 < rate < math.inf for rate in found)
    assert all(later > rate for rate, later in pairwise(found))


def test_one_quick_change_does_not_imply_a_high_rate() -> None:
    assert recrawl.estimated_rate(1, 1, 60.0, prior_seconds=WEEK) < 1 / DAY


facts = st.tuples(st.sampled_from([1e-6, 3e-6, 1e-5, 2e-4]), st.sampled_from([0.25, 0.5, 1.0]))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.one_of(st.none(), facts)), max_size=60))
def test_tallies_of_lanes_add_up_to_the_pages(steps: list[tuple[int, int, tuple[float, float] | None]]) -> None:
    """Pages come, change and go, visited by either of two lanes; the sum over lanes is always right."""
    pages: dict[int, tuple[float, float]] = {}
    tallies: list[dict[str, Any]] = [{}, {}]
    population = recrawl.Population()
    for page, lane, fact in steps:
        tallies[lane] = recrawl.tallied(tallies[lane], pages.get(page), fact)
        population.learn("a.example", {f"rates.{lane}": tallies[lane], "other": 1})
        pages.pop(page, None)
        if fact is not None:
            pages[page] = fact
    assert population.pages == len(pages)
    assert sum(count for count, _ in population.groups()) == len(pages)
    assert sum(count * rate for count, rate in population.groups()) == pytest.approx(
        sum(rate for rate, _ in pages.values())
    )
    if pages:
        assert population.freshness() == pytest.approx(sum(fresh for _, fresh in pages.values()) / len(pages))
    else:
        assert population.freshness() is None


def test_a_population_of_very_many_sites_is_bounded_and_about_right() -> None:
    population = recrawl.Population(most=500)
    for site in range(20_000):
        population.learn(f"{site}.example", {"rates.0": recrawl.tallied({}, None, (1e-6, 0.5))})
    assert len(population._tallies) <= 500
    assert population.pages == pytest.approx(20_000, rel=0.3)
