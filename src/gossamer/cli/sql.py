"""The command `sql`: questions about what a job has stored."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.cli.terminal import put
from gossamer.jobs.find import find_stored
from gossamer.logs import plain
from gossamer.results.sql import OVERVIEW, ask
from gossamer.storage.csv import cell

_WIDEST = 60
_MEASURED_ROWS = 1000


@click.command()
@click.argument("name", metavar="JOB|DIR", shell_complete=job_names)
@click.argument("query", default="", metavar="[SELECT ...]")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV, without formulas.")
@click.option("--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER", help="The fleet that the job is of.")
def sql(name: str, query: str, as_json: bool, as_csv: bool, frontier: str) -> int:
    """Ask a job's files in SQL; without a question, list its tables and their columns.

    \b
    pages      a row a page, of its last visit
    visits     a row for every visit
    items      what the spider found
    requests   every request that was sent

    Times are UTC. Nothing but the files of the job can be read, and nothing written.
    """
    rows = ask(run(find_stored(name, frontier)), query or OVERVIEW)
    names = [str(name) for name in next(rows)]
    if as_json:
        for row in rows:
            put(json.dumps(dict(zip(names, map(_in_json, row), strict=True)), default=str).encode() + b"\n")
    elif as_csv:
        put(_csv_line(names))
        for row in rows:
            put(_csv_line(row))
    else:
        for line in _table(names, rows, widest=1_000 if not query else _WIDEST):
            put(f"{line}\n".encode("utf-8", "replace"))
    return Exit.OK


def _in_json(value: Any) -> Any:
    """JSON has no word for what is not a finite number; databases write null there."""
    return None if isinstance(value, float) and not isfinite(value) else value


def _csv_line(row: Sequence[Any]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow([cell(value if isinstance(value, int | float | None) else str(value)) for value in row])
    return text.getvalue().encode("utf-8", "replace")


def _table(names: Sequence[str], rows: Iterator[Sequence[Any]], *, widest: int) -> Iterator[str]:
    """Columns as wide as the first rows want them; numbers to the right."""
    first = [_shown(row, widest) for row in islice(rows, _MEASURED_ROWS)]
    titles = [plain(name, widest) for name in names]
    widths = [max(map(cell_len, column)) for column in zip(titles, *first, strict=True)]
    yield "  ".join(map(set_cell_size, titles, widths)).rstrip()
    yield "  ".join("-" * width for width in widths)
    for cells in first:
        yield _sql_line(cells, widths)
    for row in rows:
        yield _sql_line(_shown(row, widest), widths)


def _shown(row: Sequence[Any], widest: int) -> list[str]:
    return ["" if value is None else plain(str(value), widest) for value in row]


def _sql_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(set_cell_size(text, width) for text, width in zip(cells, widths, strict=True)).rstrip()
