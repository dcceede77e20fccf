"""The command that writes a report of a job, and the one that a crawl leaves at its end."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import click

from gossamer import job_folder
from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.start import check_out, run
from gossamer.cli.terminal import put, say
from gossamer.clock import SystemClock
from gossamer.errors import GossamerError
from gossamer.jobs.find import find_stored
from gossamer.results.report import REPORT, ReportCounts, render, stored_rows
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import is_shared

log = logging.getLogger("gossamer.report")


@click.command()
@click.argument("name", metavar="JOB|DIR", shell_complete=job_names)
@click.option("--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER", help="The fleet's, if it is one's.")
@click.option("--out", default="", metavar="FILE|-", help="Where to write it.  [default: report.html of the job]")
def report(name: str, frontier: str, out: str) -> int:
    """Write a report of a job with pictures: one HTML file that needs nothing else.

    It tells progress, answers, depth, sizes, times, links between sites, the busiest sites, and failures with examples.
    """
    job = run(find_stored(name, frontier))
    page = _page(job, job_folder.folder_of(name, ()).name).encode()
    if out == "-":
        put(page)
        return Exit.OK
    path = Path(out) if out else job.folder / REPORT
    check_out(path)
    _write(path, page)
    say(f"report    {path}")
    return Exit.OK


def leave_report(folder: Path) -> Path | None:
    """The report that a crawl leaves beside its files; that it cannot be written is no reason to fail.

    What is on a server is read when somebody asks: at its end a crawl does not have all of it sent back."""
    found = StoredJob.of(folder)
    job = replace(found, sinks=[name for name in found.sinks if not is_shared((name,))])
    if job.first("rows") is None:
        return None
    path = folder / REPORT
    try:
        _write(path, _page(job, folder.name).encode())
    except (GossamerError, OSError) as error:
        log.warning("no report was written: %s", error)
        return None
    return path


def _page(stored: StoredJob, job: str) -> str:
    tally = ReportCounts()
    for row in stored_rows(stored):
        tally.add(row)
    return render(tally, job=job, facts={}, made_at=SystemClock().epoch())


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing: who has the old report open keeps it. A pipe or a device is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
