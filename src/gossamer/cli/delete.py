"""The command that deletes a job."""

from __future__ import annotations

import json
import sys

import click

from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.cli.steer import on_a_job
from gossamer.cli.terminal import put, say
from gossamer.errors import ConfigError
from gossamer.jobs.find import open_job
from gossamer.jobs.removal import Removed, check_rest, delete_job
from gossamer.logs import plain
from gossamer.redact import masked_address


@click.command()
@on_a_job
@click.option("--results", is_flag=True, help="Delete what the job has stored in its folder, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def delete(name: str, frontier: str, results: bool, yes: bool, as_json: bool) -> int:
    """Delete a job: its queue, and its memory of the URLs that it has fetched.

    \b
    gossamer delete shop             keeps crawls/shop/pages.jsonl
    gossamer delete shop --results   deletes that, too
    gossamer delete shop --yes       asks nothing

    A running job is refused: stop it first. Results stay unless --results is given; what a job has stored on servers,
    in buckets, or under another path is never deleted.
    """
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(f"nobody is here to confirm that job {name!r} is deleted", hint="add --yes")
        if not click.confirm(f"{run(_question(name, frontier, results))} Delete it?", err=True):
            say("nothing was deleted")
            return Exit.ERROR
    removed = run(_delete(name, frontier, results))
    kept = str(removed.results) if removed.results is not None else None
    if as_json:
        put(f"{json.dumps({'job': name, 'results': kept, 'elsewhere': removed.elsewhere})}\n".encode())
    say(f"{plain(name)}: deleted")
    if kept:
        say(f"{plain(name)}: its results are still in {plain(kept)}")
    if removed.elsewhere:
        say(f"{plain(name)}: what it stored in {plain(', '.join(removed.elsewhere))} was not touched")
    return Exit.OK


async def _question(name: str, frontier: str, results: bool) -> str:
    async with open_job(name, frontier) as job:
        await check_rest(job)
        counts = await job.counts()
        where = masked_address(frontier) if job.frontier else str(job.folder)
        left = f"and the results in {job.folder}" if results else f"but not the results in {job.folder}"
        return f"Job {plain(name)} in {plain(where)}: {counts.known:,} known URLs, {counts.queued:,} queued, {left}."


async def _delete(name: str, frontier: str, results: bool) -> Removed:
    async with open_job(name, frontier) as job:
        return await delete_job(job, results=results)
