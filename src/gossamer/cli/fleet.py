"""Commands of a fleet: submit, scale, spread, compact, repair."""

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
from gossamer.cli.runner import check_seeds, read_lines, read_settings, run
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
@click.option("--frontier", required=True, metavar="URL", envvar="GOSSAMER_FRONTIER", help="redis://host:port/db")
@shards_option("Number of shards: 256, or a part as workers write it, 0-63/256.  [default: one per server]")
@settings_options
def submit(urls: tuple[str, ...], seeds: Any, name: str, frontier: str, shards: str, **options: Any) -> int:
    """Put a job into a fleet's frontier; workers that join it by name do the rest.

    \b
    export GOSSAMER_FRONTIER=redis://host:6379/0
    gossamer submit https://example.com --job shop --sink s3://bucket/shop
    gossamer worker --job shop          on every machine, as often as you like
    gossamer status shop
    """
    if not is_fleet(frontier):
        raise ConfigError("a fleet's frontier is a server", hint="as in --frontier redis://host:6379/0")
    values = given(options)
    if urls and urls[0].endswith(".py"):
        values["spider"], urls = urls[0], urls[1:]
    settings = read_settings(None, values)
    first_urls = job_folder.read_seeds([*urls, *(read_lines(seeds) if seeds else ())])
    if not first_urls and settings.spider:
        first_urls = job_folder.read_seeds(spider.spider_seeds(settings))
    if not name:
        check_seeds(first_urls)
    job = name or job_folder.folder_of("", first_urls).name
    has_folder = backend_of(frontier).results_folder(frontier, job) is not None
    if not has_folder and shared_folder(settings.sink) is None and not is_shared(settings.sink):
        raise ConfigError(
            "workers on several machines need one place for what they store",
            hint="name a folder that all of them have, --sink jsonl:/mnt/shared/crawl, or a server: --sink mysql://...",
        )
    count = run(_submit(frontier, job, settings, first_urls, shards=str(parse_part(shards).of) if shards else ""))
    say(f"{plain(job)}: {many(count, 'URL')} added, {len(first_urls) - count:,} already known")
    for weakness in run(_weaknesses(frontier, settings)):
        say(f"weak: {plain(weakness.says)}")
        say(f"hint: {plain(weakness.mend)}")
    say(f"next, on any machine: gossamer worker {quote(masked_address(frontier))} --job {quote(plain(job))}")
    return Exit.OK


async def _weaknesses(frontier: str, settings: Settings) -> list[Finding]:
    """Why the store of a job may lose pages; what cannot be found out now is not said."""
    found = check(frontier, clock=SystemClock(), forget_seconds=settings.forget_seconds)
    return [one async for one in found if one.subject in ("durability", "standbys") and one.state != "good"]


async def _submit(frontier: str, job: str, settings: Settings, seeds: Sequence[str], *, shards: str) -> int:
    folder = results_folder(frontier, job, settings, job_folder.folder_of(job, ()))
    # A shared folder whose parent is not here is not mounted here: made anew, it would be another one.
    has_folder = backend_of(frontier).results_folder(frontier, job) is not None
    settings = await claim_results(frontier, job, settings, folder, parents=has_folder)
    if wants_segments(settings.sink) and not is_results(folder, settings):
        say(f"warning: {folder} has no {MARKER} of this job on this machine, and workers refuse to start without it")
        say(f"hint: on a machine that has the folder: {repair_command(job, frontier)} --adopt-folder")
    return await submit_job(frontier, job, settings, seeds, shards=shards)


@click.command()
@on_a_job
@click.option("--min", "least", type=click.IntRange(min=0), default=0, help="Advise no fewer.  [default: 0]")
@click.option("--max", "most", type=click.IntRange(min=0), default=None, help="Advise no more.")
@click.option("--quiet", is_flag=True, help="Say the number only.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON, with what the advice rests on.")
def scale(name: str, frontier: str, least: int, most: int | None, quiet: bool, as_json: bool) -> int:
    """Print how many workers a fleet's job can feed: what its sites can give, not how long its queues are.

    The number goes to standard output, the reason to standard error. It is 0 when nothing can be fetched for a minute.
    """
    if not is_fleet(frontier):
        raise ConfigError(
            "only a job on a fleet's frontier can be scaled",
            hint="name it: --frontier redis://host:6379/0; for a crawl on one machine there is --workers",
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
                say(f"  region {region}: {need.workers:,}, {need.live:,} there")
    return Exit.OK


async def _advice(frontier: str, job: str, least: int, most: int | None) -> Advice:
    async with open_job(job, frontier) as found:
        return await found.advice(least, most)


@click.command()
@click.argument("name", metavar="JOB", shell_complete=job_names)
@click.option(
    "--frontier", required=True, metavar="URL,URL...", envvar="GOSSAMER_FRONTIER", help="All servers that it is to use."
)
def spread(name: str, frontier: str) -> int:
    """Move the shards of a job to these servers, while it is crawled.

    Add an address to bring in a further server, leave one out to empty it. It may be interrupted and run again.
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
        raise click.BadParameter(f"{age!r} is no age: write a number and s, m, h, d or w, as in 30d")
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
    help="Only what was finished before that.",
)
def compact(name: str, frontier: str, older_than: float) -> int:
    """Delete the rows of URLs that a job in SQL has finished, while it is crawled.

    Their keys stay, so that they are not fetched again. It may be interrupted and run again.
    """
    backend = ability(frontier, Compacts, "compacted")  # type: ignore[type-abstract]
    gone = run(backend.compact(frontier, name, older_than_seconds=older_than))
    say(f"{name}: {gone:,} rows deleted")
    return Exit.OK


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
