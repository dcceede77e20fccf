"""The jobs that there are, a line each: what `status` prints where no job is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gossamer.cli.fleet_status import table
from gossamer.jobs.job import JobSummary
from gossamer.logs import plain

_FIGURES = ("stored", "queued", "delayed", "failed", "known", "sites")


def list_json(job: JobSummary) -> dict[str, Any]:
    """A job as `status --json` lists it."""
    if job.counts is None:
        return {"job": job.name, "state": job.problem}
    return {"job": job.name, "state": job.state, **{word: getattr(job.counts, word) for word in _FIGURES}}


def list_lines(found: Sequence[JobSummary]) -> list[str]:
    """Jobs as a terminal shows them."""
    rows = [
        (plain(job.name), plain(job.state or job.problem), *(_figure(job, word) for word in _FIGURES)) for job in found
    ]
    return table("JOB", ("state", *_FIGURES), rows, len(rows))[1:]


def _figure(job: JobSummary, word: str) -> str:
    return "-" if job.counts is None else f"{getattr(job.counts, word):,}"
