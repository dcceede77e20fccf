"""The command that queues pages again whose records are lost."""

from __future__ import annotations

import json
from shlex import quote
from typing import Any

import click

from gossamer import job_folder
from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.figures import many
from gossamer.cli.start import read_lines, run
from gossamer.cli.terminal import put, say
from gossamer.errors import ConfigError
from gossamer.frontier.backends import is_fleet
from gossamer.jobs.repair import Repaired
from gossamer.jobs.repair import repair as repaired
from gossamer.logs import plain
from gossamer.redact import masked_address


@click.command()
@click.argument("name", metavar="JOB", shell_complete=job_names)
@click.option("--frontier", required=True, metavar="URL", envvar="GOSSAMER_FRONTIER", help="Where the job is.")
@click.option(
    "--adopt-folder", is_flag=True, help="Take the results folder as it is, though its results.id is missing."
)
@click.option("--walk", is_flag=True, help="On Redis: fetch all recorded pages once more to find links to lost ones.")
@click.option(
    "--seeds",
    type=click.File("r", encoding="utf-8-sig"),
    help="On Redis: a file with URLs that the job had, one a line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def repair(name: str, frontier: str, adopt_folder: bool, walk: bool, seeds: Any, as_json: bool) -> int:
    """Queue stored pages again that have no record in the job's results folder.

    \b
    gossamer status shop --check    how many records are missing
    gossamer repair shop            queue those pages again
    gossamer worker --job shop      fetch them

    Records are lost with a disk, with a folder that was not shared, or with a deleted segment. Stop the job's workers
    first. Frontiers in SQL and folders know every lost page; Redis knows no URLs of finished pages, and finds them in
    what the results folder still has, or with --walk. Exit code 1: some lost pages were not found.
    """
    if not is_fleet(frontier):
        raise ConfigError(
            "only jobs of a fleet keep results in segments", hint="name the frontier: --frontier redis://host:6379/0"
        )
    urls = job_folder.read_seeds(read_lines(seeds)) if seeds else []
    found = run(repaired(frontier, name, job_folder.folder_of(name, ()), seeds=urls, adopt=adopt_folder, walk=walk))
    if as_json:
        put(f"{json.dumps(_as_json(found))}\n".encode())
    _tell(plain(name), frontier, found)
    return Exit.ERROR if found.lost else Exit.OK


def _as_json(found: Repaired) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "stored": found.before.stored,
        "recorded": found.before.recorded,
        "missing": found.before.missing,
        "queued": found.requeued.queued,
        "closed": found.requeued.closed,
        "unnamed": found.requeued.unnamed,
        "walked": found.walked,
        "lost": found.lost,
        "written_off": found.written_off,
    }


def _tell(name: str, frontier: str, found: Repaired) -> None:
    before = found.before
    say(f"{name}: {before.missing:,} of {before.stored:,} stored pages had no record in {found.folder}")
    say(f"{name}: {many(found.requeued.queued, 'page')} queued again")
    if found.requeued.closed:
        say(f"{name}: {many(found.requeued.closed, 'page')} of closed sites stay as they are, without a record")
    if found.walked:
        say(f"{name}: {many(found.walked, 'recorded page')} queued once more, for links to lost pages")
    if found.written_off:
        what = "count as stored no longer, until they are found again" if found.walked else "cannot be fetched again"
        say(f"{name}: {many(found.written_off, 'page')} {what}")
    if found.lost:
        say(f"{name}: the URLs of {many(found.lost, 'lost page')} are not known")
        say("hint: --seeds FILE names URLs; --walk fetches the recorded pages once more, and follows their links")
    if found.requeued.queued or found.walked:
        say(f"next, on any machine: gossamer worker {quote(masked_address(frontier))} --job {quote(name)}")
