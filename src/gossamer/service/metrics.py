"""The metrics of the service for Prometheus: from what was seen last, so that a scrape asks nothing of a job.

`prometheus-client` writes the text. Nothing is kept in it between scrapes: all that is counted is in the service's
state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from gossamer.cut import by_known_reason
from gossamer.model import Counts
from gossamer.service.events import Hub
from gossamer.service.monitor import Watch, WatchedJob
from gossamer.settings import VERSION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_JOBS = 25
"""With their 27 series each, and one for each limit that cut a page, this stays below 1,000; of more jobs those that
run come first."""
_ACTIVE = ("running", "paused", "stopping")
_STATES = ("starting", "running", "paused", "stopping", "finished", "resting", "failed")
_CLASSES = ("ok", "redirects", "client_errors", "server_errors", "faults", "skipped")
_URLS = ("queued", "delayed", "leased", "done", "failed", "skipped", "parked")
_SITES = ("ready", "held", "active")


class Metric(NamedTuple):
    """One name, and what it means."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


METRICS = {
    metric.name: metric
    for metric in (
        Metric("gossamer_info", "gauge", "The version of the service.", ("version",)),
        Metric("gossamer_jobs", "gauge", "Jobs that the service has seen, by state.", ("state",)),
        Metric("gossamer_frontier_up", "gauge", "1 if the jobs could be listed at the last look."),
        Metric("gossamer_event_clients", "gauge", "Clients that listen to live events."),
        Metric("gossamer_events_missed_total", "counter", "Events that slow clients missed."),
        Metric("gossamer_job_up", "gauge", "1 if the last look at the job went well.", ("job",)),
        Metric("gossamer_job_running", "gauge", "1 while somebody works on the job.", ("job",)),
        Metric("gossamer_job_age_seconds", "gauge", "Seconds since the last good look.", ("job",)),
        Metric("gossamer_urls", "gauge", "URLs of a job, by where they are.", ("job", "state")),
        Metric("gossamer_urls_known", "gauge", "URLs that a job has ever seen.", ("job",)),
        Metric("gossamer_pages_stored", "gauge", "Pages that a job has stored.", ("job",)),
        Metric("gossamer_sites", "gauge", "Sites of a job.", ("job",)),
        Metric("gossamer_sites_by_state", "gauge", "Sites that could be asked, are left alone, or are leased.",
               ("job", "state")),
        Metric("gossamer_requests_total", "counter", "Requests since the service looks, by answer.", ("job", "answer")),
        Metric("gossamer_bytes_total", "counter", "Bytes of bodies since the service looks.", ("job",)),
        Metric("gossamer_cut_pages_total", "counter",
               "Pages of which something was dropped since the service looks, by limit.", ("job", "reason")),
        Metric("gossamer_pages_per_second", "gauge", "Pages a second, over the last seconds.", ("job",)),
        Metric("gossamer_requests_too_early_total", "counter", "Requests that came sooner than the delay.", ("job",)),
        Metric("gossamer_stale_total", "counter", "Outcomes that came too late to count.", ("job",)),
        Metric("gossamer_workers", "gauge", "Workers that are there.", ("job",)),
    )
}  # fmt: skip
Sample = tuple[Sequence[str], float]
"""The values of a metric's labels, in their order, and the number."""


def exposition(watch: Watch, hub: Hub, *, now: float) -> bytes:
    """All metrics as text."""
    return generate_latest(_Seen(watch, hub, now))


class _Seen(Collector):
    """What was seen last, in the form that prometheus-client takes."""

    def __init__(self, watch: Watch, hub: Hub, now: float) -> None:
        self._watch, self._hub, self._now = watch, hub, now

    def collect(self) -> Iterator[Family]:
        for name, samples in self._samples():
            metric = METRICS[name]
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(name, metric.help, labels=metric.labels)
            for values, number in samples:
                family.add_metric(values, number)
            yield family

    def _samples(self) -> Iterator[tuple[str, Iterable[Sample]]]:
        watched = sorted(self._watch.watched, key=lambda one: (one.state not in _ACTIVE, one.name))
        shown = watched[:_MOST_JOBS]
        states: list[str] = [one.state for one in watched]
        yield "gossamer_info", [((VERSION,), 1)]
        yield "gossamer_jobs", [((state,), states.count(state)) for state in _STATES]
        yield "gossamer_frontier_up", [((), self._watch.is_ready)]
        yield "gossamer_event_clients", [((), self._hub.clients)]
        yield "gossamer_events_missed_total", [((), self._hub.missed)]
        yield "gossamer_job_up", _each(shown, lambda one: not one.problem)
        yield "gossamer_job_running", _each(shown, lambda one: one.state == "running")
        yield "gossamer_job_age_seconds", [
            ((one.name,), max(0.0, self._now - one.sampled_at)) for one in shown if one.sampled_at is not None
        ]  # fmt: skip
        yield "gossamer_urls", _counted(shown, _URLS, getattr)
        yield "gossamer_urls_known", _count(shown, lambda counts: counts.known)
        yield "gossamer_pages_stored", _count(shown, lambda counts: counts.stored)
        yield "gossamer_sites", _count(shown, lambda counts: counts.sites)
        yield "gossamer_sites_by_state", _counted(
            shown, _SITES, lambda counts, word: getattr(counts, f"{word}_sites")
        )  # fmt: skip
        yield "gossamer_requests_total", [
            ((one.name, word), one.tally.classes[word]) for one in shown for word in _CLASSES
        ]  # fmt: skip
        yield "gossamer_bytes_total", _each(shown, lambda one: one.tally.bytes)
        yield "gossamer_cut_pages_total", [
            ((one.name, reason), pages)
            for one in shown for reason, pages in by_known_reason(one.tally.cut.by_reason).items()
        ]  # fmt: skip
        yield "gossamer_pages_per_second", _each(shown, lambda one: one.pages_per_second)
        yield "gossamer_requests_too_early_total", _each(shown, lambda one: one.tally.too_short)
        yield "gossamer_stale_total", _count(shown, lambda counts: counts.stale)
        yield "gossamer_workers", _each(shown, lambda one: one.workers)


def _each(shown: Sequence[WatchedJob], value: Callable[[WatchedJob], float]) -> Iterator[Sample]:
    return (((one.name,), value(one)) for one in shown)


def _count(shown: Sequence[WatchedJob], value: Callable[[Counts], float]) -> Iterator[Sample]:
    return (((one.name,), value(one.counts)) for one in shown if one.counts is not None)


def _counted(
    shown: Sequence[WatchedJob], words: Sequence[str], value: Callable[[Counts, str], float]
) -> Iterator[Sample]:
    return (((one.name, word), value(one.counts, word)) for one in shown if one.counts is not None for word in words)
