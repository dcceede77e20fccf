"""The command that spreads the shards of a fleet's job over servers."""

from __future__ import annotations

from collections import Counter

import click

from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.errors import ConfigError
from gossamer.fleet import SQL_SCHEMES


@click.command()
@click.argument("name", metavar="JOB", shell_complete=job_names)
@click.option(
    "--frontier", required=True, metavar="URL,URL...", envvar="GOSSAMER_FRONTIER", help="All servers that it is to use."
)
def spread(name: str, frontier: str) -> int:
    """Move the shards of a job to these servers, while it is crawled.

    Add an address to bring in a further server, leave one out to empty it. It may be interrupted and run again.
    """
    if frontier.startswith(SQL_SCHEMES):
        placed = run(_spread_sql(frontier, name))
    elif frontier.startswith(("redis://", "rediss://", "unix://")):
        placed = run(_spread(frontier, name))
    else:
        raise ConfigError(
            "only jobs in Redis or in SQL have shards to move",
            hint="--frontier redis://a:6379/0,redis://b:6379/0 or postgresql://a/crawl,postgresql://b/crawl",
        )
    click.echo(f"{name}: {sum(placed.values())} shards on {len(placed)} servers", err=True)
    return Exit.OK


async def _spread(frontier: str, name: str) -> Counter[str]:
    from gossamer.frontier.redis_move import spread

    placed: Counter[str] = Counter()
    async for move in spread(frontier, name):
        placed[move.target] += 1
        _say(move.shard, move.source, move.target, f"{move.keys:,} keys")
    return placed


async def _spread_sql(frontier: str, name: str) -> Counter[str]:
    from gossamer.frontier.sql import spread_sql

    placed: Counter[str] = Counter()
    async for move in spread_sql(frontier, name):
        placed[move.target] += 1
        _say(move.shard, move.source, move.target, f"{move.rows:,} rows")
    return placed


def _say(shard: int, source: str, target: str, size: str) -> None:
    click.echo(f"shard {shard}: {f'{source} -> {target}, {size}' if source != target else target}")
