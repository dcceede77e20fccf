"""Time series and counters of a job, per site and per fault, in bounded memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan, nan

from gossamer import urls
from gossamer.cut import CutTally
from gossamer.errors import advice_for_kind
from gossamer.redact import masked_url
from gossamer.service.schemas import Example, Fault, Faults, Gap, Politeness, Series, Visit
from gossamer.storage.request_log import Sent, is_too_short

STEP_COUNTS = {1: 600, 10: 360, 60: 1440}
"""Length of a step in seconds -> number of steps kept."""
SUMS = (
    "pages", "bytes", "ok", "redirects", "client_errors", "server_errors", "faults", "skipped", "answers",
    "latency_sum",
)  # fmt: skip
LEVELS = ("queued", "known", "stored", "failed", "active_sites", "workers")
_WIDTH = len(SUMS) + len(LEVELS)
_PLACES = {name: number for number, name in enumerate((*SUMS, *LEVELS))}


class RingBuffer:
    """Fixed number of steps of one length; values older than the buffer are ignored."""

    def __init__(self, step: int, length: int) -> None:
        self._step = step
        self._length = length
        self._turns = array("q", [-1]) * length
        self._values = array("d", [nan]) * (length * _WIDTH)
        self._newest = -1

    def add(self, at: float, sums: Mapping[str, float]) -> None:
        """Add to the sums of the step at this time."""
        base = self._slot(at)
        if base is not None:
            for name, value in sums.items():
                place = base + _PLACES[name]
                self._values[place] = value if isnan(self._values[place]) else self._values[place] + value

    def set(self, at: float, levels: Mapping[str, float]) -> None:
        """Set gauges of the step at this time; the last value of a step wins."""
        base = self._slot(at)
        if base is not None:
            for name, value in levels.items():
                self._values[base + _PLACES[name]] = value

    def _slot(self, at: float) -> int | None:
        turn = int(at // self._step)
        if turn <= self._newest - self._length or turn < 0:
            return None
        place = turn % self._length
        base = place * _WIDTH
        if self._turns[place] != turn:
            self._turns[place] = turn
            self._values[base : base + _WIDTH] = array("d", [nan]) * _WIDTH
        self._newest = max(self._newest, turn)
        return base

    def read(self, now: float, steps: int, *, counted_since: float | None) -> tuple[float, Series]:
        """Return the start time and values of the last complete steps, oldest first.

        From `counted_since` on, a step without events is 0; before that it is unknown (None)."""
        last = int(now // self._step)
        first = last - min(steps, self._length - 1)
        columns: dict[str, list[float | None]] = {name: [] for name in (*SUMS, *LEVELS)}
        for turn in range(first, last):
            base = (turn % self._length) * _WIDTH
            is_there = self._turns[turn % self._length] == turn
            begins = turn * self._step
            for name, place in _PLACES.items():
                value = self._values[base + place] if is_there else nan
                if isnan(value):
                    is_counted = name in SUMS and counted_since is not None and begins + self._step > counted_since
                    columns[name].append(0.0 if is_counted else None)
                else:
                    columns[name].append(value)
        answers, sums = columns.pop("answers"), columns.pop("latency_sum")
        latency = [
            round(total / number, 4) if total is not None and number else None
            for total, number in zip(sums, answers, strict=True)
        ]
        return float(first * self._step), Series(latency=latency, **columns)


class TimeSeries:
    """Ring buffers of one job, one per step length."""

    def __init__(self) -> None:
        self._series = {step: RingBuffer(step, length) for step, length in STEP_COUNTS.items()}
        self.counted_since: float | None = None

    def add(self, at: float, sums: Mapping[str, float]) -> None:
        """Add to the sums of the step at this time."""
        self.counted_since = at if self.counted_since is None else min(at, self.counted_since)
        for series in self._series.values():
            series.add(at, sums)

    def set(self, at: float, levels: Mapping[str, float]) -> None:
        """Set gauges at this time."""
        self.counted_since = at if self.counted_since is None else min(at, self.counted_since)
        for series in self._series.values():
            series.set(at, levels)

    def read(self, step: int, now: float, steps: int) -> tuple[float, Series]:
        """Return the start time and values of the last complete steps of this length."""
        return self._series[step].read(now, steps, counted_since=self.counted_since)


_MOST_SITES, _MOST_KINDS, _MOST_EXAMPLES, _MOST_FAULTY = 20_000, 64, 5, 200
_MOST_RECENT = 5
_SHOWN_SITES = 5
_HALF_LIFE_SECONDS = 20.0
BARS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)
_CLASSES = {2: "ok", 3: "redirects", 4: "client_errors", 5: "server_errors"}


@dataclass(slots=True)
class SiteCounters:
    """Counters of the requests to one site."""

    requests: int = 0
    errors: int = 0
    answers: int = 0
    latency_sum: float = 0.0
    bytes: int = 0
    last_at: float = 0.0
    idle_since: float = 0.0
    """Time of the last response, from which the delay counts."""
    weight: float = 0.0
    recent: list[Visit] = field(default_factory=list)

    def rate(self, now: float) -> float:
        """Recent requests per second, exponentially decayed."""
        decayed: float = self.weight * 0.5 ** ((now - self.last_at) / _HALF_LIFE_SECONDS)
        return decayed * 0.693 / _HALF_LIFE_SECONDS


@dataclass(slots=True)
class FaultCounters:
    """Counters of one kind of error."""

    first_at: float
    count: int = 0
    last_at: float = 0.0
    examples: deque[Example] = field(default_factory=lambda: deque(maxlen=_MOST_EXAMPLES))
    sites: Counter[str] = field(default_factory=Counter)


class JobCounters:
    """Counters over the request log of a job."""

    def __init__(self, past: TimeSeries, *, site_by: str = "host") -> None:
        self._past = past
        self._site_by = site_by
        self.sites: OrderedDict[str, SiteCounters] = OrderedDict()
        self.workers: Counter[str] = Counter()
        self.recent: deque[Visit] = deque(maxlen=50)
        self.requests = self.pages = self.bytes = 0
        self.classes: Counter[str] = Counter()
        self.cut = CutTally()
        self.since: float | None = None
        self._faults: dict[str, FaultCounters] = {}
        self._gaps = [0] * len(BARS)
        self._counted = self.too_short = 0
        self._shortest: float | None = None
        self._too_short_examples: deque[Example] = deque(maxlen=_MOST_EXAMPLES)

    def update(self, steps: Iterable[Sent]) -> None:
        """Count these requests, which are sorted by time."""
        # The finest step of the time series is a second, so requests are added per second.
        seconds: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for sent in steps:
            self._add(sent, seconds[int(sent.step.at)])
        for second, sums in seconds.items():
            self._past.add(second, sums)

    def _add(self, sent: Sent, sums: Counter[str]) -> None:
        step = sent.step
        self.since = step.at if self.since is None else min(self.since, step.at)
        if step.skipped:
            self.classes["skipped"] += 1
            sums["skipped"] += 1
            return
        name = urls.site(step.url, by=self._site_by)
        site = self._site(name)
        kind = _CLASSES.get(step.status // 100, "faults") if step.status else "faults"
        sums[kind] += 1
        sums["bytes"] += step.bytes
        # robots.txt does not count as a page.
        if not step.url.endswith("/robots.txt"):
            sums["pages"] += 1
            self.pages += 1
        if step.status:
            sums["answers"] += 1
            sums["latency_sum"] += step.latency  # type: ignore[assignment]
            site.answers += 1
            site.latency_sum += step.latency
        self.requests += 1
        self.bytes += step.bytes
        if step.cut:
            self.cut.add(step.cut)
        self.classes[kind] += 1
        self.workers[sent.worker] += 1
        if sent.was_sent:
            self._add_interval(name, site, sent)
        site.requests += 1
        site.bytes += step.bytes
        if step.at >= site.last_at:
            site.weight = site.weight * 0.5 ** ((step.at - site.last_at) / _HALF_LIFE_SECONDS) + 1.0
            site.last_at = step.at
        if kind in ("client_errors", "server_errors", "faults"):
            site.errors += 1
            self._add_error(name, sent)
        visit = Visit(
            url=masked_url(step.url),
            at=step.at,
            status=step.status,
            latency=step.latency,
            bytes=step.bytes,
            error=step.error,
            worker=sent.worker,
        )
        self.recent.appendleft(visit)
        site.recent.insert(0, visit)
        del site.recent[_MOST_RECENT:]

    def _site(self, name: str) -> SiteCounters:
        site = self.sites.get(name)
        if site is None:
            site = self.sites[name] = SiteCounters()
            if len(self.sites) > _MOST_SITES:
                # Drop the least recently used site.
                self.sites.popitem(last=False)
        else:
            self.sites.move_to_end(name)
        return site

    def _add_interval(self, name: str, site: SiteCounters, sent: Sent) -> None:
        step = sent.step
        rest = step.at - site.idle_since if step.rest is None else step.rest
        if (site.idle_since or step.rest is not None) and step.lanes == 1 and rest > -0.5:
            self._counted += 1
            self._gaps[bisect_right(BARS, max(0.0, rest)) - 1] += 1
            self._shortest = rest if self._shortest is None else min(self._shortest, rest)
            if is_too_short(step, rest):
                self.too_short += 1
                self._too_short_examples.append(_example(name, sent))
        site.idle_since = max(site.idle_since, step.at + step.latency)

    def _add_error(self, name: str, sent: Sent) -> None:
        step = sent.step
        kind = step.error or f"http-{step.status}"
        if kind not in self._faults and len(self._faults) >= _MOST_KINDS:
            kind = "other"
        fault = self._faults.setdefault(kind, FaultCounters(step.at))
        fault.count += 1
        fault.last_at = max(fault.last_at, step.at)
        fault.examples.appendleft(_example(name, sent))
        fault.sites[name] += 1
        if len(fault.sites) > _MOST_FAULTY:
            fault.sites = Counter(dict(fault.sites.most_common(_MOST_FAULTY // 2)))

    def faults(self, job: str) -> Faults:
        """Errors by kind, most frequent first."""
        ordered = sorted(self._faults.items(), key=lambda item: -item[1].count)
        return Faults(
            job=job,
            since=self.since,
            requests=self.requests,
            faults=[
                Fault(
                    kind=kind,
                    count=fault.count,
                    share=round(fault.count / max(1, self.requests), 6),
                    first_at=fault.first_at,
                    last_at=fault.last_at,
                    examples=list(fault.examples),
                    sites=dict(fault.sites.most_common(_SHOWN_SITES)),
                    advice=advice_for_kind(kind),
                )
                for kind, fault in ordered
            ],
        )

    def politeness(self, job: str) -> Politeness:
        """Histogram of the intervals between requests to the same site."""
        return Politeness(
            job=job,
            since=self.since,
            gaps=[Gap(least=least, count=count) for least, count in zip(BARS, self._gaps, strict=True)],
            shortest=None if self._shortest is None else round(max(0.0, self._shortest), 3),
            counted=self._counted,
            too_short=self.too_short,
            examples=list(self._too_short_examples),
        )


def _example(site: str, sent: Sent) -> Example:
    step = sent.step
    return Example(url=masked_url(step.url), site=site, at=step.at, page=masked_url(step.referrer))
