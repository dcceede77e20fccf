"""Invariants of a finished run, checked against the servers' log and the contents of the stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gossamer.frontier.embedded.journal import DONE, FAILED, RETRY, SKIPPED
from gossamer.lab.simulation.scenario import Scenario, SiteSpec
from gossamer.lab.simulation.stores import Journals, KeptJournal
from gossamer.lab.simulation.world import SimHit, SimulatedWeb, Witness
from gossamer.model import Counts, Record

_SLACK_SECONDS = 0.002
_HELD_UP_SECONDS = 60.0
"""Maximum time between the check of robots.txt and the request that it allows, while the worker is busy."""


class Evidence:
    """The data of a finished run."""

    def __init__(
        self, scenario: Scenario, web: SimulatedWeb, witness: Witness, journal: KeptJournal | Journals
    ) -> None:
        self.scenario = scenario
        self.web = web
        self.witness = witness
        self.journal = journal
        self.counts = Counts()
        self.records: list[list[Record]] = []
        """Records of each file."""
        self.in_flight = 0
        """Requests in progress, summed over all faults of workers."""
        self.repaired: set[int] = set()
        """Keys of pages that were queued again because their records were lost."""
        self.unhurt: dict[str, bool] = {}
        """Worker -> whether it had no faults."""

    def is_cut_short(self, spec: SiteSpec, stored: Counter[str]) -> bool:
        """Whether a limit, or the end of the run, was reached before all pages of a site were fetched."""
        if self.scenario.seconds:
            return True
        settings = self.scenario.settings
        by_pages = settings.max_pages is not None and self.counts.stored >= settings.max_pages
        return by_pages or (settings.site_budget is not None and stored[spec.host] >= settings.site_budget)


def violations(evidence: Evidence) -> Iterator[str]:
    """The violated invariants; each message begins with the number of the promise."""
    yield from evidence.witness.faults
    yield from _ended(evidence)
    yield from _complete(evidence)
    yield from _repeats(evidence)
    yield from _stored(evidence)
    by_host: dict[str, list[SimHit]] = {}
    for hit in sorted(evidence.web.hits):
        by_host.setdefault(hit.host, []).append(hit)
    for host, hits in by_host.items():
        spec = evidence.scenario.sites.of(host)
        yield from _polite(evidence, spec, hits)
        yield from _obedient(evidence, spec, hits)


def _ended(evidence: Evidence) -> Iterator[str]:
    """I2, P7: nothing is left, every known URL is completed, and acknowledged outcomes are present."""
    counts, scenario, journal = evidence.counts, evidence.scenario, evidence.journal
    by_pages = scenario.settings.max_pages is not None and counts.stored >= scenario.settings.max_pages
    is_left = counts.leased or (not by_pages and (counts.queued or counts.delayed))
    if not scenario.seconds and (not counts.finished or is_left):
        yield f"I2: work is left: {counts.queued} queued, {counts.leased} leased, {counts.delayed} delayed"
    ended = counts.done + counts.failed + counts.skipped + counts.parked
    waiting = counts.queued + counts.delayed + counts.leased
    if counts.known != ended + waiting:
        yield f"I2: {counts.known} URLs are known, {ended} have come to an end, and {waiting} wait"
    requests = journal.requests()
    completed = {requests[row.number].key for row in journal.outcomes()}
    for key in sorted(evidence.witness.accepted - completed):
        yield f"P7: what came of {key:016x} was acknowledged, and is not kept"


def _complete(evidence: Evidence) -> Iterator[str]:
    """I1, P3, P10: every fetchable page is done, or was parked after it crashed enough workers."""
    scenario, journal = evidence.scenario, evidence.journal
    most = scenario.settings.max_deliveries
    last = {row.number: row.status for row in journal.outcomes()}
    numbers = {request.url: number for number, request in journal.requests().items()}
    answered = {f"http://{hit.host}{hit.path}" for hit in evidence.web.hits if hit.status in (200, 301)}
    stored = stored_by_host(journal)
    parked = 0
    for spec in scenario.sites:
        is_cut_short = evidence.is_cut_short(spec, stored)
        for url, parent in evidence.web.expected(spec):
            number = numbers.get(url)
            status = last.get(number, 0) if number is not None else 0
            if number is None:
                if not parent or last.get(numbers.get(parent, 0)) == DONE:
                    yield f"I1: {url} was never found"
                    if parent:
                        yield f"P3: {parent} is done, and its link to {url} is not known"
            elif status == DONE:
                if url not in answered:
                    yield f"I1: {url} is done and was never answered"
            else:
                parked += journal.losses(number) >= most
                is_closed = status == SKIPPED and spec.closes_at > 0 and "/late" in url
                if not is_closed and not is_cut_short and journal.losses(number) < most:
                    yield f"I1: {url} is not done (status {status}), nor lost often enough to be parked"
    if parked > evidence.counts.parked:
        yield f"P10: {parked} were lost {most} times, and {evidence.counts.parked} are parked"
    poison = numbers.get(scenario.poison)
    if poison is not None and journal.losses(poison) < most:
        request = journal.requests()[poison]
        is_cut_short = evidence.is_cut_short(scenario.sites.of(request.site), stored)
        if evidence.witness.deliveries[request.key] and not is_cut_short:
            yield f"P10: {scenario.poison} kills its workers and is not parked"


def stored_by_host(journal: KeptJournal | Journals) -> Counter[str]:
    """Number of stored visits per site."""
    requests = journal.requests()
    return Counter(requests[row.number].site for row in journal.outcomes() if row.status in (DONE, FAILED))


def _repeats(evidence: Evidence) -> Iterator[str]:
    """I3, P1, P2: a page is requested once per delivery; only retries, revisits, and faults add deliveries."""
    settings, journal = evidence.scenario.settings, evidence.journal
    completed: dict[int, list[float]] = {}
    retried: Counter[int] = Counter()
    for row in journal.outcomes():
        if row.status == RETRY:
            retried[row.number] += 1
        else:
            completed.setdefault(row.number, []).append(row.at)
    requested = Counter(f"http://{hit.host}{hit.path}" for hit in evidence.web.hits)
    repeats = journal.lost_outcomes and -journal.lost_outcomes
    keys: set[int] = set()
    for number, request in journal.requests().items():
        visits = completed.get(number, [])
        if request.key in keys:
            yield f"P1: {request.url} was queued twice"
        keys.add(request.key)
        is_early = any(after - before < settings.revisit_seconds for before, after in pairwise(visits))
        if is_early and request.key not in evidence.repaired:
            yield f"P1: {request.url} was completed {len(visits)} times"
        # In a continuous crawl, one more visit may be in progress.
        if retried[number] > (settings.tries - 1) * max(1, len(visits) + bool(settings.recrawl)):
            yield f"tries: {request.url} was tried {retried[number] + 1} times"
        deliveries = evidence.witness.deliveries[request.key]
        if requested[request.url] > deliveries:
            yield f"P2: {request.url} was requested {requested[request.url]} times and leased {deliveries} times"
        repeats += max(0, requested[request.url] - max(1, len(visits)) - retried[number])
    if repeats > evidence.in_flight:
        yield f"I3: {repeats} repeats, though at most {evidence.in_flight} requests were in hand when something befell"


def _stored(evidence: Evidence) -> Iterator[str]:
    """I6, budgets: each completed page has one record that counts, and no limit is exceeded."""
    settings = evidence.scenario.settings
    stored = stored_by_host(evidence.journal)
    if settings.max_pages is not None and stored.total() > settings.max_pages:
        yield f"budget: {stored.total()} pages are stored, and {settings.max_pages} were allowed"
    if settings.site_budget is not None:
        for host, pages in stored.items():
            if pages > settings.site_budget:
                yield f"budget: {pages} pages of {host} are stored, and {settings.site_budget} were allowed"
    by_key: Counter[int] = Counter()
    for records in evidence.records:
        pages_of = Counter((record.key, record.token) for record in records)
        for (key, token), times in pages_of.items():
            if times > 1:
                yield f"I6: the record of {key:016x} was written {times} times with token {token:x}"
        by_key.update({key for key, _ in pages_of})
    requests = evidence.journal.requests()
    ended = {requests[row.number].key: row.status for row in evidence.journal.outcomes()}
    for key in sorted(key for key, status in ended.items() if status in (DONE, FAILED)):
        if not by_key[key]:
            yield f"I6: {key:016x} is completed and has no record"
    if evidence.scenario.stores == "owner" and not settings.recrawl:
        for key, times in sorted(by_key.items()):
            if times > 1 or ended.get(key) not in (DONE, FAILED):
                yield f"I6: {key:016x} has {times} records, and is at status {ended.get(key, 0)}"


def _polite(evidence: Evidence, spec: SiteSpec, hits: Sequence[SimHit]) -> Iterator[str]:
    """I4, P5: no two requests are closer than the delay, and healthy workers never send two at once."""
    delay = evidence.scenario.settings.delay or 0.0
    for before, after in pairwise(hits):
        asks = spec.crawl_delay if spec.robots != "none" and after.path != "/robots.txt" else 0.0
        least = max(delay, asks) * (1 - 3 * evidence.scenario.drift) - _SLACK_SECONDS
        if after.at - before.at < least:
            yield (
                f"{'I4' if after.worker == before.worker else 'P5'}: {after.host} got a request for {after.path} from "
                f"{after.worker} {after.at - before.at:.3f} s after {before.path} by {before.worker}; "
                f"its delay is {max(delay, asks):g} s"
            )
        if after.at < before.answered_at and before.status and evidence.unhurt.get(before.worker):
            yield f"P2: {after.host} received a request for {after.path} while {before.worker} waited for {before.path}"


def _obedient(evidence: Evidence, spec: SiteSpec, hits: Sequence[SimHit]) -> Iterator[str]:
    """I5: no request before robots.txt, and none that robots.txt disallows, or has disallowed for long enough."""
    scenario = evidence.scenario
    if hits[0].path != "/robots.txt":
        yield f"I5: {spec.host} received a request for {hits[0].path} before robots.txt"
    # With a clock that is an hour behind, the rules are valid for an hour more; beyond that they are fetched again.
    known_by = spec.closes_at + scenario.settings.robots_seconds + min(2 * scenario.skew_seconds, 3600.0)
    known = False
    for hit in hits:
        known = known or (hit.path == "/robots.txt" and hit.status in (200, 404))
        is_closed = spec.closes_at and spec.robots != "none" and hit.at > known_by + _HELD_UP_SECONDS
        if hit.path != "/robots.txt" and (not known or hit.path.startswith("/private")):
            yield f"I5: {hit.host} received a request for {hit.path}, which its robots.txt disallows"
        elif hit.path.startswith("/late") and is_closed:
            yield f"I5: {hit.host} received a request for {hit.path} long after its robots.txt disallowed it"
