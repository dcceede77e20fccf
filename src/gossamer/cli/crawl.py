"""The commands `crawl` and `worker`."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from gossamer import job_folder, logs
from gossamer.cli.console import Exit, many, put, say
from gossamer.cli.options import (
    Sectioned,
    given,
    job_names,
    notice_options,
    own_results_option,
    region_option,
    settings_options,
    shards_option,
)
from gossamer.cli.runner import check_seeds, read_seeds, read_settings, refuse_windows, seed_hint
from gossamer.cli.runner import run as run_loop
from gossamer.clock import SystemClock
from gossamer.engine.supervision import FATAL, die_with
from gossamer.errors import ConfigError, GossamerError, JobMissing, OwnerGone, SchemaMismatch
from gossamer.extract import spider
from gossamer.frontier.backends import is_address, is_fleet
from gossamer.jobs.find import check_folder, was_begun
from gossamer.jobs.fleet_run import FleetRun
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.jobs.notifications import Judge, Notifier, watch
from gossamer.jobs.signals import leaving
from gossamer.jobs.worker import HealthFile, Standby, check_fetching, join, join_fleet
from gossamer.logs import plain
from gossamer.redact import masked_address


@click.command(cls=Sectioned)
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option(
    "--seeds",
    type=click.File("r", encoding="utf-8-sig"),
    help="File with one URL per line and # comments; - is standard input.",
)
@click.option(
    "--job",
    "name",
    default="",
    shell_complete=job_names,
    help="Name of the job, stored in crawls/NAME, or its folder.  [default: the first host]",
)
@click.option(
    "--frontier",
    default="",
    metavar="URL",
    envvar="GOSSAMER_FRONTIER",
    help="sqlite (in the job's folder), memory:, or for a fleet redis://, postgresql://, mysql://, or folder:/path.",
)
@click.option("--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@notice_options
@region_option
@shards_option("Number of shards N of a fleet's job, and those that these workers crawl, A to B.")
@own_results_option
@settings_options
def crawl(
    urls: tuple[str, ...],
    seeds: Any,
    name: str,
    frontier: str,
    quiet: bool,
    as_json: bool,
    region: str,
    shards: str,
    own_results: bool,
    notify: tuple[str, ...],
    stalled_after: float,
    errors_above: float,
    **options: Any,
) -> int:
    """Crawl from one or more URLs.

    Run the same command again to resume. New URLs are added to an existing job. A URL can be the path of a seeds file.

    \b
    gossamer crawl https://example.com --max-pages 100
    gossamer crawl https://example.com --extract title='h1::text'
    gossamer crawl --spider shop.py --job shop --sink parquet
    gossamer crawl --seeds urls.txt --scope any --max-depth 1
    gossamer crawl https://example.com --frontier redis://host:6379/0

    The crawl obeys robots.txt and waits one second between two requests to a site. Pages and items are written to
    crawls/JOB. Settings can also be set in gossamer.toml (max_pages = 100) and in the environment (GOSSAMER_MAX_PAGES).

    \b
    Exit codes: 0 finished, or stopped by a limit or SIGTERM; 1 error;
    2 wrong usage; 3 finished, but some pages failed; 130 interrupted.
    """
    logs.start(quiet=quiet)
    refuse_windows()
    on_fleet = is_fleet(frontier)
    first_urls = read_seeds(urls, seeds)
    folder = job_folder.folder_of(name, ()) if name else None
    settings = read_settings(folder, given(options))
    if not first_urls and settings.spider:
        first_urls = job_folder.read_seeds(spider.spider_seeds(settings))
    if folder is None:
        check_seeds(first_urls, settings.spider)
        folder = job_folder.folder_of("", first_urls)
        settings = read_settings(folder, given(options))
    run: LocalRun | FleetRun
    job = ""
    if on_fleet:
        job = name or folder.name
        run = FleetRun(
            frontier, job, folder, settings, first_urls, region=region, shards=shards, own_results=own_results
        )
    else:
        _refuse_fleet_options("region", "shards", "own_results")
        if not first_urls and not was_begun(folder, frontier):
            raise JobMissing(
                f"there is no job in {folder}", hint=seed_hint(settings.spider) or "give a URL to start one"
            )
        run = LocalRun(folder, settings, first_urls, frontier=frontier)
    notifier = Notifier(notify)
    # Settings that fail here must not be stored: the next run would read them again.
    asyncio.run(check_fetching(settings))
    job_folder.save_settings(folder, settings)
    judge = Judge(stalled_after=stalled_after, errors_above=errors_above)
    summary = run_loop(_notified(run, quiet, notifier, judge, job or folder.name))
    if run.folder is not None:
        # Imported here: workers write no report and no summary.
        from gossamer.cli.results import leave_report

        leave_report(run.folder)
    if as_json:
        put(f"{json.dumps(_as_json(summary, run.folder))}\n".encode())
    if not quiet:
        if run.known_before and run.added:
            say(f"added {many(run.added, 'new URL')} to the existing job")
        from gossamer.cli.summary import summary_lines

        again = f"{shlex.quote(job)} --frontier {shlex.quote(masked_address(frontier))}" if job else ""
        for line in summary_lines(summary, run.folder, settings, job=again):
            say(line)
    return _exit_code(summary)


def _refuse_fleet_options(*names: str) -> None:
    """Reject options for fleets on the command line; their environment variables are ignored without a fleet."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ConfigError(
                f"--{name.replace('_', '-')} is only for fleets",
                hint="name the frontier: --frontier redis://host:6379/0",
            )


async def _notified(run: LocalRun | FleetRun, quiet: bool, notifier: Notifier, judge: Judge, job: str) -> RunSummary:
    """Run the crawl and send notifications about stalls, errors, and its end."""
    watching = asyncio.create_task(watch(run, notifier, judge, job=job, clock=SystemClock()))
    try:
        summary = await _crawl(run, quiet)
    except Exception as error:
        await notifier.send("failed", plain(str(error)), job=job)
        raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    pages, failures = run.figures
    event = "finished" if summary.counts.finished else "stopped"
    await notifier.send(event, f"{pages:,} pages, {failures:,} failed", job=job, pages=pages, failures=failures)
    return summary


async def _crawl(run: LocalRun | FleetRun, quiet: bool) -> RunSummary:
    def stop(number: int) -> None:
        run.stop(signal.Signals(number).name)
        if not quiet:
            say("stopping: finishing current fetches (press Ctrl-C again to exit immediately)")

    watching: asyncio.Task[None] | None = None
    if not quiet:
        # Imported here: quiet crawls do not need it.
        from gossamer.cli.live_view import follow

        watching = asyncio.create_task(follow(run))
    # A second signal loses only current fetches: the state on disk is consistent at any moment.
    settings = run.settings if isinstance(run, LocalRun) and run.settings.workers == 1 else None
    try:
        async with leaving(stop, interrupt=run.interrupt, settings=settings):
            return await run.run()
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def _exit_code(summary: RunSummary) -> int:
    if summary.stopped_by == "SIGINT":
        return Exit.INTERRUPTED
    if summary.counts.finished and summary.counts.failed + summary.counts.parked:
        return Exit.SOME_FAILED
    return Exit.OK


def _as_json(summary: RunSummary, folder: Path | None) -> dict[str, Any]:
    stats = summary.stats
    return {
        "job": str(folder) if folder else None,
        "state": summary.state,
        "counts": msgspec.to_builtins(summary.counts),
        "pages": stats.pages,
        "items": stats.items,
        "items_rejected": stats.rejected.total(),
        "copies": stats.copies,
        "cut": stats.cut.plain(),
        "links_refused": dict(summary.refused),
        "items_dropped": stats.dropped,
        "bytes": stats.bytes,
        "seconds": round(stats.seconds, 3),
        "codes": {str(code): count for code, count in sorted(stats.codes.items())},
        "reasons": dict(stats.reasons),
    }


@click.command()
@click.argument("place", metavar="DIR|FRONTIER", default="", shell_complete=job_names, envvar="GOSSAMER_FRONTIER")
@click.option("--job", "name", default="", shell_complete=job_names, help="Name of the job if FRONTIER is an address.")
@click.option("--frontier", default="", metavar="URL", help="Address of the frontier; DIR is then the job's name.")
@click.option("--name", "worker_name", default="", help="Name of this worker.  [default: host name and process id]")
@click.option("--out", default="", help="Results folder of a fleet's worker.  [default: crawls/JOB]")
@region_option
@shards_option("Shards that this worker crawls: A to B of N.  [default: all]")
@own_results_option
@click.option("--wait", is_flag=True, help="Wait for the fleet's job and for its next runs; exit only on a signal.")
@click.option("--health-file", type=click.Path(path_type=Path, dir_okay=False),
              help="With --wait: file for health probes; contains the state and is touched every 2 s.")  # fmt: skip
@click.option("--supervised", "supervision", type=(int, int), default=(0, 0), hidden=True)
def worker(
    place: str,
    name: str,
    frontier: str,
    worker_name: str,
    out: str,
    region: str,
    shards: str,
    own_results: bool,
    wait: bool,
    health_file: Path | None,
    supervision: tuple[int, int],
) -> int:
    """Join a running crawl as one more worker.

    DIR is the folder or name of a job on this machine, FRONTIER the address of a fleet's frontier. The worker exits
    when the job is finished.

    \b
    gossamer worker example.com                             a job on this machine
    gossamer worker redis://host:6379/0 --job shop          a job of a fleet
    gossamer worker redis://host:6379/0 --job shop --wait   all runs of that job

    On SIGTERM the worker finishes its current fetches and returns its leases.
    """
    logs.start()
    refuse_windows()
    if health_file is not None and not wait:
        raise ConfigError("--health-file needs --wait", hint="add --wait")
    supervised, supervisor = supervision
    if supervised:
        die_with(supervisor)
    own_name = worker_name or f"{os.uname().nodename}-{os.getpid()}"
    if is_fleet(frontier):
        # The form of all other commands: gossamer worker JOB --frontier URL.
        name, place = name or (place if not is_address(place) else ""), frontier
    if is_address(place) and is_fleet(place):
        if not name:
            raise ConfigError("no job given", hint="name it: gossamer worker FRONTIER --job NAME")
        folder = Path(out) if out else job_folder.folder_of(name, ())
        if wait:
            standby = Standby(
                place, name, folder, name=own_name, region=region, shards=shards, own_results=own_results,
                health=HealthFile(health_file),
            )  # fmt: skip
            run_loop(standby.run())
            return Exit.OK
        try:
            run_loop(
                join_fleet(
                    place, name, folder, name=own_name, region=region, shards=shards, supervised=supervised,
                    own_results=own_results,
                )
            )  # fmt: skip
        except (JobMissing, SchemaMismatch, ConfigError) as error:
            return _fatal(error, supervised)
        return Exit.OK
    if not place:
        raise ConfigError("no job given", hint="gossamer worker DIR, or gossamer worker FRONTIER --job NAME")
    _refuse_fleet_options("region", "shards", "own_results", "wait")
    try:
        run_loop(join(job_folder.folder_of(place, ()), name=own_name, supervised=supervised))
    except ConfigError as error:
        return _fatal(error, supervised)
    except JobMissing:
        check_folder(job_folder.folder_of(place, ()), place)
        raise
    except OwnerGone as gone:
        if supervised:
            return Exit.ERROR
        say(str(gone))
    return Exit.OK


def _fatal(error: GossamerError, supervised: int) -> int:
    """Print the error and return the exit code with which a supervisor does not restart the worker."""
    if not supervised:
        raise error
    say(f"error: {error}")
    if error.hint:
        say(f"hint: {error.hint}")
    return FATAL
