"""The command that spreads the shards of a fleet's job over servers."""

from __future__ import annotations

from collections import Counter

import click

from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.errors import ConfigError


@click.command()
@click.argument("name", metavar="JOB")
@click.option(
    "--frontier", required=True, metavar="URL,URL...", envvar="GOSSAMER_FRONTIER", help="All servers that it is to use."
)
def spread(name: str, frontier: str) -> int:
    """Move the shards of a job to these servers, while it is crawled.

    Add an address to bring in a further server, leave one out to empty it. It may be interrupted and run again.
    """
    if not frontier.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError("only jobs in Redis have shards to move", hint="--frontier redis://a:6379/0,redis://b:6379/0")
    placed = run(_spread(frontier, name))
    click.echo(f"{name}: {sum(placed.values())} shards on {len(placed)} servers", err=True)
    return Exit.OK


async def _spread(frontier: str, name: str) -> Counter[str]:
    from gossamer.frontier.redis_move import spread

    placed: Counter[str] = Counter()
    async for move in spread(frontier, name):
        placed[move.target] += 1
        way = f"{move.source} -> {move.target}, {move.keys:,} keys" if move.source != move.target else move.target
        click.echo(f"shard {move.shard}: {way}")
    return placed
