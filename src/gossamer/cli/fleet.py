"""The command of a fleet: submit a job that workers anywhere take up."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

import click

from gossamer import job_folder
from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.figures import many
from gossamer.cli.guide import Sectioned
from gossamer.cli.options import given, settings_options, shards_option
from gossamer.cli.start import check_seeds, read_lines, read_settings, run
from gossamer.cli.terminal import say
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.extract import spider
from gossamer.frontier.backends import backend_of, check, is_fleet
from gossamer.frontier.placement import parse_part
from gossamer.jobs.fleet import submit_job
from gossamer.jobs.results_folder import MARKER, claim_results, is_results, repair_command, results_folder
from gossamer.logs import plain
from gossamer.model import Finding
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.storage.registry import is_shared, shared_folder, wants_segments


@click.command(cls=Sectioned)
@click.argument("urls", nargs=-1, metavar="[SPIDER.py] URL...")
@click.option(
    "--seeds", type=click.File("r", encoding="utf-8-sig"), help="File with one URL a line; - is standard input."
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
    say(f"{plain(job)}: {many(count, 'URL')} added, {len(first_urls) - count:,} known already")
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
