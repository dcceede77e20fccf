"""The command `export`: what a job has stored, in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.figures import many
from gossamer.cli.start import check_out, run
from gossamer.cli.terminal import say
from gossamer.errors import FrontierError, JobMissing, SinkError
from gossamer.frontier.backends import is_fleet
from gossamer.jobs.find import find_job, find_stored
from gossamer.jobs.results_folder import MARKER, compare, is_results, read_marker, repair_command
from gossamer.results.export import FORMATS, Export, write
from gossamer.storage.query import Where
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import wants_segments
from gossamer.storage.segments import has_segments


@click.command()
@click.argument("name", metavar="JOB|DIR", shell_complete=job_names)
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(FORMATS)),
    default="jsonl",
    show_default=True,
    help="; ".join(f"{name}: {one.meaning}" for name, one in FORMATS.items()) + ".",
)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Only pages that meet it: status=200, site=example.com, 'depth<=2 and fetched_at>=2026-01-31', title~word.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE|DIR", help="Write there.  [default: standard output]"
)
@click.option(
    "--chunks",
    type=click.IntRange(min=10),
    metavar="WORDS",
    help="With markdown: also split pages at their headings into parts of at most so many words, in chunks.jsonl.",
)
@click.option("--all-visits", is_flag=True, help="Every visit of a page, not only the last.")
@click.option("--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER", help="The fleet that the job is of.")
@click.option("--incomplete", is_flag=True, help="Export what is there although records of stored pages are missing.")
def export(
    name: str,
    kind: str,
    conditions: tuple[str, ...],
    out: Path | None,
    all_visits: bool,
    frontier: str,
    incomplete: bool,
    **options: Any,
) -> int:
    """Write what a job has stored, one record per page, in another form.

    With --frontier it fails (exit code 1) if pages that the frontier counts as stored have no record.

    \b
    gossamer export shop --format items --out items.jsonl
    gossamer export shop --format csv --where status=200 --out pages.csv
    gossamer export shop --format markdown --out pages/
    """
    where = Where(conditions)
    if out is not None and not FORMATS[kind].is_folder:
        check_out(out)
    place = run(find_stored(name, frontier))
    if is_fleet(frontier):
        run(_compare(name, frontier, place, incomplete=incomplete))
    wanted = Export(folder=place.folder, place=place, where=where, out=out, all_visits=all_visits, options=options)
    count = write(kind, wanted)
    if out is not None:
        say(f"{out}: {many(count, 'item' if kind in ('items', 'rejected') else 'page')}")
    return Exit.OK


async def _compare(name: str, frontier: str, place: StoredJob, *, incomplete: bool) -> None:
    """Refuse to export a part of a job as if it were all of it."""
    home = place.folder
    marker = read_marker(home)
    if "/" in name and marker is None:
        return
    name = marker.job if marker is not None and "/" in name else name
    try:
        job = await find_job(name, frontier)
    except JobMissing:
        # Otherwise the address is that of other jobs.
        if marker is not None:
            say(f"warning: not compared with the frontier: job {name!r} is not there (any more)")
        return
    except FrontierError as error:
        say(f"warning: not compared with the frontier: {error}")
        return
    try:
        if not has_segments(home) and not (job.settings.results_id and wants_segments(job.settings.sink)):
            return
        if not is_results(home, job.settings):
            what = f"{home} is not the results folder of job {name!r}: {MARKER} is missing, or of another job"
            hint = "is the folder mounted on this machine?"
        else:
            found = await compare(job, home)
            if not found.missing:
                return
            what = f"{found.missing:,} of {found.stored:,} stored pages of job {name!r} have no record in {home}"
            if found.is_live:
                say(f"warning: {what} yet: workers are at work")
                return
            hint = f"{repair_command(name, frontier)} queues them again"
    except FrontierError as error:
        say(f"warning: not compared with the frontier: {error}")
        return
    finally:
        await job.aclose()
    if not incomplete:
        raise SinkError(what, hint=f"{hint}; --incomplete exports what is there")
    say(f"warning: {what}")
