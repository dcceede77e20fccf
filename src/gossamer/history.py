"""What a job's files tell of the past: the requests that were sent to a site, and the stored rows of a page."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from gossamer import urls
from gossamer.errors import NotKept, SinkError
from gossamer.model import PageRow
from gossamer.settings import Settings
from gossamer.sink.trail import SentRequest, has_trail, steps
from gossamer.storage.query import Search, versions_of
from gossamer.storage.reader import StoredJob

history_log = logging.getLogger("gossamer.history")
_UNSENT = frozenset(("dns", "nxdomain", "forbidden"))
"""Faults that came before anything could be sent to the site."""


class Sent(NamedTuple):
    """One step of the trail, and whose it was."""

    step: SentRequest
    worker: str = ""

    @property
    def was_sent(self) -> bool:
        """Whether the site may have got it."""
        return not self.step.skipped and self.step.error not in _UNSENT


_SLACK_SECONDS, _SLACK_SHARE = 0.002, 0.001
"""Times are written down in milliseconds, and clocks are set: a thousandth is twice what they are slewed by."""


def rested(one: SentRequest, before: SentRequest | None) -> float | None:
    """Seconds from the headers of the answer before, from which the delay counts, to a request; None for the first one.

    By the worker's own clock where one worker had both in hand, else by the times that were written down."""
    if before is None:
        return None
    return one.rest if one.rest is not None else one.at - before.at - before.latency


def is_too_short(one: SentRequest, rest: float) -> bool:
    """Whether a rest was shorter than the delay of its time. Several lanes keep a rate together, not a gap."""
    slack = _SLACK_SECONDS if one.rest is not None else _SLACK_SECONDS + _SLACK_SHARE * one.delay
    return one.lanes == 1 and rest + slack < one.delay


def walked(job: StoredJob, site: str, settings: Settings) -> Iterator[Sent]:
    """The requests to a site: by the trail, or if none was kept by the stored pages. In the order of each worker."""
    by_domain = settings.site_by == "domain"
    beginnings = ("http",) if by_domain else (f"http://{site}/", f"https://{site}/")
    if has_trail(job.folder):
        found = (Sent(step, worker) for worker, step in steps(job.folder, *beginnings))
    else:
        found = (Sent(_step(row)) for row in _rows(job, Search(site=site, site_by=settings.site_by)))
    for one in found:
        if not by_domain or urls.site(one.step.url, by="domain") == site:
            yield one


def stored(job: StoredJob, url: str) -> list[PageRow]:
    """The rows of one page, the last word last; none where only bodies are kept, or nothing.

    A server that is away does not keep others from being asked."""
    reader = job.first("rows")
    try:
        return list(reversed(versions_of(reader.rows(Search(url=url))))) if reader is not None else []
    except (NotKept, SinkError) as error:
        history_log.warning("stored pages cannot be read: %s", error)
        return []


def _step(row: PageRow) -> SentRequest:
    return SentRequest(
        url=row.url,
        at=row.fetched_at,
        status=row.status,
        latency=row.elapsed,
        bytes=row.bytes,
        error="" if row.status else row.error.partition(":")[0],
        cut=row.cut or "",
    )


def _rows(job: StoredJob, terms: Search) -> Iterator[PageRow]:
    """The stored visits that fit, each once."""
    reader = job.first("rows")
    seen: set[tuple[str, float]] = set()
    for row in reader.rows(terms) if reader is not None else ():
        # A commit that was repeated leaves two rows of one visit.
        if (row.url, row.fetched_at) not in seen:
            seen.add((row.url, row.fetched_at))
            yield row
