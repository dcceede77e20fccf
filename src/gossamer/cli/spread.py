"""The command that spreads the shards of a fleet's job over servers."""

from __future__ import annotations

from collections import Counter

import click

from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.frontier.backends import ability
from gossamer.frontier.base import MovesShards


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
