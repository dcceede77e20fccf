"""The command `replay`: a changed spider over what was stored."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from gossamer import job_folder, logs
from gossamer.cli import figures
from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.options import given, some_settings
from gossamer.cli.start import read_settings, run
from gossamer.cli.terminal import put, say
from gossamer.jobs.signals import leaving
from gossamer.logs import plain
from gossamer.results.replay import Replay, Replayed
from gossamer.settings import Settings
from gossamer.storage.jsonl import ITEMS, PAGES, REJECTED
from gossamer.storage.query import Where
from gossamer.storage.reader import StoredJob, open_stored

_FEW = 5
_SETTINGS = ("spider", "extract", "item_types", "text", "markdown")


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="JOB|FILE...", shell_complete=job_names)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder to write to.  [default: JOB-replay]"
)
@click.option("--processes", type=click.IntRange(min=1), help="Processes to use.  [default: one a core]")
@click.option("--all-visits", is_flag=True, help="Every visit of a page, not only the last.")
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION", help="Only pages that meet it; see `export`."
)
@click.option("--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER", help="The fleet that the job is of.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
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
    """Run a spider over the pages that a job stored, or over WARC files: on all cores, and without a network.

    Writes pages.jsonl and items.jsonl as a crawl would. The pages must have been kept, by --sink warc or folder:/path.
    """
    logs.start(quiet=quiet)
    Where(conditions)
    found = [_found(place, frontier) for place in places]
    settings = _settings(found, given(options))
    target = out or _default_out(places[0])
    with open_stored(*found) as stored:
        work = Replay(stored, settings, target, processes=processes or 0, all_visits=all_visits, where=conditions)
        work.hatch()
        result = run(_until_signal(work))
    if as_json:
        put(f"{json.dumps(msgspec.to_builtins(result))}\n".encode())
    if not quiet:
        for line in _lines(result, target):
            say(line)
    return Exit.SOME_FAILED if result.failed or result.unread else Exit.OK


async def _until_signal(work: Replay) -> Replayed:
    """SIGTERM and Ctrl-C end the replay: its processes close their spiders, and the files of the last one stay."""
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
    # It has to do with fleets, and takes long to load.
    from gossamer.jobs.find import find_stored

    return run(find_stored(place, frontier))


def _settings(places: Sequence[str | StoredJob], options: dict[str, Any]) -> Settings:
    """Of a job's settings, those that say what is taken from a page; the command line goes first."""
    kept: dict[str, Any] = {}
    if len(places) == 1:
        place = places[0] if isinstance(places[0], StoredJob) else StoredJob.of(Path(places[0]))
        kept = {name: value for name, value in place.settings.items() if name in _SETTINGS}
    if "spider" in options or "extract" in options:
        for name in ("spider", "extract", "item_types"):
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
        ("pages", f"{result.pages:,} in {figures.span(result.seconds)} ({rate:,.0f}/s, {figures.size(result.bytes)})"),
        ("items", f"{result.items:,}"),
    ]
    if result.rejected:
        kinds = ", ".join(f"{count:,} for {plain(field, 40)}" for field, count in list(result.fields.items())[:_FEW])
        rows.append(("rejected", f"{figures.many(result.rejected, 'item')} that fit no type: {kinds}"))
    if result.dropped:
        rows.append(("dropped", f"{figures.many(result.dropped, 'item')} by pipelines"))
    if result.requests:
        rows.append(("requests", f"{result.requests:,} that the spider made, and nobody sent"))
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
