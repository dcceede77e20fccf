"""The command that throws away what nobody will read any more."""

from __future__ import annotations

import re

import click

from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.cli.terminal import say
from gossamer.frontier.backends import ability
from gossamer.frontier.base import Compacts

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
