"""Failures of sites and of the network: who is put on hold, and for how long. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from email.utils import formatdate
from itertools import pairwise

import pytest

from gossamer.clock import ManualClock
from gossamer.engine.politeness import Breaker
from gossamer.engine.robots import SiteRobots
from gossamer.engine.verdict import sets_cookie_and_returns
from gossamer.errors import (
    ConnectFailed,
    FetchError,
    NameUnknown,
    NameUnresolved,
    ProtocolBroken,
    TimedOut,
)
from gossamer.lab.virtual_time import START_EPOCH
from gossamer.lab.virtual_web import Reply, play
from gossamer.model import Request, Response
from gossamer.settings import Settings

DAY = 86_400.0


def test_an_unreachable_host_with_ten_thousand_urls_delays_no_other_site() -> None:
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


def test_pages_that_close_the_connection_do_not_hold_the_site() -> None:
    """A server that closes the connection on every page is put on hold, like one that does not answer."""

    def script(host: str, path: str, at: float) -> Reply:
        hangs_up = host == "dark.test" and path != "/robots.txt"
        hangs_up = hangs_up or (path.endswith("5") and path != "/robots.txt")
        return ConnectFailed("hung up", was_open=True) if hangs_up else None

    stage, done = play({"odd.test": 60, "dark.test": 1}, script, tries=1)
    times = stage.times("odd.test")
    assert len(times) == 60
    assert max(later - at for at, later in pairwise(times)) < 2.0, "a page a second, all the time"
    assert done.counts.failed == 7
    stage, _ = play({"dark.test": 10_001}, lambda host, path, at: script(host, path, at) if path != "/" else None)
    # The second failure in a row is the first that puts the site on hold.
    waits = [later - at for at, later in pairwise(stage.times("dark.test")[1:])]
    assert [wait > 60 for wait in waits] == [False, True, True, True, True]


def test_an_unreachable_host_is_retried_daily_in_a_continuous_crawl() -> None:
    def script(host: str, path: str, at: float) -> Reply:
        return TimedOut("dark") if host == "dark.test" and 100 < at < 10 * DAY else None

    stage, done = play(
        {"dark.test": 300, "good.test": 20}, script, recrawl="table", max_seconds=14 * DAY, lease_seconds=DAY
    )
    assert stage.paths("dark.test") == stage.paths("good.test") | {f"/{number}" for number in range(1, 300)}
    during = [at for at in stage.times("dark.test") if 100 < at < 10 * DAY]
    assert len(during) < 25
    assert done.counts.failed < 10


def test_a_request_lost_with_a_kept_alive_connection_is_retried_after_the_delay() -> None:
    """The server may have seen it: the delay holds in its log."""
    asked: Counter[str] = Counter()

    def script(host: str, path: str, at: float) -> Reply:
        asked[path] += 1
        is_gone = path == "/9" or (path in ("/3", "/5") and asked[path] == 1)
        return ConnectFailed("gone", was_kept=True) if is_gone else None

    stage, done = play({"a.test": 10}, script, delay=2.0, tries=1)
    assert all(2.0 <= later - at < 2.5 for at, later in pairwise(stage.times("a.test")))
    assert (asked["/3"], asked["/5"], asked["/8"], asked["/9"]) == (2, 2, 1, 3)
    assert (done.counts.done, done.counts.failed) == (9, 1)


def test_the_delay_is_counted_from_the_answer() -> None:
    stage, _ = play({"slow.test": 12}, seconds_each=10.0, delay=2.0)
    assert min(after - before for before, after in pairwise(stage.times("slow.test"))) > 11.99


def test_a_failed_robots_txt_is_retried_with_the_back_off_of_pages() -> None:
    async def fetch(request: Request) -> Response:
        raise TimedOut("dark")

    gate, waits = SiteRobots({}, Settings(backoff_seconds=5.0), ManualClock()), []
    for _ in range(3):
        robots = asyncio.run(gate.refresh("http://a.test/", fetch))
        waits.append(robots.good_until - robots.failed_at)
    assert all(5 * 2**number <= wait <= 5.5 * 2**number for number, wait in enumerate(waits))


def test_an_unknown_host_does_not_fail_robots_txt_unless_a_redirect_led_there() -> None:
    async def fetch(request: Request) -> Response:
        if request.url == "http://b.test/robots.txt":
            return Response(url=request.url, status=302, headers=(("location", "http://nowhere.test/"),), body=b"")
        raise NameUnknown("no such name")

    gate = SiteRobots({}, Settings(), ManualClock())
    with pytest.raises(NameUnknown):
        asyncio.run(gate.refresh("http://a.test/", fetch))
    assert asyncio.run(gate.refresh("http://b.test/", fetch)).kind == "unreachable"


@pytest.mark.parametrize(("redirects", "allows"), [(5, False), (6, True)])
def test_five_redirects_of_a_robots_txt_are_followed_and_no_more(redirects: int, allows: bool) -> None:
    asked: list[str] = []

    async def fetch(request: Request) -> Response:
        asked.append(request.url)
        if len(asked) <= redirects:
            return Response(url=request.url, status=302, headers=(("location", f"/{len(asked)}"),), body=b"")
        return Response(url=request.url, status=200, headers=(), body=b"User-agent: *\nDisallow: /\n")

    gate = SiteRobots({}, Settings(), ManualClock())
    asyncio.run(gate.refresh("http://a.test/", fetch))
    assert gate.allows("http://a.test/x") == allows
    assert len(asked) == 6


@pytest.mark.parametrize("later", [b"User-agent: *\nCrawl-delay: 5\n", b"", 404])
def test_a_shortened_or_removed_crawl_delay_takes_effect(later: Reply) -> None:
    def script(host: str, path: str, at: float) -> Reply:
        if path == "/robots.txt":
            return b"User-agent: *\nCrawl-delay: 50\n" if at < 250 else later
        return None

    stage, _ = play({"a.test": 40}, script, delay=2.0, robots_seconds=300.0)
    rests = [after - before for before, after in pairwise(stage.times("a.test"))]
    assert min(rests[:4]) >= 50
    assert all(rest >= (2 if later in (b"", 404) else 5) for rest in rests)
    assert max(rests[-20:]) < (3 if later in (b"", 404) else 6)


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


@pytest.mark.parametrize(
    ("status", "value", "wait"),
    [
        (503, "900", 900.0),
        (429, formatdate(START_EPOCH + 10_000, usegmt=True), 10_000.0),
        (503, "1000000000", 7 * DAY),
        (503, "1", 60.0),
        (404, "900", 0.0),
    ],
)
def test_retry_after_of_a_robots_txt_is_obeyed_too(status: int, value: str, wait: float) -> None:
    """Never sooner than asked; where less is asked than the back-off, that goes on. A 404 is an answer."""
    asked: list[float] = []

    def script(host: str, path: str, at: float) -> Reply:
        if host == "busy.test" and path == "/robots.txt":
            asked.append(at)
            return (status, {"retry-after": value}) if len(asked) == 1 else None
        return None

    stage, done = play({"busy.test": 5, "calm.test": 5}, script)
    since = 0.0 if value.endswith("GMT") else asked[0]
    assert len(asked) == (1 if status == 404 else 2)
    assert wait <= asked[-1] - since <= wait + (8.0 if wait == 60.0 else 2.0)
    assert min(stage.times("busy.test")) >= asked[-1]
    assert max(stage.times("calm.test")) < 20, "others do not wait"
    assert (done.counts.done, done.counts.failed) == (10, 0)


def test_failures_double_the_back_off_until_a_quiet_time_resets_it() -> None:
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
def test_a_failed_page_is_retried_while_its_site_goes_on(fault: int | FetchError) -> None:
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
def test_a_worker_without_network_loses_nothing(seconds: float) -> None:
    """F53: what cannot be reached because nothing can is kept for later, and no site is charged with it."""

    def script(host: str, path: str, at: float) -> Reply:
        return ConnectFailed("no route to host") if 10 <= at < 10 + seconds else None

    stage, done = play(SITES, script)
    assert (done.counts.done, done.counts.failed, done.counts.finished) == (12 * 30, 0, True)
    cut = [asked for asked in stage.asked if 10 <= asked.at < 10 + seconds]
    assert len(cut) <= 12 + 64 + seconds / 5, "one at a time looks whether the web is there again"
    assert max(asked.at for asked in stage.asked) < 10 + seconds + 200


@pytest.mark.parametrize("robots", [False, True])
def test_sites_never_reached_do_not_open_the_circuit_breaker(robots: bool) -> None:
    """Nor when they are asked again: a note that their robots.txt could not be had does not show that they were."""

    def script(host: str, path: str, at: float) -> Reply:
        return ConnectFailed("dead") if host.startswith("dead") else None

    dead = {f"dead{number}.test": 1 for number in range(60)}
    stage, done = play({**dead, "alive.test": 50}, script, robots=robots)
    assert max(stage.times("alive.test")) < 60
    assert (done.counts.done, done.counts.failed) == (50, 60)
    assert max(asked.at for asked in stage.asked) < 86_400


def test_a_failed_dns_lookup_is_retried() -> None:
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


def test_a_known_host_that_no_longer_resolves_is_retried_once() -> None:
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


def test_f53_a_broken_response_closes_the_circuit_breaker() -> None:
    """F53: the breaker opens when all that was there is dark, and closes with the first answer, be it a bad one."""
    breaker = Breaker(ManualClock())
    for number in range(20):
        breaker.answered(f"{number}.test")
    taken = [breaker.is_network_error(f"{number}.test", TimedOut("late"), was_there=False) for number in range(20)]
    assert taken == [False] * 7 + [True] * 13
    assert breaker.wait() > 0
    assert not breaker.is_network_error("0.test", ProtocolBroken("odd"), was_there=True)
    assert breaker.wait() == 0
    assert not breaker.is_network_error("1.test", TimedOut("late"), was_there=True)


@pytest.mark.parametrize("headers", [(), (("location", ""),), (("location", "http://["),), (("set-cookie", "a=b"),)])
def test_a_robots_txt_redirect_without_a_location_is_fetched_once(headers: tuple[tuple[str, str], ...]) -> None:
    asked: list[str] = []

    async def fetch(request: Request) -> Response:
        asked.append(request.url)
        return Response(url=request.url, status=302, headers=headers, body=b"")

    gate = SiteRobots({}, Settings(), ManualClock())
    asyncio.run(gate.refresh("http://a.test/", fetch))
    assert len(asked) == 1
    assert gate.allows("http://a.test/x")


def test_a_redirect_without_a_location_does_not_lead_to_itself() -> None:
    answer = Response(url="http://a.test/", status=302, headers=(("set-cookie", "a=b"),), body=b"")
    assert not sets_cookie_and_returns(Request("http://a.test/"), answer)
