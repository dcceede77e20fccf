"""Faults of sites and of the network: who is left alone, for how long, and who is not. In virtual time."""

from __future__ import annotations

from email.utils import formatdate
from itertools import pairwise

import pytest

from gossamer.errors import ConnectFailed, FetchError, NameUnknown, NameUnresolved, ProtocolBroken, TimedOut
from gossamer.testing.stage import Reply, play
from gossamer.testing.virtual import START_EPOCH

DAY = 86_400.0


def test_a_dark_host_with_ten_thousand_urls_harms_nobody() -> None:
    """F59: the others keep their rate; the dark one is asked a few times, ever more rarely, and given up."""

    def script(host: str, path: str, at: float) -> Reply:
        return ConnectFailed("dark") if host == "dark.test" and path not in ("/", "/robots.txt") else None

    good = {f"good{number}.test": 40 for number in range(4)}
    stage, done = play({"dark.test": 10_001, **good}, script, max_links=20_000)
    for host in good:
        times = stage.times(host)
        assert len(times) == 40
        assert max(later - at for at, later in pairwise(times)) < 2.0, "a page a second, all the time"
    tried = stage.times("dark.test")[1:]
    assert len(tried) == 6
    waits = [later - at for at, later in pairwise(tried)]
    for number, wait in enumerate(waits):
        assert 60 * 2**number <= wait <= 60 * 2**number * 1.1 + 2
    assert (done.counts.failed, done.counts.finished) == (10_000, True)


def test_a_dark_host_is_asked_once_a_day_in_a_continuous_crawl_and_comes_back() -> None:
    def script(host: str, path: str, at: float) -> Reply:
        return TimedOut("dark") if host == "dark.test" and 100 < at < 10 * DAY else None

    stage, done = play(
        {"dark.test": 300, "good.test": 20}, script, recrawl="table", max_seconds=14 * DAY, lease_seconds=DAY
    )
    assert stage.paths("dark.test") == stage.paths("good.test") | {f"/{number}" for number in range(1, 300)}
    during = [at for at in stage.times("dark.test") if 100 < at < 10 * DAY]
    assert len(during) < 25
    assert done.counts.failed < 10


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("300", 300.0),
        (formatdate(START_EPOCH + 1000, usegmt=True), 1000.0),
        ("1000000000", 7 * DAY),
        ("-1", 60.0),
        ("garbage", 60.0),
    ],
)
def test_retry_after_is_obeyed_by_the_whole_site(value: str, wait: float) -> None:
    """F57: exact, at most seven days; what says nothing usable counts as a fault without a word."""
    said: list[float] = []

    def script(host: str, path: str, at: float) -> Reply:
        if host == "busy.test" and path == "/5" and not said:
            said.append(at)
            return 429, {"retry-after": value}
        return None

    stage, done = play({"busy.test": 12, "calm.test": 12}, script)
    after = min(at for at in stage.times("busy.test") if at > said[0]) - (0.0 if value.endswith("GMT") else said[0])
    slack = 2.0 if wait != 60.0 else 2.0 + 0.1 * wait
    assert wait <= after <= wait + slack
    assert max(stage.times("calm.test")) < 20, "others do not wait"
    assert (done.counts.done, done.counts.failed) == (24, 0)


def test_faults_double_the_wait_and_are_forgiven_after_a_quiet_time() -> None:
    """Answers in between do not forgive; half an hour without a fault does."""
    faults: list[float] = []

    def script(host: str, path: str, at: float) -> Reply:
        wanted = {"/10": 1, "/20": 1, "/30": 1, "/1999": 1}
        if host == "busy.test" and path in wanted and path not in seen:
            seen.add(path)
            faults.append(at)
            return 503
        return None

    seen: set[str] = set()
    stage, done = play({"busy.test": 2001}, script, max_links=5000)
    times = stage.times("busy.test")
    waits = [min(later for later in times if later > at) - at for at in faults]
    for wait, wanted in zip(waits, (60, 120, 240, 60), strict=True):
        assert wanted <= wait <= 1.1 * wanted + 2
    assert done.counts.failed == 0


@pytest.mark.parametrize("fault", [500, ProtocolBroken("cut off")])
def test_a_page_that_fails_is_tried_again_and_its_site_goes_on(fault: int | FetchError) -> None:
    def script(host: str, path: str, at: float) -> Reply:
        return fault if path == "/3" else None

    stage, done = play({"a.test": 30}, script)
    tries = [asked.at for asked in stage.asked if asked.path == "/3"]
    others = [asked.at for asked in stage.asked if asked.path != "/3"]
    assert len(tries) == 3
    assert tries[1] - tries[0] >= 60
    assert max(others) < 40
    assert (done.counts.failed, done.counts.done) == (1, 29)


SITES = {f"s{number}.test": 30 for number in range(12)}


@pytest.mark.parametrize("seconds", [60.0, 3 * 3600.0])
def test_a_worker_cut_from_the_web_loses_nothing(seconds: float) -> None:
    """F53: what cannot be reached because nothing can is kept for later, and no site is charged with it."""

    def script(host: str, path: str, at: float) -> Reply:
        return ConnectFailed("no route to host") if 10 <= at < 10 + seconds else None

    stage, done = play(SITES, script)
    assert (done.counts.done, done.counts.failed, done.counts.finished) == (12 * 30, 0, True)
    cut = [asked for asked in stage.asked if 10 <= asked.at < 10 + seconds]
    assert len(cut) <= 12 + 64 + seconds / 5, "one at a time looks whether the web is there again"
    assert max(asked.at for asked in stage.asked) < 10 + seconds + 200


@pytest.mark.parametrize("robots", [False, True])
def test_sites_that_were_never_there_do_not_trip_the_breaker(robots: bool) -> None:
    """Nor when they are asked again: a note that their robots.txt could not be had does not show that they were."""

    def script(host: str, path: str, at: float) -> Reply:
        return ConnectFailed("dead") if host.startswith("dead") else None

    dead = {f"dead{number}.test": 1 for number in range(60)}
    stage, done = play({**dead, "alive.test": 50}, script, robots=robots)
    assert max(stage.times("alive.test")) < 60
    assert (done.counts.done, done.counts.failed) == (50, 60)
    assert max(asked.at for asked in stage.asked) < 86_400


def test_a_name_that_nobody_could_look_up_is_asked_again() -> None:
    """F54: SERVFAIL and timeouts pass."""

    def script(host: str, path: str, at: float) -> Reply:
        return NameUnresolved("SERVFAIL") if at < 30 else None

    _, done = play({"a.test": 5}, script)
    assert (done.counts.done, done.counts.failed) == (5, 0)


def test_a_name_that_does_not_exist_is_final_at_once() -> None:
    """F54: NXDOMAIN of a host that was never there."""
    stage, done = play({"a.test": 5}, lambda host, path, at: NameUnknown("NXDOMAIN"))
    assert (done.counts.failed, done.counts.finished) == (1, True)
    assert stage.asked == [], "its robots.txt was asked for, once"


def test_a_name_that_is_gone_is_asked_for_once_more() -> None:
    """F54: NXDOMAIN of a host that was there may be a fault of its name servers; the second time it is believed."""

    def script(host: str, path: str, at: float) -> Reply:
        gone = 5 <= at < 30 or host == "gone.test"
        return NameUnknown("NXDOMAIN") if gone and at >= 5 and path != "/robots.txt" else None

    stage, done = play({"back.test": 20, "gone.test": 20}, script)
    assert len(stage.paths("back.test")) == 20
    tried = [at for at in stage.times("gone.test") if at >= 5]
    assert len(tried) == 2
    assert tried[1] - tried[0] >= 60
    assert done.counts.finished
    assert done.counts.done == 20 + len(stage.times("gone.test")) - 2
