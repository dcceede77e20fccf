"""The command that says how many workers a fleet's job can feed, to people and to what starts workers."""

from __future__ import annotations

import click
import msgspec

from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.cli.steer import on_a_job
from gossamer.cli.terminal import put, say
from gossamer.errors import ConfigError
from gossamer.frontier.backends import is_fleet
from gossamer.jobs.find import open_job
from gossamer.jobs.scaling import Advice


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
