"""The rows that a report is made of."""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.model import PageRow
from gossamer.storage.reader import StoredJob

REPORT = "report.html"
"""The name of the file, beside the others of a job."""


def stored_rows(job: StoredJob) -> Iterator[PageRow]:
    """The rows of a job: every visit that was stored, and of a fleet's job the last of every page, because its workers
    may have stored visits that did not count."""
    return (record.page for record in job.records(all_visits=not job.is_fleets))
