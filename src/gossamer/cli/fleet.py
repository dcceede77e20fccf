"""Commands for fleets: submit, scale, spread, compact, repair."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from shlex import quote
from typing import Any

import click
import msgspec

from gossamer import job_folder
from gossamer.cli.console import Exit, many, put, say
from gossamer.cli.jobs import on_a_job
from gossamer.cli.options import Sectioned, given, job_names, settings_options, shards_option
from gossamer.cli.runner import check_seeds, read_seeds, read_settings, run
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.extract import spider
from gossamer.frontier.backends import ability, backend_of, check, is_fleet
from gossamer.frontier.base import Compacts, MovesShards
from gossamer.frontier.placement import parse_part
from gossamer.jobs.find import open_job
from gossamer.jobs.fleet import submit_job
from gossamer.jobs.repair import Repaired
from gossamer.jobs.repair import repair as repaired
from gossamer.jobs.results_folder import MARKER, claim_results, is_results, repair_command, results_folder
from gossamer.jobs.scaling import Advice
from gossamer.logs import plain
from gossamer.model import Finding
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.storage.registry import is_shared, shared_folder, wants_segments


@click.command(cls=Sectioned)
@click.argument("urls", nargs=-1, metavar="[SPIDER.py] URL...")
@click.option(
    "--seeds",
    type=click.File("r", encoding="utf-8-sig"),
    help="File with one URL per line and # comments; - is standard input.",
)
@click.option("--job", "name", default="", shell_complete=job_names, help="Name of the job.  [default: the first host]")
@click.option(
    "--frontier",
    required=True,
    metavar="URL",
    envvar="GOSSAMER_FRONTIER",
    help="Frontier, such as redis://host:port/db.",
)
@shards_option("Number of shards, such as 256 or 0-255/256.  [default: one per server]")
@settings_options
def submit(urls: tuple[str, ...], seeds: Any, name: str, frontier: str, shards: str, **options: Any) -> int:
    """Create a job on a fleet's frontier.

    Workers that join the job by its name crawl it.

    \b
    export GOSSAMER_FRONTIER=redis://host:6379/0
    gossamer submit https://example.com --job shop --sink s3://bucket/shop
    gossamer worker --job shop          on any number of machines
    gossamer status shop
    """
    if not is_fleet(frontier):
        raise ConfigError(
            f"--frontier {masked_address(frontier)} is not the address of a fleet's frontier",
            hint="for example: --frontier redis://host:6379/0",
        )
    values = given(options)
    if urls and urls[0].endswith(".py"):
        values["spider"], urls = urls[0], urls[1:]
    settings = read_settings(None, values)
    first_urls = read_seeds(urls, seeds)
    if not first_urls and settings.spider:
        first_urls = job_folder.read_seeds(spider.spider_seeds(settings))
    if not name:
        check_seeds(first_urls, settings.spider)
    job = name or job_folder.folder_of("", first_urls).name
    has_folder = backend_of(frontier).results_folder(frontier, job) is not None
    if not has_folder and shared_folder(settings.sink) is None and not is_shared(settings.sink):
        raise ConfigError(
            "workers on several machines need a shared place for their results",
            hint="use a shared folder (--sink jsonl:/mnt/shared/crawl) or a server (--sink mysql://...)",
        )
    count = run(_submit(frontier, job, settings, first_urls, shards=str(parse_part(shards).of) if shards else ""))
    say(f"{plain(job)}: {many(count, 'URL')} added, {len(first_urls) - count:,} already known")
    for weakness in run(_weaknesses(frontier, settings)):
        say(f"warning: {plain(weakness.says)}")
        say(f"hint: {plain(weakness.mend)}")
    say(f"next, on any machine: gossamer worker {quote(masked_address(frontier))} --job {quote(plain(job))}")
    return Exit.OK


async def _weaknesses(frontier: str, settings: Settings) -> list[Finding]:
    """Findings about the durability of the frontier's servers; checks that fail are left out."""
    found = check(frontier, clock=SystemClock(), forget_seconds=settings.forget_seconds)
    return [one async for one in found if one.subject in ("durability", "standbys") and one.state != "good"]


async def _submit(frontier: str, job: str, settings: Settings, seeds: Sequence[str], *, shards: str) -> int:
    folder = results_folder(frontier, job, settings, job_folder.folder_of(job, ()))
    # A shared folder whose parent does not exist is not mounted here: creating it would make a different folder.
    has_folder = backend_of(frontier).results_folder(frontier, job) is not None
    settings = await claim_results(frontier, job, settings, folder, parents=has_folder)
    if wants_segments(settings.sink) and not is_results(folder, settings):
        say(f"warning: {folder} on this machine has no {MARKER} of this job; workers refuse to start without it")
        say(f"hint: run this on a machine that has the folder: {repair_command(job, frontier)} --adopt-folder")
    return await submit_job(frontier, job, settings, seeds, shards=shards)


@click.command()
@on_a_job
@click.option("--min", "least", type=click.IntRange(min=0), default=0, help="Min workers to print.  [default: 0]")
@click.option("--max", "most", type=click.IntRange(min=0), default=None, help="Max workers to print.")
@click.option("--quiet", is_flag=True, help="Print only the number.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON, with the figures behind the number.")
def scale(name: str, frontier: str, least: int, most: int | None, quiet: bool, as_json: bool) -> int:
    """Print how many workers a fleet's job can use.

    The number depends on the sites that can be fetched, not on the length of the queue. It is 0 if nothing can be
    fetched for a minute. The number is printed to stdout, the reason to stderr.
    """
    if not is_fleet(frontier):
        raise ConfigError(
            "scale needs a job on a fleet's frontier",
            hint="add --frontier redis://host:6379/0; for a crawl on one machine use --workers",
        )
    if most is not None and most < least:
        raise ConfigError(f"--max {most} is less than --min {least}")
    found = run(_advice(frontier, name, least, most))
    if as_json:
        put(msgspec.json.encode({"job": name, **msgspec.to_builtins(found)}) + b"\n")
        return Exit.OK
    put(f"{found.workers}\n".encode())
    if not quiet:
        say(found.why)
        for region, need in found.regions.items():
            if region:
                say(f"  region {region}: {need.workers:,} ({need.live:,} running)")
    return Exit.OK


async def _advice(frontier: str, job: str, least: int, most: int | None) -> Advice:
    async with open_job(job, frontier) as found:
        return await found.advice(least, most)


@click.command()
@click.argument("name", metavar="JOB", shell_complete=job_names)
@click.option(
    "--frontier",
    required=True,
    metavar="URL,URL...",
    envvar="GOSSAMER_FRONTIER",
    help="All servers that the job should use.",
)
def spread(name: str, frontier: str) -> int:
    """Move a job's shards to other servers during the crawl.

    Add an address to use another server, omit one to empty it. The command can be interrupted and run again.
    """
    backend = ability(frontier, MovesShards, "spread")  # type: ignore[type-abstract]
    placed = run(_spread(backend, frontier, name))
    click.echo(f"{name}: {sum(placed.values())} shards on {len(placed)} servers", err=True)
    return Exit.OK


async def _spread(backend: MovesShards, frontier: str, name: str) -> Counter[str]:
    placed: Counter[str] = Counter()
    async for move in backend.move_shards(frontier, name):
        placed[move.target] += 1
        way = f"{move.source} -> {move.target}, {move.size}" if move.source != move.target else move.target
        click.echo(f"shard {move.shard}: {way}")
    return placed


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def _seconds(_context: click.Context, _option: click.Parameter, age: str) -> float:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", age.strip())
    if found is None:
        raise click.BadParameter(f"{age!r} is not a duration: use a number with s, m, h, d, or w, such as 30d")
    return float(found[1]) * _SECONDS[found[2]]


@click.command()
@click.argument("name", metavar="JOB", shell_complete=job_names)
@click.option("--frontier", required=True, metavar="URL", envvar="GOSSAMER_FRONTIER", help="postgresql:// or mysql://")
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_seconds,
    default="30d",
    show_default=True,
    help="Delete only URLs finished before this age.",
)
def compact(name: str, frontier: str, older_than: float) -> int:
    """Delete the rows of finished URLs of a job in SQL, also during the crawl.

    Their keys stay in the database, so these URLs are not fetched again. The command can be interrupted and run again.
    """
    backend = ability(frontier, Compacts, "compacted")  # type: ignore[type-abstract]
    gone = run(backend.compact(frontier, name, older_than_seconds=older_than))
    say(f"{name}: {gone:,} rows deleted")
    return Exit.OK


@click.command()
@click.argument("name", metavar="JOB", shell_complete=job_names)
@click.option("--frontier", required=True, metavar="URL", envvar="GOSSAMER_FRONTIER", help="Frontier of the job.")
@click.option(
    "--adopt-folder", is_flag=True, help="Accept the results folder although its results.id is missing or different."
)
@click.option("--walk", is_flag=True, help="On Redis: fetch all recorded pages again to find links to lost pages.")
@click.option(
    "--seeds",
    type=click.File("r", encoding="utf-8-sig"),
    help="On Redis: file with URLs of the job, one per line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def repair(name: str, frontier: str, adopt_folder: bool, walk: bool, seeds: Any, as_json: bool) -> int:
    """Requeue stored pages whose records are missing in the results folder.

    \b
    gossamer status shop --check    how many records are missing
    gossamer repair shop            queue those pages again
    gossamer worker --job shop      fetch them

    Records can be lost with a disk, a folder that was not shared, or a deleted segment. Stop the job's workers first.
    Frontiers in SQL and in folders know the URL of every lost page. Redis does not store URLs of finished pages: they
    are taken from the remaining results, or found with --walk. Exit code 1: some lost pages were not found.
    """
    if not is_fleet(frontier):
        raise ConfigError("repair needs a job of a fleet", hint="name the frontier: --frontier redis://host:6379/0")
    urls = read_seeds((), seeds)
    found = run(repaired(frontier, name, job_folder.folder_of(name, ()), seeds=urls, adopt=adopt_folder, walk=walk))
    if as_json:
        put(f"{json.dumps(_as_json(found))}\n".encode())
    _print_repaired(plain(name), frontier, found)
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


def _print_repaired(name: str, frontier: str, found: Repaired) -> None:
    before = found.before
    say(f"{name}: {before.missing:,} of {before.stored:,} stored pages had no record in {found.folder}")
    say(f"{name}: {many(found.requeued.queued, 'page')} queued again")
    if found.requeued.closed:
        say(f"{name}: {many(found.requeued.closed, 'page')} of closed sites not queued; they stay without a record")
    if found.walked:
        say(f"{name}: {many(found.walked, 'recorded page')} queued again, to find links to lost pages")
    if found.written_off:
        what = "no longer counted as stored, until they are found" if found.walked else "cannot be fetched again"
        say(f"{name}: {many(found.written_off, 'page')} {what}")
    if found.lost:
        say(f"{name}: the URLs of {many(found.lost, 'lost page')} are not known")
        say("hint: give their URLs with --seeds FILE, or fetch the recorded pages again for their links with --walk")
    if found.requeued.queued or found.walked:
        say(f"next, on any machine: gossamer worker {quote(masked_address(frontier))} --job {quote(name)}")
