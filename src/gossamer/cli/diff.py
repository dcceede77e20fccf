"""The command `diff`: what became of the pages of a job by the time of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.cli.terminal import put, say
from gossamer.jobs.find import find_stored
from gossamer.logs import plain
from gossamer.model import Record
from gossamer.results.diff import KINDS, Difference, differences
from gossamer.storage.query import Where
from gossamer.storage.reader import StoredJob

_SIGNS = {"new": "+", "gone": "-", "changed": "~"}


@click.command()
@click.argument("old", metavar="JOB|DIR", shell_complete=job_names)
@click.argument("new", metavar="JOB|DIR", shell_complete=job_names)
@click.option("--only", type=click.Choice(KINDS), multiple=True, help="Only these; may be repeated.")
@click.option(
    "--by",
    type=click.Choice(["body", "text"]),
    default="body",
    show_default=True,
    help="What makes a page another: its bytes, or the text that a reader sees (of crawls with --text).",
)
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION", help="Only pages that meet it, as in export."
)
@click.option("--count", is_flag=True, help="Only the counts.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line; the counts are the last one.")
@click.option("--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER", help="The fleet that they are of.")
def diff(old: str, new: str, only: tuple[str, ...], by: str, conditions: tuple[str, ...], **options: Any) -> int:
    """List the pages that are new, gone or changed from one job to another, and count them.

    A page is there if it was fetched well, or is a redirect. Exit code 0: no difference; 3: there are some.
    """
    where, count, as_json = Where(conditions), options["count"], options["as_json"]
    sides = [_Pages(run(find_stored(name, options["frontier"])), where) for name in (old, new)]
    counts: Counter[str] = Counter()
    for one in differences(*sides, by_text=by == "text"):
        if only and one.kind not in only:
            continue
        counts[one.kind] += 1
        if not count:
            put(msgspec.json.encode(one) + b"\n" if as_json else _diff_line(one))
    if by == "text" and not all(side.have_text for side in sides):
        say("hint: texts can be compared only where both crawls kept them, with --text")
    found = {kind: counts[kind] for kind in KINDS if not only or kind in only}
    if as_json:
        put(msgspec.json.encode(found) + b"\n")
    elif count:
        put("".join(f"{number} {kind}\n" for kind, number in found.items()).encode())
    else:
        say(", ".join(f"{number:,} {kind}" for kind, number in found.items()))
    return Exit.SOME_FAILED if counts else Exit.OK


class _Pages:
    """The pages of a job that are compared."""

    def __init__(self, place: StoredJob, where: Where) -> None:
        self._records = place.records()
        self._where = where
        self.have_text = False

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            if self._where(record.page):
                self.have_text = self.have_text or bool(record.page.text)
                yield record


def _diff_line(one: Difference) -> bytes:
    return f"{_SIGNS[one.kind]} {plain(one.url, 8000)}{f'  ({plain(one.why)})' if one.why else ''}\n".encode()
