"""The commands that look at a job and steer it, wherever it runs: status, pause, resume, stop, add."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from gossamer.cli import fleet_status, listed
from gossamer.cli.completion import job_names
from gossamer.cli.contents import LINES
from gossamer.cli.exits import Exit
from gossamer.cli.figures import brief
from gossamer.cli.start import run
from gossamer.frontier.backends import is_fleet
from gossamer.job_folder import read_seeds
from gossamer.jobs.find import list_jobs, open_job
from gossamer.jobs.job import JobStatus
from gossamer.logs import plain
from gossamer.model import JobState
from gossamer.redact import masked_address
from gossamer.storage.jsonl import REJECTED

Command = TypeVar("Command", bound=Callable[..., Any])
_STATES: dict[str, JobState] = {"pause": "paused", "resume": "running", "stop": "stopping"}


def on_a_job(command: Command, *, is_named: bool = True) -> Command:
    """Give a command the job's name and, for fleets, the address of its frontier."""
    option = click.option(
        "--frontier",
        default="",
        metavar="URL",
        envvar="GOSSAMER_FRONTIER",
        help="Where the job is, if not here.",
    )
    metavar = "JOB" if is_named else "[JOB]"
    return click.argument("name", metavar=metavar, required=is_named, shell_complete=job_names)(option(command))


@click.command()
@partial(on_a_job, is_named=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("--check", is_flag=True, help="Of a fleet's job: count its records, however many; exit 1 if some miss.")
def status(name: str | None, frontier: str, as_json: bool, check: bool) -> int:
    """Show how far a job is, running or not.

    Without a name it lists the jobs in this folder, or on the frontier.
    """
    if name is None:
        return _list(frontier, as_json=as_json)
    status = run(_status(name, frontier, check=check))
    found, results = fleet_status.status_json(status), status.results
    code = Exit.ERROR if check and results is not None and (results.missing or results.recorded is None) else Exit.OK
    if as_json:
        click.echo(json.dumps(found))
        return code
    if status.is_shared:
        for line in fleet_status.status_lines(name, found):
            click.echo(line)
        return code
    counts = found["counts"]
    click.echo(f"{name}: {found['state']}")
    for word in ("stored", "queued", "delayed", "leased", "done", "failed", "skipped", "parked", "known", "sites"):
        click.echo(f"  {word:10} {counts[word]:>12,}")
    if found.get("rejected"):
        click.echo(f"  {'rejected':10} {found['rejected']:>12,} items, in {REJECTED}")
    for line in fleet_status.cut_lines(found["cut"]):
        click.echo(line)
    if counts.get("freshness") is not None:
        click.echo(f"  {'fresh':10} {counts['freshness']:>12.1%}")
    for site in found["sites"][:10]:
        waiting = f", held for {site['hold']:.0f} s" if site["hold"] else ""
        closed = f", closed: {site['closed']}" if site["closed"] else ""
        browser = site.get("memo", {}).get("browser")
        choice = f", by {browser['use']}: {browser['why']}" if browser else ""
        line = (
            f"  {site['site']:40} {site['queued']:>8,} queued, delay {brief(site['delay'])} s{waiting}{closed}{choice}"
        )
        click.echo(plain(line))
    return Exit.OK


def _list(frontier: str, *, as_json: bool) -> int:
    found = run(list_jobs(frontier))
    if as_json:
        click.echo(json.dumps([listed.list_json(job) for job in found]))
        return Exit.OK
    for line in listed.list_lines(found):
        click.echo(line)
    if not found:
        click.echo(f"no jobs in {masked_address(frontier) if is_fleet(frontier) else 'crawls/'}", err=True)
        if not is_fleet(frontier):
            click.echo("hint: those of a fleet are shown by gossamer status --frontier URL", err=True)
    return Exit.OK


async def _status(name: str, frontier: str, *, check: bool) -> JobStatus:
    async with open_job(name, frontier) as job:
        return await job.status(check=check)


def _steering(verb: str) -> click.Command:
    @click.command(verb, help=LINES[verb])
    @on_a_job
    def command(name: str, frontier: str) -> int:
        run(_steer(name, frontier, verb))
        click.echo(f"{name}: {_STATES[verb]}", err=True)
        return Exit.OK

    return command


async def _steer(name: str, frontier: str, verb: str) -> None:
    async with open_job(name, frontier) as job:
        await job.set_state(_STATES[verb])


pause, resume, stop = _steering("pause"), _steering("resume"), _steering("stop")


@click.command()
@on_a_job
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
def add(name: str, frontier: str, urls: tuple[str, ...]) -> int:
    """Add URLs to a running crawl."""
    seeds = read_seeds(urls)
    count = run(_add(name, frontier, seeds))
    click.echo(f"{name}: {count} added, {len(seeds) - count} known already", err=True)
    return Exit.OK


async def _add(name: str, frontier: str, seeds: Sequence[str]) -> int:
    async with open_job(name, frontier) as job:
        return await job.add(seeds)
