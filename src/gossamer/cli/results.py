"""Commands on stored results: export, sql, diff, report, replay."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.cells import cell_len, set_cell_size

from gossamer import job_folder, logs
from gossamer.cli import console
from gossamer.cli.console import Exit, many, put, say
from gossamer.cli.options import frontier_option, given, job_names, some_settings
from gossamer.cli.runner import check_out, read_settings, run
from gossamer.clock import SystemClock
from gossamer.errors import FrontierError, GossamerError, JobMissing, SinkError
from gossamer.frontier.backends import is_fleet
from gossamer.jobs.find import find_job, find_stored
from gossamer.jobs.results_folder import MARKER, compare, is_results, read_marker, repair_command
from gossamer.jobs.signals import leaving
from gossamer.logs import plain
from gossamer.model import Record
from gossamer.results.diff import KINDS, Difference, differences
from gossamer.results.export import FORMATS, Export, write
from gossamer.results.replay import Replay, Replayed
from gossamer.results.report import REPORT, ReportCounts, render, stored_rows
from gossamer.results.sql import OVERVIEW, run_query
from gossamer.settings import Settings
from gossamer.storage.csv import cell
from gossamer.storage.jsonl import ITEMS, PAGES, REJECTED
from gossamer.storage.query import Where
from gossamer.storage.reader import StoredJob, open_stored
from gossamer.storage.registry import is_shared, wants_segments
from gossamer.storage.segments import has_segments


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
    help="Filter pages: status=200, site=example.com, 'depth<=2 and fetched_at>=2026-01-31', title~word.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE|DIR", help="Output file or folder.  [default: stdout]"
)
@click.option(
    "--chunks",
    type=click.IntRange(min=10),
    metavar="WORDS",
    help="With markdown: also split pages at headings into chunks of at most WORDS words, in chunks.jsonl.",
)
@click.option("--all-visits", is_flag=True, help="Export every visit of a page, not only the last.")
@frontier_option
@click.option("--incomplete", is_flag=True, help="Export even if records of stored pages are missing.")
def export(
    name: str,
    kind: str,
    conditions: tuple[str, ...],
    out: Path | None,
    all_visits: bool,
    frontier: str,
    incomplete: bool,
    **options: Any,
) -> int:
    """Export the pages or items of a job in another format.

    \b
    gossamer export shop --format items --out items.jsonl
    gossamer export shop --format csv --where status=200 --out pages.csv
    gossamer export shop --format markdown --out pages/

    With --frontier, the command fails (exit code 1) if pages that the frontier counts as stored have no record.
    """
    where = Where(conditions)
    if out is not None and not FORMATS[kind].is_folder:
        check_out(out)
    place = run(find_stored(name, frontier))
    if is_fleet(frontier):
        run(_compare(name, frontier, place, incomplete=incomplete))
    wanted = Export(folder=place.folder, place=place, where=where, out=out, all_visits=all_visits, options=options)
    count = write(kind, wanted)
    if out is not None:
        say(f"{out}: {many(count, 'item' if kind in ('items', 'rejected') else 'page')}")
    return Exit.OK


async def _compare(name: str, frontier: str, place: StoredJob, *, incomplete: bool) -> None:
    """Compare the records with the frontier, and raise SinkError if some are missing, unless `incomplete`."""
    home = place.folder
    marker = read_marker(home)
    if "/" in name and marker is None:
        return
    name = marker.job if marker is not None and "/" in name else name
    try:
        job = await find_job(name, frontier)
    except JobMissing:
        # Without a marker, the address may be that of other jobs.
        if marker is not None:
            say(f"warning: not checked for missing records: the frontier has no job {name!r}")
        return
    except FrontierError as error:
        say(f"warning: not checked for missing records: {error}")
        return
    try:
        if not has_segments(home) and not (job.settings.results_id and wants_segments(job.settings.sink)):
            return
        if not is_results(home, job.settings):
            what = f"{home} is not the results folder of job {name!r}: {MARKER} is missing, or names another job"
            hint = "check that the folder is mounted on this machine"
        else:
            found = await compare(job, home)
            if not found.missing:
                return
            what = f"{found.missing:,} of {found.stored:,} stored pages of job {name!r} have no record in {home}"
            if not found.is_final:
                say(f"warning: {what} yet: workers are running")
                return
            hint = f"queue them again with: {repair_command(name, frontier)}"
    except FrontierError as error:
        say(f"warning: not checked for missing records: {error}")
        return
    finally:
        await job.aclose()
    if not incomplete:
        raise SinkError(what, hint=f"{hint}; or export the other pages with --incomplete")
    say(f"warning: {what}")


_WIDEST = 60
_MEASURED_ROWS = 1000


@click.command()
@click.argument("name", metavar="JOB|DIR", shell_complete=job_names)
@click.argument("query", default="", metavar="[SELECT ...]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV; cells that look like formulas are escaped.")
@frontier_option
def sql(name: str, query: str, as_json: bool, as_csv: bool, frontier: str) -> int:
    """Query a job's results with SQL. Without a query, list the tables and their columns.

    \b
    pages      one row per page, from its last visit
    visits     one row per visit
    items      the items of the spider
    requests   one row per request that was sent

    Times are in UTC. Queries can read only the job's files, and cannot write.
    """
    rows = run_query(run(find_stored(name, frontier)), query or OVERVIEW)
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
    """NaN and infinity as null, as databases do: JSON cannot represent them."""
    return None if isinstance(value, float) and not isfinite(value) else value


def _csv_line(row: Sequence[Any]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow([cell(value if isinstance(value, int | float | None) else str(value)) for value in row])
    return text.getvalue().encode("utf-8", "replace")


def _table(names: Sequence[str], rows: Iterator[Sequence[Any]], *, widest: int) -> Iterator[str]:
    """A table whose column widths fit the first rows."""
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


_SIGNS = {"new": "+", "gone": "-", "changed": "~"}


@click.command()
@click.argument("old", metavar="JOB|DIR", shell_complete=job_names)
@click.argument("new", metavar="JOB|DIR", shell_complete=job_names)
@click.option("--only", type=click.Choice(KINDS), multiple=True, help="List only this kind; may be repeated.")
@click.option(
    "--by",
    type=click.Choice(["body", "text"]),
    default="body",
    show_default=True,
    help="Compare the bytes of pages, or their visible text (crawls with --text).",
)
@click.option("--where", "conditions", multiple=True, metavar="CONDITION", help="Filter pages, as in export.")
@click.option("--count", is_flag=True, help="Print only the counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per page, and the counts last.")
@frontier_option
def diff(old: str, new: str, only: tuple[str, ...], by: str, conditions: tuple[str, ...], **options: Any) -> int:
    """List the pages that are new, gone, or changed between two jobs.

    Pages count if they were fetched successfully or redirect. Exit codes: 0 no differences; 3 differences.
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
        say("hint: to compare texts, run both crawls with --text")
    found = {kind: counts[kind] for kind in KINDS if not only or kind in only}
    if as_json:
        put(msgspec.json.encode(found) + b"\n")
    elif count:
        put("".join(f"{number} {kind}\n" for kind, number in found.items()).encode())
    else:
        say(", ".join(f"{number:,} {kind}" for kind, number in found.items()))
    return Exit.SOME_FAILED if counts else Exit.OK


class _Pages:
    """The filtered pages of one of the two jobs."""

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


log = logging.getLogger("gossamer.report")


@click.command()
@click.argument("name", metavar="JOB|DIR", shell_complete=job_names)
@frontier_option
@click.option("--out", default="", metavar="FILE|-", help="Output file.  [default: report.html in the job's folder]")
def report(name: str, frontier: str, out: str) -> int:
    """Write a report of a job as one self-contained HTML file.

    The report shows progress, status codes, depth, sizes, latencies, links between sites, the busiest sites, and
    failures with examples.
    """
    job = run(find_stored(name, frontier))
    page = _page(job, job_folder.folder_of(name, ()).name).encode()
    if out == "-":
        put(page)
        return Exit.OK
    path = Path(out) if out else job.folder / REPORT
    check_out(path)
    _write(path, page)
    say(f"report    {path}")
    return Exit.OK


def leave_report(folder: Path) -> Path | None:
    """Write the report at the end of a crawl; an error is only logged.

    Results on servers are not read for it: that would transfer all of them at the end of each crawl."""
    found = StoredJob.of(folder)
    job = replace(found, sinks=[name for name in found.sinks if not is_shared((name,))])
    if job.first("rows") is None:
        return None
    path = folder / REPORT
    try:
        _write(path, _page(job, folder.name).encode())
    except (GossamerError, OSError) as error:
        log.warning("cannot write the report: %s", error)
        return None
    return path


def _page(stored: StoredJob, job: str) -> str:
    counts = ReportCounts()
    for row in stored_rows(stored):
        counts.add(row)
    return render(counts, job=job, facts={}, made_at=SystemClock().epoch())


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically; write directly to a pipe or a device."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


_FEW = 5
_SETTINGS = ("spider", "spider_args", "extract", "item_types", "text", "markdown")


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="JOB|FILE...", shell_complete=job_names)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Output folder.  [default: JOB-replay]")
@click.option("--processes", type=click.IntRange(min=1), help="Number of processes.  [default: one per core]")
@click.option("--all-visits", is_flag=True, help="Replay every visit of a page, not only the last.")
@click.option("--where", "conditions", multiple=True, metavar="CONDITION", help="Filter pages, as in export.")
@frontier_option
@click.option("--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@some_settings(*_SETTINGS)
def replay(
    places: tuple[str, ...],
    out: Path | None,
    processes: int | None,
    all_visits: bool,
    conditions: tuple[str, ...],
    frontier: str,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a spider over stored pages or WARC files, on all cores and without the network.

    Writes pages.jsonl and items.jsonl as a crawl would. The job must have stored whole pages, with --sink warc or
    folder:/path.
    """
    logs.start(quiet=quiet)
    Where(conditions)
    found = [_found(place, frontier) for place in places]
    settings = _settings(found, given(options))
    target = out or _default_out(places[0])
    with open_stored(*found) as stored:
        work = Replay(stored, settings, target, processes=processes or 0, all_visits=all_visits, where=conditions)
        work.fork()
        result = run(_until_signal(work))
    if as_json:
        put(f"{json.dumps(msgspec.to_builtins(result))}\n".encode())
    if not quiet:
        for line in _lines(result, target):
            say(line)
    return Exit.SOME_FAILED if result.failed or result.unread else Exit.OK


async def _until_signal(work: Replay) -> Replayed:
    """Run the replay. SIGTERM and Ctrl-C cancel it: its processes close their spiders, and no file is changed."""
    task = asyncio.current_task()
    assert task is not None

    def stop(_: int) -> None:
        task.cancel()

    try:
        async with leaving(stop):
            return await work.run()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _found(place: str, frontier: str) -> str | StoredJob:
    if Path(place).exists() or not frontier:
        known = Path(place).exists() or "://" in place or not (folder := job_folder.folder_of(place, ())).is_dir()
        return place if known else StoredJob.of(folder)
    # Imported here: it takes long to load and is only for fleets.
    from gossamer.jobs.find import find_stored

    return run(find_stored(place, frontier))


def _settings(places: Sequence[str | StoredJob], options: dict[str, Any]) -> Settings:
    """The job's settings for extraction; the command line overrides them."""
    kept: dict[str, Any] = {}
    if len(places) == 1:
        place = places[0] if isinstance(places[0], StoredJob) else StoredJob.of(Path(places[0]))
        kept = {name: value for name, value in place.settings.items() if name in _SETTINGS}
    if "spider" in options or "extract" in options:
        for name in ("spider", "spider_args", "extract", "item_types"):
            kept.pop(name, None)
    return read_settings(None, {**kept, **options})


def _default_out(place: str) -> Path:
    path = Path(place)
    if path.is_file():
        name = path.name.removesuffix(".open").removesuffix(".gz").removesuffix(".warc")
        return path.with_name(f"{name}-replay")
    folder = job_folder.folder_of(place, ())
    return folder.with_name(f"{folder.absolute().name}-replay")


def _lines(result: Replayed, out: Path) -> list[str]:
    rate = result.pages / result.seconds if result.seconds else 0.0
    rows = [
        ("pages", f"{result.pages:,} in {console.span(result.seconds)} ({rate:,.0f}/s, {console.size(result.bytes)})"),
        ("items", f"{result.items:,}"),
    ]
    if result.rejected:
        kinds = ", ".join(f"{count:,} for {plain(field, 40)}" for field, count in list(result.fields.items())[:_FEW])
        rows.append(("rejected", f"{console.many(result.rejected, 'item')} that match no item type: {kinds}"))
    if result.dropped:
        rows.append(("dropped", f"{console.many(result.dropped, 'item')} by pipelines"))
    if result.requests:
        rows.append(("requests", f"{result.requests:,} from the spider, not sent"))
    for number, (url, error) in enumerate(result.failures[:_FEW]):
        label = f"{result.failed:,}, as" if not number else ""
        rows.append(("failed" if not number else "", f"{label} {plain(url, 200)}: {plain(error, 300)}".strip()))
    for number, fault in enumerate(result.faults[:_FEW]):
        rows.append(
            ("unread" if not number else "", f"{f'{result.unread:,}, as ' if not number else ''}{plain(fault, 300)}")
        )
    files = [out / name for name in (PAGES, ITEMS, REJECTED) if (out / name).exists()]
    rows.append(("files", ", ".join(shlex.quote(str(path)) for path in files)))
    return [f"{label:<9} {text}" for label, text in rows]
