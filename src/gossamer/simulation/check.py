"""The invariants of a run that is over, judged from the servers' log and from what the stores hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gossamer.frontier.journal import DONE, FAILED, RETRY
from gossamer.model import Counts, Record
from gossamer.simulation.link import Witness
from gossamer.simulation.scenario import Scenario
from gossamer.simulation.stores import KeptJournal
from gossamer.simulation.web import Hit, SimulatedWeb

_SLACK_SECONDS = 0.002


class Evidence:
    """What is left of a run."""

    def __init__(self, scenario: Scenario, web: SimulatedWeb, witness: Witness, journal: KeptJournal) -> None:
        self.scenario = scenario
        self.web = web
        self.witness = witness
        self.journal = journal
        self.counts = Counts()
        self.records: list[list[Record]] = []
        """Of each file."""
        self.in_flight = 0
        """Requests in the hands of workers, summed over all that befell these."""
        self.unhurt: dict[str, bool] = {}
        """Worker -> whether nothing ever befell it."""


def violations(evidence: Evidence) -> Iterator[str]:
    """What must not be, in words that begin with the number of the promise."""
    yield from evidence.witness.faults
    yield from _complete(evidence)
    yield from _repeats(evidence)
    yield from _stored(evidence)
    by_host: dict[str, list[Hit]] = {}
    for hit in sorted(evidence.web.hits):
        by_host.setdefault(hit.host, []).append(hit)
    for hits in by_host.values():
        yield from _polite(evidence, hits)
        yield from _obedient(evidence, hits)


def _complete(evidence: Evidence) -> Iterator[str]:
    """I1, I2, P9, P10: every page that can be had is done, or was parked after it had cost enough workers."""
    counts, scenario, journal = evidence.counts, evidence.scenario, evidence.journal
    if not counts.finished or counts.queued or counts.leased or counts.delayed:
        yield f"I2: work is left: {counts.queued} queued, {counts.leased} leased, {counts.delayed} delayed"
    ended = counts.done + counts.failed + counts.skipped + counts.parked
    if counts.known != ended:
        yield f"I2: {counts.known} URLs are known, and {ended} have come to an end"
    last = {row.number: row.status for row in journal.outcomes()}
    numbers = {request.url: number for number, request in journal.requests().items()}
    answered = {f"http://{hit.host}{hit.path}" for hit in evidence.web.hits if hit.status == 200}
    parked: set[str] = set()
    for url, parent in evidence.web.expected().items():
        number = numbers.get(url)
        if number is None:
            if parent not in parked:
                yield f"I1: {url} was never found"
            parked.add(url)
        elif last.get(number) == DONE:
            if url not in answered:
                yield f"I1: {url} is done and was never answered"
        else:
            parked.add(url)
            if evidence.witness.deliveries[journal.requests()[number].key] < scenario.settings.max_deliveries:
                yield f"I1: {url} is not done (status {last.get(number, 0)}), nor lost often enough to be parked"
    if len(parked & numbers.keys()) > counts.parked:
        yield f"P10: {sorted(parked & numbers.keys())} are not done, and {counts.parked} are parked"
    if scenario.poison in numbers and last.get(numbers[scenario.poison], 0) in (DONE, FAILED):
        yield f"P10: {scenario.poison} kills its workers and is not parked"


def _repeats(evidence: Evidence) -> Iterator[str]:
    """I3, P1: a page is asked for once a delivery; more deliveries than one are owed to retries and to faults."""
    settled = Counter(row.number for row in evidence.journal.outcomes() if row.status != RETRY)
    retried = Counter(row.number for row in evidence.journal.outcomes() if row.status == RETRY)
    asked = Counter(f"http://{hit.host}{hit.path}" for hit in evidence.web.hits)
    repeats = 0
    for number, request in evidence.journal.requests().items():
        if settled[number] > 1:
            yield f"P1: {request.url} was settled {settled[number]} times"
        deliveries = evidence.witness.deliveries[request.key]
        if asked[request.url] > deliveries:
            yield f"P2: {request.url} was asked for {asked[request.url]} times and handed out {deliveries} times"
        repeats += max(0, asked[request.url] - 1 - retried[number])
    if repeats > evidence.in_flight:
        yield f"I3: {repeats} repeats, though at most {evidence.in_flight} requests were in hand when something befell"


def _stored(evidence: Evidence) -> Iterator[str]:
    """I6: each page that is settled has its record, and none has two that count."""
    by_key: Counter[int] = Counter()
    for records in evidence.records:
        pages = Counter((record.key, record.token) for record in records)
        for (key, token), times in pages.items():
            if times > 1:
                yield f"I6: the record of {key:016x} was written {times} times with token {token:x}"
        by_key.update({key for key, _ in pages})
    requests = evidence.journal.requests()
    ended = {requests[row.number].key: row.status for row in evidence.journal.outcomes()}
    for key in sorted(key for key, status in ended.items() if status in (DONE, FAILED)):
        if not by_key[key]:
            yield f"I6: {key:016x} is settled and has no record"
    if evidence.scenario.stores == "owner":
        for key, times in sorted(by_key.items()):
            if times > 1 or ended.get(key) not in (DONE, FAILED):
                yield f"I6: {key:016x} has {times} records, and is at status {ended.get(key, 0)}"


def _polite(evidence: Evidence, hits: Sequence[Hit]) -> Iterator[str]:
    """I4, P5: never two requests closer than the delay, and never two at once by workers that are well."""
    spec = next(spec for spec in evidence.scenario.sites if spec.host == hits[0].host)
    delay = evidence.scenario.settings.delay or 0.0
    for before, after in pairwise(hits):
        asks = spec.crawl_delay if spec.robots != "none" and after.path != "/robots.txt" else 0.0
        least = max(delay, asks) * (1 - 3 * evidence.scenario.drift) - _SLACK_SECONDS
        if after.at - before.at < least:
            yield (
                f"I4: {after.host} was asked for {after.path} by {after.worker} {after.at - before.at:.3f} s after "
                f"{before.path} by {before.worker}; its delay is {max(delay, asks):g} s"
            )
        if after.at < before.answered_at and before.status and evidence.unhurt.get(before.worker):
            yield f"P2: {after.host} was asked for {after.path} while {before.worker} waited for {before.path}"


def _obedient(evidence: Evidence, hits: Sequence[Hit]) -> Iterator[str]:
    """I5: nothing before robots.txt, and nothing that it forbids."""
    if not any(hit.path == "/robots.txt" for hit in hits[:1]):
        yield f"I5: {hits[0].host} was asked for {hits[0].path} before its robots.txt"
    known = False
    for hit in hits:
        known = known or (hit.path == "/robots.txt" and hit.status in (200, 404))
        if hit.path != "/robots.txt" and (not known or hit.path.startswith("/private")):
            yield f"I5: {hit.host} was asked for {hit.path}, which its robots.txt does not allow"
