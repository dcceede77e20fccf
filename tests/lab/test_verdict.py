"""The verdict on a crawl with faults: reports every problem, except what a kill explains."""

from __future__ import annotations

import msgspec
import pytest

from gossamer.lab.simweb.features import Fate
from gossamer.lab.simweb.log import SimRequest
from gossamer.lab.verify import InjectedFault, StoredRow, VerifyVerdict, judge

DELAY = 1.0
PAGES = [f"http://127.0.0.1:80/{name}" for name in "abcd"]
FATES: dict[str, Fate] = {**dict.fromkeys(PAGES, "page"), "http://127.0.0.1:80/private": "robots"}


def sim_request(at: float, name: str, *, takes: float = 0.1, port: int = 1) -> SimRequest:
    return SimRequest(at, at + takes, at + takes, "http://127.0.0.1:80", "GET", f"/{name}", 200, port, "gossamer")


LOG = [sim_request(100.0 + 1.2 * number, name) for number, name in enumerate("abcd")]
STORED = [StoredRow(url, 200) for url in PAGES]


def verdict(log: list[SimRequest] = LOG, stored: list[StoredRow] = STORED, *injected: InjectedFault) -> VerifyVerdict:
    return judge(log, {"jsonl": stored}, FATES, injected=injected, delay=DELAY, in_hand=2)


def test_a_perfect_crawl_is_good() -> None:
    found = verdict()
    assert found.is_good
    assert (found.pages, found.requests, found.gaps, found.fetched_again) == (4, 4, 3, 0)
    assert found.least_gap == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("log", "stored", "broken"),
    [
        (LOG, STORED[1:], "lost"),
        (LOG, [*STORED[1:], StoredRow(PAGES[0], 500)], "lost"),
        (LOG, [*STORED, STORED[2]], "stored_twice"),
        ([*LOG, sim_request(105.0, "private")], STORED, "forbidden"),
        ([*LOG, sim_request(104.5, "robots.txt")], STORED, "impolite"),
        ([*LOG[:1], sim_request(100.05, "robots.txt", port=2), *LOG[1:]], STORED, "impolite"),
    ],
)
def test_verdict_reports_every_problem(log: list[SimRequest], stored: list[StoredRow], broken: str) -> None:
    found = verdict(log, stored)
    assert not found.is_good
    wrong = [name for name in ("lost", "stored_twice", "forbidden", "impolite") if getattr(found, name)]
    assert wrong == [broken]


def test_a_page_that_one_of_two_sinks_lacks_is_lost() -> None:
    stored = {"jsonl": STORED, "warc": STORED[:-1]}
    assert judge(LOG, stored, FATES, injected=(), delay=DELAY, in_hand=2).lost == (PAGES[-1],)


def test_repeated_fetch_needs_a_fault_that_explains_it() -> None:
    again = [*LOG, sim_request(110.0, "a"), sim_request(112.0, "b")]
    assert not verdict(again).is_good
    assert verdict(again, STORED, InjectedFault("all killed", 105.0)).is_good
    assert not verdict([*again, sim_request(114.0, "c")], STORED, InjectedFault("all killed", 105.0)).is_good


def test_delay_counts_from_the_death_of_the_sender() -> None:
    """The client of c is dead; d comes one delay after the kill, not sooner."""
    kill = InjectedFault("worker killed", 102.5)
    slow = [*LOG[:2], sim_request(102.4, "c", takes=0.6, port=7)]
    assert verdict([*slow, sim_request(103.6, "d")], STORED, kill).is_good
    assert not verdict([*slow, sim_request(103.6, "d")]).is_good
    assert not verdict([*slow, sim_request(103.4, "d")], STORED, kill).is_good
    # It was on the wire, and reached the server after its sender was dead.
    late = [*LOG[:2], sim_request(102.7, "c", port=7), sim_request(103.6, "d")]
    assert verdict(late, STORED, kill).is_good
    # Who goes on asking through the same connection was not killed.
    assert not verdict([*late, sim_request(105.0, "c", port=7)], STORED, kill, kill).is_good


def test_one_late_request_of_a_stopped_worker_is_tolerated() -> None:
    stop = InjectedFault("worker stopped", 101.0, 108.0)
    log = [*LOG[:3], sim_request(107.8, "d"), sim_request(108.01, "robots.txt", port=9)]
    found = verdict(log, STORED, stop)
    assert found.is_good
    assert found.late == 1
    assert found.least_gap == pytest.approx(1.1)
    assert not verdict([*log, sim_request(108.2, "robots.txt", port=9)], STORED, stop).is_good
    assert not verdict([msgspec.structs.replace(log[-1], arrived_at=103.0), *log[:-1]], STORED, stop).is_good
