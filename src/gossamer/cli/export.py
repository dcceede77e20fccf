"""The command `export`: what a job has stored, in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.figures import many
from gossamer.cli.start import check_out, run
from gossamer.cli.terminal import say
from gossamer.export import FORMATS, Export, write
from gossamer.export.stored import place_of
from gossamer.export.where import Where


@click.command()
@click.argument("name", metavar="JOB|DIR", shell_complete=job_names)
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(FORMATS)),
    default="jsonl",
    show_default=True,
    help="; ".join(f"{name}: {one.meaning}" for name, one in FORMATS.items()) + ".",
)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Only pages that meet it: status=200, site=example.com, 'depth<=2 and fetched_at>=2026-01-31', title~word.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE|DIR", help="Write there.  [default: standard output]"
)
@click.option(
    "--chunks",
    type=click.IntRange(min=10),
    metavar="WORDS",
    help="With markdown: also split pages at their headings into parts of at most so many words, in chunks.jsonl.",
)
@click.option("--all-visits", is_flag=True, help="Every visit of a page, not only the last.")
@click.option("--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER", help="The fleet that the job is of.")
def export(
    name: str, kind: str, conditions: tuple[str, ...], out: Path | None, all_visits: bool, frontier: str, **options: Any
) -> int:
    """Write what a job has stored, one record per page, in another form.

    \b
    gossamer export shop --format items --out items.jsonl
    gossamer export shop --format csv --where status=200 --out pages.csv
    gossamer export shop --format markdown --out pages/
    """
    where = Where(conditions)
    if out is not None and not FORMATS[kind].is_folder:
        check_out(out)
    place = run(place_of(name, frontier))
    wanted = Export(folder=place.folder, place=place, where=where, out=out, all_visits=all_visits, options=options)
    count = write(kind, wanted)
    if out is not None:
        say(f"{out}: {many(count, 'item' if kind in ('items', 'rejected') else 'page')}")
    return Exit.OK
