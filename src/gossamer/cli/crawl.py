"""The commands that run and steer a crawl."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import click
import msgspec

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer.cli.exits import Exit
from gossamer.cli.options import given, settings_options
from gossamer.cli.start import read_lines, read_settings
from gossamer.cli.start import run as run_loop
from gossamer.cli.summary import summary_lines
from gossamer.cli.terminal import log_to_stderr, put, say
from gossamer.engine import wire
from gossamer.engine.remote import connect
from gossamer.errors import ConfigError, JobMissing, OwnerGone
from gossamer.fleet import SCHEMES, FleetCrawl, join_fleet
from gossamer.job import Crawl, Summary
from gossamer.member import die_with_parent, join


@click.command()
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option("--seeds", type=click.File("r", encoding="utf-8"), help="File with one URL a line; - is standard input.")
@click.option(
    "--job", "name", default="", help="Name (kept in crawls/NAME) or folder of the job.  [default: the first host]"
)
@click.option(
    "--frontier",
    default="",
    metavar="URL",
    envvar="GOSSAMER_FRONTIER",
    help="sqlite (in the job's folder), memory:, or redis://host:port/db for a fleet.",
)
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@settings_options
def crawl(
    urls: tuple[str, ...], seeds: Any, name: str, frontier: str, quiet: bool, as_json: bool, **options: Any
) -> int:
    """Crawl from one or more URLs. The same command again resumes; other URLs on an existing job are added."""
    log_to_stderr(quiet)
    if frontier not in ("", "sqlite", "memory:") and not frontier.startswith(SCHEMES):
        raise ConfigError(
            f"--frontier {frontier.rsplit('@', maxsplit=1)[-1]}: no such frontier in this version",
            hint="use sqlite (the default), memory: or redis://host:port/db",
        )
    first_urls = jobs.read_seeds([*urls, *(read_lines(seeds) if seeds else ())])
    folder = jobs.folder_of(name, ()) if name else None
    settings = read_settings(folder, given(options))
    if not first_urls and settings.spider:
        first_urls = jobs.read_seeds(jobs.spider_seeds(settings))
    if folder is None:
        folder = jobs.folder_of("", first_urls)
        settings = read_settings(folder, given(options))
    run: Crawl | FleetCrawl
    if frontier.startswith(SCHEMES):
        run = FleetCrawl(frontier, name or folder.name, folder, settings, first_urls)
    else:
        if not first_urls and not (folder / jobs.FRONTIER).exists():
            raise JobMissing(f"there is no job in {folder}", hint="give a URL to start one")
        run = Crawl(folder, settings, first_urls, in_memory=frontier == "memory:")
    jobs.save_settings(folder, settings)
    summary = run_loop(_crawl(run, quiet))
    if as_json:
        put(f"{json.dumps(_as_json(summary, folder))}\n".encode())
    if not quiet:
        if run.known_before and run.added:
            say(f"added {run.added} new URLs to the job that was there")
        for line in summary_lines(summary, folder, settings):
            say(line)
    return _exit_code(summary)


async def _crawl(run: Crawl | FleetCrawl, quiet: bool) -> Summary:
    # Workers, which show nothing, need not load what draws.
    from gossamer.cli.view import follow

    loop = asyncio.get_running_loop()
    pressed: list[int] = []

    def leave(number: int) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            # The state on disk is good at every moment: leaving at once costs only the fetches under way.
            os._exit(Exit.INTERRUPTED)
        run.stop(signal.Signals(number).name)
        if not quiet:
            say("stopping: finishing the fetches under way (once more to leave at once)")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave, number)
    watching = asyncio.create_task(follow(run)) if not quiet else None
    try:
        return await run.run()
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def _exit_code(summary: Summary) -> int:
    if summary.stopped_by == "SIGINT":
        return Exit.INTERRUPTED
    if summary.counts.finished and summary.counts.failed + summary.counts.parked:
        return Exit.SOME_FAILED
    return Exit.OK


def _as_json(summary: Summary, folder: Path | None) -> dict[str, Any]:
    stats = summary.stats
    return {
        "job": str(folder) if folder else None,
        "state": summary.state,
        "counts": msgspec.to_builtins(summary.counts),
        "pages": stats.pages,
        "items": stats.items,
        "bytes": stats.bytes,
        "seconds": round(stats.seconds, 3),
        "codes": {str(code): count for code, count in sorted(stats.codes.items())},
        "reasons": dict(stats.reasons),
    }


@click.command()
@click.argument("place", metavar="DIR|FRONTIER", default="", envvar="GOSSAMER_FRONTIER")
@click.option("--job", "name", default="", help="Name of the job, where FRONTIER is a server.")
@click.option("--name", "worker_name", default="", help="Name of this worker.  [default: machine and process number]")
@click.option("--out", default="", help="Folder for what a worker of a fleet stores.  [default: crawls/JOB]")
@click.option("--supervised", is_flag=True, hidden=True)
def worker(place: str, name: str, worker_name: str, out: str, supervised: bool) -> int:
    """Join a running crawl: DIR is its folder or name, FRONTIER the address of a fleet's. Leaves when it is over."""
    log_to_stderr(False)
    if supervised:
        die_with_parent()
    own_name = worker_name or f"{os.uname().nodename}-{os.getpid()}"
    if place.startswith(SCHEMES):
        if not name:
            raise ConfigError("which job?", hint="name it: gossamer worker FRONTIER --job NAME")
        folder = Path(out) if out else jobs.folder_of(name, ())
        run_loop(join_fleet(place, name, folder, name=own_name, supervised=supervised))
        return Exit.OK
    if not place:
        raise ConfigError("which crawl?", hint="gossamer worker DIR, or gossamer worker FRONTIER --job NAME")
    try:
        run_loop(join(jobs.folder_of(place, ()), name=own_name, supervised=supervised))
    except OwnerGone as gone:
        if supervised:
            return Exit.ERROR
        say(str(gone))
    return Exit.OK


@click.command()
@click.argument("name", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def status(name: str, as_json: bool) -> int:
    """Show how far a job is, running or not."""
    folder = _existing(name)
    found = run_loop(_status(folder))
    if as_json:
        click.echo(json.dumps(found))
        return Exit.OK
    counts = found["counts"]
    click.echo(f"{folder}: {found['state']}")
    for word in ("stored", "queued", "delayed", "leased", "done", "failed", "skipped", "parked", "known", "sites"):
        click.echo(f"  {word:10} {counts[word]:>12,}")
    for site in found["sites"][:10]:
        waiting = f", held for {site['hold']:.0f} s" if site["hold"] else ""
        closed = f", closed: {site['closed']}" if site["closed"] else ""
        click.echo(f"  {site['site']:40} {site['queued']:>8,} queued, delay {site['delay']:g} s{waiting}{closed}")
    return Exit.OK


async def _status(folder: Path) -> dict[str, Any]:
    """Ask the owner of a running job; open the file of one that rests."""
    try:
        connection, _ = await connect(folder)
    except JobMissing:
        from gossamer.clock import SystemClock
        from gossamer.frontier.sqlite import open_sqlite

        settings = configuration.build(jobs.stored_settings(folder))
        frontier = open_sqlite(folder / jobs.FRONTIER, settings, clock=SystemClock())
        try:
            counts = msgspec.to_builtins(await frontier.counts())
            state = "finished" if counts["finished"] else "not running"
            return {"state": state, "counts": counts, "sites": await frontier.sites(), "workers": {}}
        finally:
            await frontier.aclose()
    try:
        counts = await connection.call(wire.Ask("counts"))
        sites = await connection.call(wire.Ask("sites"))
        return {
            "state": counts["job"],
            "counts": counts,
            "sites": sites,
            "workers": await connection.call(wire.Ask("workers")),
        }
    finally:
        await connection.aclose()


def _steering(verb: str, done: str) -> click.Command:
    @click.command(verb, help=f"{verb.capitalize()} a running crawl.")
    @click.argument("name", metavar="JOB")
    def command(name: str) -> int:
        folder = _existing(name)
        run_loop(_ask(folder, wire.Ask(verb)))
        click.echo(f"{folder}: {done}", err=True)
        return Exit.OK

    return command


pause, resume, stop = _steering("pause", "paused"), _steering("resume", "running"), _steering("stop", "stopping")


@click.command()
@click.argument("name", metavar="JOB")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
def add(name: str, urls: tuple[str, ...]) -> int:
    """Add URLs to a running crawl."""
    folder = _existing(name)
    seeds = jobs.read_seeds(urls)
    count = run_loop(_ask(folder, wire.AddUrls(seeds)))
    click.echo(f"{folder}: {count} added, {len(seeds) - count} known already", err=True)
    return Exit.OK


async def _ask(folder: Path, call: wire.Call) -> Any:
    connection, _ = await connect(folder)
    try:
        return await connection.call(call)
    finally:
        await connection.aclose()


def _existing(name: str) -> Path:
    folder = jobs.folder_of(name, ())
    if not (folder / jobs.FRONTIER).exists():
        raise ConfigError(
            f"there is no job {name!r} ({folder / jobs.FRONTIER} does not exist)", hint="see crawls/ for names"
        )
    return folder
