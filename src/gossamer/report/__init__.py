"""The report of a job: what its stored rows say, counted in bounded memory, as one page of HTML with pictures."""

from __future__ import annotations

from gossamer.report.page import render
from gossamer.report.rows import stored_rows
from gossamer.report.tally import ReportCounts

__all__ = ["Tally", "render", "stored_rows"]
