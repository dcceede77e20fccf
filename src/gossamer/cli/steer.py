"""The commands that look at a job and steer it, wherever it runs: status, pause, resume, stop, add."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import click
import msgspec

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer.cli import fleet_status, listed
from gossamer.cli.completion import job_names
from gossamer.cli.contents import LINES
from gossamer.cli.exits import Exit
from gossamer.cli.figures import brief
from gossamer.cli.start import run
from gossamer.cli.terminal import plain
from gossamer.clock import SystemClock
from gossamer.engine import wire
from gossamer.engine.handle import Linker
from gossamer.engine.recent import Recent
from gossamer.engine.remote import Connection, connect
from gossamer.errors import JobMissing
from gossamer.fleet import results_folder
from gossamer.frontier.backends import is_fleet, open_fleet
from gossamer.frontier.base import Fleet
from gossamer.frontier.sqlite import open_sqlite
from gossamer.frontier.sqlite_survey import survey
from gossamer.inquiry import existing
from gossamer.masks import masked_address
from gossamer.sink.aside import REJECTED, count_rejected

Command = TypeVar("Command", bound=Callable[..., Any])
_SITES = 100
_STATES = {"pause": "paused", "resume": "running", "stop": "stopping"}


class Control(Protocol):
    """A job within reach."""

    async def status(self, *, check: bool) -> dict[str, Any]: ...

    async def steer(self, verb: str) -> None: ...

    async def add(self, urls: Sequence[str]) -> int: ...


class OwnerControl:
    """A crawl that another process of this machine runs."""

    def __init__(self, connection: Connection) -> None:
        self._call = connection.call

    async def status(self, *, check: bool) -> dict[str, Any]:
        counts = await self._call(wire.Ask("counts"))
        sites, workers = await self._call(wire.Ask("sites")), await self._call(wire.Ask("workers"))
        return {"state": counts["job"], "counts": counts, "sites": sites, "workers": workers}

    async def steer(self, verb: str) -> None:
        await self._call(wire.Ask(verb))

    async def add(self, urls: Sequence[str]) -> int:
        return int(await self._call(wire.AddUrls(list(urls))))


class FleetControl:
    """A job on a fleet's frontier."""

    def __init__(self, frontier: Fleet, job: str, url: str) -> None:
        self._frontier = frontier
        self._job = job
        self._url = url

    async def status(self, *, check: bool) -> dict[str, Any]:
        fleet = self._frontier
        found = await fleet_status.look(fleet)
        folder = results_folder(self._url, self._job, fleet.settings, jobs.folder_of(self._job, ()))
        results = await fleet_status.results(fleet, self._job, self._url, folder, check=check)
        if results is not None and results["warning"]:
            found["warnings"].append(results["warning"])
        cut = await asyncio.to_thread(fleet_status.cut_pages, folder, check=check)
        return {**found, "results": results, "cut": cut}

    async def steer(self, verb: str) -> None:
        await self._frontier.steer(_STATES[verb])  # type: ignore[arg-type]

    async def add(self, urls: Sequence[str]) -> int:
        linker = Linker(self._frontier.settings, self._frontier.secret, Recent())
        return await self._frontier.add([linker.seed(url) for url in urls])


@asynccontextmanager
async def reach(name: str, frontier: str) -> AsyncIterator[Control]:
    """The job of this name on a fleet's frontier, or the crawl that runs in its folder."""
    if is_fleet(frontier):
        fleet = await open_fleet(frontier, name)
        try:
            yield FleetControl(fleet, name, frontier)
        finally:
            await fleet.aclose()
        return
    try:
        connection, _ = await connect(jobs.folder_of(name, ()))
    except JobMissing:
        existing(name)
        raise
    try:
        yield OwnerControl(connection)
    finally:
        await connection.aclose()


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
    found = run(_status(name, frontier, check=check))
    if not is_fleet(frontier):
        folder = jobs.folder_of(name, ())
        found["rejected"] = count_rejected(folder)
        found["cut"] = fleet_status.cut_pages(folder, check=check)
    results = found.get("results") or {}
    code = Exit.ERROR if check and (results.get("missing") or results.get("recorded", 0) is None) else Exit.OK
    if as_json:
        click.echo(json.dumps(found))
        return code
    if "regions" in found:
        for line in fleet_status.lines(name, found):
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
    found = run(listed.look(frontier))
    if as_json:
        click.echo(json.dumps(found))
        return Exit.OK
    for line in listed.lines(found):
        click.echo(line)
    if not found:
        click.echo(f"no jobs in {masked_address(frontier) if is_fleet(frontier) else 'crawls/'}", err=True)
        if not is_fleet(frontier):
            click.echo("hint: those of a fleet are shown by gossamer status --frontier URL", err=True)
    return Exit.OK


async def _status(name: str, frontier: str, *, check: bool) -> dict[str, Any]:
    try:
        async with reach(name, frontier) as control:
            return await control.status(check=check)
    except JobMissing:
        if is_fleet(frontier):
            raise
    # Nobody runs it: its file can be opened.
    folder = existing(name)
    settings = configuration.build(jobs.stored_settings(folder))
    if not os.access(folder, os.W_OK):
        # An archived job, or somebody else's: it can be looked at, though not opened.
        look = survey(folder / jobs.FRONTIER)
        counts = msgspec.to_builtins(look.counts(settings))
        state = "finished" if counts["finished"] else "resting"
        return {"state": state, "counts": counts, "sites": look.sites(_SITES, settings), "workers": {}}
    resting = open_sqlite(folder / jobs.FRONTIER, settings, clock=SystemClock())
    try:
        counts = msgspec.to_builtins(await resting.counts())
        state = "finished" if counts["finished"] else "resting"
        return {"state": state, "counts": counts, "sites": await resting.sites(), "workers": {}}
    finally:
        await resting.aclose()


def _steering(verb: str) -> click.Command:
    @click.command(verb, help=LINES[verb])
    @on_a_job
    def command(name: str, frontier: str) -> int:
        run(_steer(name, frontier, verb))
        click.echo(f"{name}: {_STATES[verb]}", err=True)
        return Exit.OK

    return command


async def _steer(name: str, frontier: str, verb: str) -> None:
    async with reach(name, frontier) as control:
        await control.steer(verb)


pause, resume, stop = _steering("pause"), _steering("resume"), _steering("stop")


@click.command()
@on_a_job
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
def add(name: str, frontier: str, urls: tuple[str, ...]) -> int:
    """Add URLs to a running crawl."""
    seeds = jobs.read_seeds(urls)
    count = run(_add(name, frontier, seeds))
    click.echo(f"{name}: {count} added, {len(seeds) - count} known already", err=True)
    return Exit.OK


async def _add(name: str, frontier: str, seeds: Sequence[str]) -> int:
    async with reach(name, frontier) as control:
        return await control.add(seeds)
