"""Units of the service: time series, counters, request log tail, globs, search, events, and notifications."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest

from gossamer.clock import ManualClock
from gossamer.jobs.notifications import Notifier
from gossamer.model import Counts, PageRow
from gossamer.redact import masked_url
from gossamer.service.directory import glob_pattern
from gossamer.service.events import EventHub
from gossamer.service.monitor import JobNotifier, Monitor
from gossamer.service.schemas import SiteRow
from gossamer.service.sites import site_map, site_state
from gossamer.service.statistics import STEP_COUNTS, JobCounters, RingBuffer, TimeSeries
from gossamer.settings import Settings
from gossamer.storage.query import Search, versions_of
from gossamer.storage.reader import StoredJob
from gossamer.storage.request_log import LogTail, RequestLog, Sent, SentRequest

NOW = 1_700_000_000.0


def test_ring_buffer_drops_old_steps_and_reports_gaps() -> None:
    ring = RingBuffer(10, 6)
    for second in range(0, 200, 5):
        ring.add(NOW + second, {"pages": 1})
    ring.set(NOW + 195, {"queued": 7})
    start, series = ring.read(NOW + 200, 100, counted_since=NOW)
    assert (start, series.pages) == (NOW + 150, [2.0] * 5)
    assert series.queued == [None, None, None, None, 7]
    ring.add(NOW, {"pages": 99})
    assert ring.read(NOW + 200, 100, counted_since=NOW)[1].pages == [2.0] * 5
    # Nothing has happened since: that is known, and no gap.
    assert ring.read(NOW + 230, 2, counted_since=NOW)[1].pages == [0.0, 0.0]


def test_history_before_the_first_poll_is_unknown() -> None:
    past = TimeSeries()
    past.add(NOW, {"pages": 3})
    assert past.read(1, NOW + 2, 4)[1].pages == [None, None, 3.0, 0.0]
    assert all(len(past.read(step, NOW, 5000)[1].pages) == length - 1 for step, length in STEP_COUNTS.items())


def sent(url: str, at: float, **more: object) -> Sent:
    return Sent(SentRequest(url=url, at=at, **{"status": 200, "delay": 1.0, **more}), "w")  # type: ignore[arg-type]


def test_interval_counts_from_the_response_and_short_ones_are_found() -> None:
    tally = JobCounters(TimeSeries())
    tally.update([sent("http://a/1", NOW, latency=0.5), sent("http://a/2", NOW + 1.5), sent("http://b/1", NOW + 1.6)])
    assert (tally.politeness("x").too_short, tally.politeness("x").counted) == (0, 1)
    tally.update([sent("http://a/3?token=s3cret", NOW + 2.4)])
    found = tally.politeness("x")
    assert (found.too_short, found.shortest, found.examples[0].url) == (1, 0.9, "http://a/3?token=***")


def test_interval_uses_the_workers_monotonic_clock() -> None:
    """A clock change between two requests neither causes nor hides a short interval."""
    tally = JobCounters(TimeSeries())
    tally.update([sent("http://a/1", NOW, latency=0.5), sent("http://a/2", NOW + 0.6, rest=1.0)])
    assert tally.politeness("x").too_short == 0
    tally.update([sent("http://a/3", NOW + 9.0, rest=0.9)])
    assert (tally.politeness("x").too_short, tally.politeness("x").shortest) == (1, 0.9)
    # Between two leases only the times are known; over a minute they may be some hundredths off.
    tally.update([sent("http://b/1", NOW), sent("http://b/2", NOW + 59.95, delay=60.0)])
    assert tally.politeness("x").too_short == 1


def row(site: str, **more: object) -> SiteRow:
    plain: dict[str, object] = dict.fromkeys(SiteRow.__struct_fields__, 0)
    return SiteRow(**{**plain, "site": site, "closed": "", "region": "", **more})  # type: ignore[arg-type]


def test_site_map_is_bounded_and_totals_add_up() -> None:
    rows = [row(f"s{n}", queued=n, region=f"r{n % 50}") for n in range(50)]
    rows += [row(f"big{n}", queued=1000 + n, stored=1, region="r0") for n in range(450)]
    found = site_map("x", rows, by="queued", total=60_000)
    assert [len(region.sites) for region in found.regions] == [200] + [1] * 39
    first = found.regions[0]
    assert (first.region, first.rest.sites, first.sites[0].site) == ("r0", 251, "big449")
    shown = sum(site.queued for site in first.sites) + first.rest.queued
    assert shown == sum(one.queued or 0 for one in rows if one.region == "r0")
    assert found.unseen == 60_000 - 450 - 40
    assert len(msgspec.json.encode(found)) < 100_000
    kinds = [
        row("a", closed="x"),
        row("b", hold=1.0),
        row("c", requests=3, errors=2),
        row("d", leased=1),
        row("e", queued=1),
        row("f"),
    ]
    assert [site_state(one) for one in kinds] == ["closed", "held", "failing", "fetching", "waits", "idle"]


def test_error_statistics_have_bounded_size() -> None:
    tally = JobCounters(TimeSeries())
    tally.update(
        sent(f"http://s{n % 30_000}.example/{n}", NOW + n / 100, status=0, error=f"odd-{n % 300}")
        for n in range(100_000)
    )
    faults = tally.faults("x")
    assert len(tally.sites) <= 20_000
    assert len(faults.faults) <= 65
    assert sum(fault.count for fault in faults.faults) == 100_000
    assert all(len(fault.examples) <= 5 and len(fault.sites) <= 5 for fault in faults.faults)
    assert len(msgspec.json.encode(faults)) < 200_000


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://x/?a=1&api_key=K&b=2", "http://x/?a=1&api_key=***&b=2"),
        ("http://x/?X-Amz-Signature=K#f", "http://x/?X-Amz-Signature=***#f"),
        ("http://x/?session_id=K;sid=L", "http://x/?session_id=***;sid=***"),
        ("http://x/keyboard?keys=2", "http://x/keyboard?keys=2"),
    ],
)
def test_secrets_in_urls_are_masked(url: str, shown: str) -> None:
    """H66."""
    assert masked_url(url) == shown


def test_request_log_tail_returns_complete_lines_once(tmp_path: Path) -> None:
    async def write(trail: RequestLog, *steps: SentRequest) -> None:
        for step in steps:
            trail.note(step)
        await trail.flush()

    first, second = RequestLog(tmp_path, "one"), RequestLog(tmp_path, "two")
    tail = LogTail(tmp_path)
    assert tail.read_new() == []
    asyncio.run(write(first, SentRequest(url="http://a/1", at=2.0), SentRequest(url="http://a/2", at=4.0)))
    asyncio.run(write(second, SentRequest(url="http://b/1", at=3.0)))
    assert [one.step.url for one in tail.read_new()] == ["http://a/1", "http://b/1", "http://a/2"]
    with (tmp_path / "trail" / "one.jsonl").open("ab") as file:
        file.write(b'{"url":"http://a/3","at":5.0')
    assert tail.read_new() == []
    with (tmp_path / "trail" / "one.jsonl").open("ab") as file:
        file.write(b'}\nbroken\n{"url":"http://a/4","at":6.0}\n')
    assert [one.step.url for one in tail.read_new()] == ["http://a/3", "http://a/4"]
    asyncio.run(first.aclose())
    asyncio.run(second.aclose())


@pytest.mark.parametrize(
    ("glob", "url", "fits"),
    [
        ("http://a/*", "http://a/x/y", True),
        ("http://a/*/y", "http://a/x/y", True),
        ("http://a/*/y", "http://a/y", False),
        ("*/b*c*d", "http://a/bxxcyyd", True),
        ("*/b*c*d", "http://a/bxxcyydz", False),
        ("http://a/(x+)+$", "http://a/xxxx", False),
        ("ab*b", "ab", False),
        ("ab*b", "abb", True),
        ("http://a/", "http://a/b", False),
    ],
)
def test_glob_matches_a_whole_url(glob: str, url: str, fits: bool) -> None:
    assert bool(re.search(glob_pattern(glob), url)) == fits


def test_glob_matching_never_backtracks() -> None:
    """H63: a pattern that takes a backtracking regular expression hours finishes."""
    pattern = re.compile(glob_pattern("*a" * 200 + "*b"))
    assert pattern.search("a" * 2048) is None


def test_search_returns_newest_pages_first_and_continues(tmp_path: Path) -> None:
    rows = [
        PageRow(url=f"http://{'ab'[n % 2]}.example/{n % 700}", status=404 if n % 10 == 0 else 200, fetched_at=NOW + n)
        for n in range(9000)
    ]
    (tmp_path / "pages.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows) + b'{"url":"torn')
    found, after, reader = [], None, StoredJob.of(tmp_path).need("rows")
    wanted = Search(site="a.example", status=404, since=NOW + 100)
    while True:
        some, after = reader.search(wanted, after=after, limit=33, go_on=lambda: True)
        found += some
        if after is None:
            break
    assert found == [row for row in reversed(rows) if wanted.fits(row)]
    versions = versions_of(reader.rows(Search(url="http://a.example/4")))
    assert [row.fetched_at for row in versions][:2] == [NOW + 8404, NOW + 7704]
    assert list(reader.rows(Search(url="http://a.example/"))) == []


def test_slow_event_client_misses_events_without_blocking() -> None:
    async def listen() -> tuple[int, bytes, int]:
        hub = EventHub()
        slow, quick = hub.listen(None), hub.listen("x")
        await anext(slow)
        await anext(quick)
        for number in range(10_000):
            hub.publish("sample", "x", {"n": number, "text": "a\nb"})
        got = await anext(quick)
        assert got.startswith(b"event: missed\ndata: 9968\n\n")
        newest = await anext(quick)
        hub.close()
        rest = [event async for event in slow]
        clients = hub.clients
        await quick.aclose()  # type: ignore[attr-defined]
        return len(b"".join(rest)), newest, clients

    size, newest, clients = asyncio.run(listen())
    assert b'"n":9999' in newest
    assert newest.count(b"\n\n") == 32
    assert size < 10_000
    assert clients == 1


def test_job_notifier_reports_each_event_once(tmp_path: Path) -> None:
    output = tmp_path / "told"

    async def run() -> list[tuple[str, str]]:
        clock = ManualClock()
        notifier = Notifier([f"exec:tee -a {output}"])
        events = JobNotifier(notifier, stalled_after=60.0, errors_above=0.5, clock=clock)

        async def saw(before: str, state: str, **counts: int) -> None:
            events.update("shop", before, state, Counts(ready_sites=1, **counts), "disk full")  # type: ignore[arg-type]
            await asyncio.gather(*events._tasks)

        # A job that had ended before the service looked is no news.
        await saw("resting", "finished")
        await saw("starting", "running")
        for _ in range(3):
            clock.advance(61.0)
            await saw("running", "running")
        for stored in (100, 200):
            await saw("running", "running", stored=stored, failed=stored)
        await saw("running", "finished", stored=200, failed=200)
        await saw("finished", "running", stored=200)
        await saw("running", "failed", stored=200)
        await events.aclose()
        decoder, text, found = json.JSONDecoder(), output.read_text(), []
        while text:
            notice, end = decoder.raw_decode(text)
            found.append((notice["event"], notice["text"]))
            text = text[end:]
        return found

    assert asyncio.run(run()) == [
        ("stalled", "no page stored for 61 s, although sites are ready"),
        ("errors", "100% of the last 100 pages failed"),
        ("finished", "200 pages, 200 failed"),
        ("failed", "disk full"),
    ]


class OneJob:
    """A job directory with one job in a settable state."""

    place = "embedded"
    settings = Settings()
    state_now = "running"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self, name: str) -> OneJob:
        return self

    async def counts(self) -> Counts:
        return Counts(stored=7)

    async def workers(self) -> list[object]:
        return []

    def state(self, counts: Counts, heartbeats: object) -> str:
        return self.state_now

    def problem(self, name: str) -> str:
        return ""

    def is_starting(self, name: str) -> bool:
        return False

    is_ending = is_starting


def test_end_found_by_a_request_is_notified(tmp_path: Path) -> None:
    class RecordingNotifier:
        """Record end events."""

        def __init__(self) -> None:
            self.ends: list[tuple[str, str]] = []

        def update(self, job: str, before: str, state: str, counts: object, problem: str) -> None:
            if state != before:
                self.ends.append((before, state))

    async def run() -> list[tuple[str, str]]:
        directory, recorder, clock = OneJob(tmp_path), RecordingNotifier(), ManualClock()
        monitor = Monitor(directory, EventHub(), clock=clock, notifier=recorder)  # type: ignore[arg-type]
        watched = await monitor.get("shop")
        directory.state_now = "finished"
        clock.advance(3600.0)
        assert (await monitor.get("shop")).state == "finished"
        await monitor._poll(watched)
        await watched.aclose()
        return recorder.ends

    assert asyncio.run(run()) == [("resting", "running"), ("running", "finished")]
