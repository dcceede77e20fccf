"""Prometheus metrics of the service, from the last poll of each job: a scrape sends no requests to jobs.

`prometheus-client` only formats the text; the counters are part of the service's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from gossamer.cut import by_known_reason
from gossamer.model import Counts
from gossamer.service.events import EventHub
from gossamer.service.monitor import Monitor, MonitoredJob
from gossamer.settings import VERSION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_JOBS = 25
"""Maximum number of jobs with metrics, running ones first. At 27 series per job, plus one per limit that truncated a
page, this stays below 1,000 series."""
_ACTIVE = ("running", "paused", "stopping")
_STATES = ("starting", "running", "paused", "stopping", "finished", "resting", "failed")
_CLASSES = ("ok", "redirects", "client_errors", "server_errors", "faults", "skipped")
_URLS = ("queued", "delayed", "leased", "done", "failed", "skipped", "parked")
_SITES = ("ready", "held", "active")


class Metric(NamedTuple):
    """Name, type, help text, and labels of a metric."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


METRICS = {
    metric.name: metric
    for metric in (
        Metric("gossamer_info", "gauge", "Version of the service.", ("version",)),
        Metric("gossamer_jobs", "gauge", "Number of jobs, by state.", ("state",)),
        Metric("gossamer_frontier_up", "gauge", "1 if the last attempt to list the jobs succeeded."),
        Metric("gossamer_event_clients", "gauge", "Clients connected to the live event stream."),
        Metric("gossamer_events_missed_total", "counter", "Live events dropped because a client was too slow."),
        Metric("gossamer_job_up", "gauge", "1 if the last poll of the job succeeded.", ("job",)),
        Metric("gossamer_job_running", "gauge", "1 while the job is running.", ("job",)),
        Metric("gossamer_job_age_seconds", "gauge", "Seconds since the last successful poll of the job.", ("job",)),
        Metric("gossamer_urls", "gauge", "URLs of the job, by state.", ("job", "state")),
        Metric("gossamer_urls_known", "gauge", "URLs that the job has discovered.", ("job",)),
        Metric("gossamer_pages_stored", "gauge", "Pages that the job has stored.", ("job",)),
        Metric("gossamer_sites", "gauge", "Sites of the job.", ("job",)),
        Metric("gossamer_sites_by_state", "gauge", "Sites of the job by state: ready, held (on hold), active (leased).",
               ("job", "state")),
        Metric("gossamer_requests_total", "counter",
               "Requests since the service started to watch the job, by response class.", ("job", "answer")),
        Metric("gossamer_bytes_total", "counter",
               "Bytes of response bodies since the service started to watch the job.", ("job",)),
        Metric("gossamer_cut_pages_total", "counter",
               "Pages truncated since the service started to watch the job, by limit.", ("job", "reason")),
        Metric("gossamer_pages_per_second", "gauge", "Pages per second, over the last seconds.", ("job",)),
        Metric("gossamer_requests_too_early_total", "counter", "Requests sent before the site's delay was over.",
               ("job",)),
        Metric("gossamer_stale_total", "counter", "Outcomes rejected because their lease had expired.", ("job",)),
        Metric("gossamer_workers", "gauge", "Live workers of the job.", ("job",)),
    )
}  # fmt: skip
Sample = tuple[Sequence[str], float]
"""Label values, in the order of the metric's labels, and the sample's value."""


def exposition(monitor: Monitor, hub: EventHub, *, now: float) -> bytes:
    """Return all metrics in the Prometheus text format."""
    return generate_latest(_MonitorCollector(monitor, hub, now))


class _MonitorCollector(Collector):
    """Collector for prometheus-client over the monitor's last polls."""

    def __init__(self, monitor: Monitor, hub: EventHub, now: float) -> None:
        self._monitor, self._hub, self._now = monitor, hub, now

    def collect(self) -> Iterator[Family]:
        for name, samples in self._samples():
            metric = METRICS[name]
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(name, metric.help, labels=metric.labels)
            for values, number in samples:
                family.add_metric(values, number)
            yield family

    def _samples(self) -> Iterator[tuple[str, Iterable[Sample]]]:
        watched = sorted(self._monitor.jobs, key=lambda one: (one.state not in _ACTIVE, one.name))
        shown = watched[:_MOST_JOBS]
        states: list[str] = [one.state for one in watched]
        yield "gossamer_info", [((VERSION,), 1)]
        yield "gossamer_jobs", [((state,), states.count(state)) for state in _STATES]
        yield "gossamer_frontier_up", [((), self._monitor.is_ready)]
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


def _each(shown: Sequence[MonitoredJob], value: Callable[[MonitoredJob], float]) -> Iterator[Sample]:
    return (((one.name,), value(one)) for one in shown)


def _count(shown: Sequence[MonitoredJob], value: Callable[[Counts], float]) -> Iterator[Sample]:
    return (((one.name,), value(one.counts)) for one in shown if one.counts is not None)


def _counted(
    shown: Sequence[MonitoredJob], words: Sequence[str], value: Callable[[Counts, str], float]
) -> Iterator[Sample]:
    return (((one.name, word), value(one.counts, word)) for one in shown if one.counts is not None for word in words)
