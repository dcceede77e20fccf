"""What a crawl shows while it runs: a live view on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gossamer.cli import figures
from gossamer.cli.progress import Progress
from gossamer.cli.screen import Screen, ScreenLine, Writer, has_screen
from gossamer.jobs.fleet_run import FleetRun
from gossamer.jobs.local_run import LocalRun
from gossamer.logs import plain

FRAMES_A_SECOND = 4
_LINE_SECONDS = 10.0
_LABEL = 9

Part = tuple[str, str]
"""Text and its style."""
Cell = Sequence[Part]


async def follow(run: LocalRun | FleetRun) -> None:
    """Show the crawl as it goes, until cancelled. Nothing that happens to the terminal reaches the crawl."""
    if sys.stderr is None:
        return
    if has_screen():
        await _live(run)
    else:
        await _lines(run)


async def _live(run: LocalRun | FleetRun) -> None:
    progress = Progress(run)
    console = Console(force_terminal=True, file=io.StringIO())
    with Screen() as screen:
        while True:
            await progress.look()
            columns, lines = screen.size()
            screen.draw(rendered(frame(progress, columns - 1, lines - 1), console))
            await asyncio.sleep(1 / FRAMES_A_SECOND)


async def _lines(run: LocalRun | FleetRun) -> None:
    progress = Progress(run)
    descriptor = os.dup(2)
    writer = Writer(descriptor, sys.stderr.encoding)
    try:
        while True:
            for _ in range(int(_LINE_SECONDS)):
                await asyncio.sleep(1)
                await progress.look()
            writer.say(progress_line(progress))
    finally:
        if writer.close():
            os.close(descriptor)


def progress_line(progress: Progress) -> str:
    """Where the crawl is, as words with values."""
    counts, stats = progress.counts, progress.stats
    words = {
        "elapsed": f"{stats.seconds:.0f}s",
        "pages": stats.pages,
        "rate": f"{progress.rate:.1f}/s",
        "mean": f"{stats.mean_rate:.1f}/s",
        "queued": progress.waiting,
        "done": counts.done,
        "failed": counts.failed + counts.parked,
        "skipped": counts.skipped,
        "bytes": stats.bytes,
        "active_sites": counts.active_sites,
        "held_sites": counts.held_sites,
        "workers": progress.workers,
    }
    if progress.eta is not None:
        words["eta"] = f"{progress.eta:.0f}s"
    return "progress " + " ".join(f"{word}={value}" for word, value in words.items())


def frame(progress: Progress, width: int, height: int) -> list[Text]:
    """The live view in at most so many columns and lines; the latest pages give way first."""
    rows = [_heading(progress, width), *_body(progress, width)]
    room = height - len(rows)
    if room > 1:
        rows += _latest(progress, width, min(room - 1, 5))
    for row in rows:
        row.truncate(width, overflow="ellipsis")
    return rows[: max(height, 1)]


def rendered(rows: Sequence[Text], console: Console) -> list[ScreenLine]:
    """Rows with their colours as this terminal knows them."""
    with console.capture() as captured:
        for row in rows:
            console.print(row, soft_wrap=True)
    texts = captured.get().split("\n")
    return [ScreenLine(text, row.cell_len) for text, row in zip(texts, rows)]


def _heading(progress: Progress, width: int) -> Text:
    left = Text.assemble(("gossamer ", "bold cyan"), (plain(progress.name, 200), "bold"), " ")
    if progress.counts.job != "running":
        left.append(progress.counts.job, "yellow")
    right = Text.assemble((figures.span(progress.stats.seconds), "bold"))
    if progress.eta is not None:
        right.append(f"  {figures.span(progress.eta)} left", "dim")
    if progress.share is not None:
        right.append(f"  {progress.share:.0%}", "green")
    left.truncate(max(width - right.cell_len - 1, 9), overflow="ellipsis")
    return Text.assemble(left, " " * max(1, width - left.cell_len - right.cell_len), right)


def _body(progress: Progress, width: int) -> list[Text]:
    counts, stats = progress.counts, progress.stats
    failed = counts.failed + counts.parked
    rows = [
        *_row(
            "pages",
            [
                [(f"{stats.pages:,}", "bold green")],
                [(figures.rate(progress.rate), "bold"), (" now", "dim")],
                [(figures.rate(stats.mean_rate), ""), (" mean", "dim")],
                [(progress.sparkline(max(8, min(30, width - 49))), "cyan")],
            ],
            width,
        ),
        *_row(
            "queue",
            [
                [(f"{progress.waiting:,}", "bold")],
                _count(counts.done, "done"),
                _count(failed, "failed", "red" if failed else ""),
                _count(counts.skipped, "skipped"),
                *([_count(stats.items, "items", "green")] if stats.items else []),
                *([_count(stats.rejected.total(), "rejected", "yellow")] if stats.rejected else []),
            ],
            width,
        ),
        *_row(
            "sites",
            [
                [(f"{counts.sites:,}", "bold")],
                _count(counts.active_sites, "active"),
                _count(counts.held_sites, "held", "yellow" if counts.held_sites else ""),
                _count(progress.workers, "worker" if progress.workers == 1 else "workers"),
            ],
            width,
        ),
        *_row(
            "bytes",
            [[(figures.size(stats.bytes), "bold")], [(f"{figures.size(progress.byte_rate)}/s", ""), (" now", "dim")]],
            width,
        ),
    ]
    codes = [[(f"{code}", _code_style(code)), (f" {count:,}", "")] for code, count in figures.most(stats.codes, 8)]
    rows += _row("answers", codes, width) if codes else []
    errors = stats.by_status["failed"] + stats.by_status["retry"]
    if errors:
        worst = [_count(count, plain(kind, 40), "red") for kind, count in figures.most(errors, 8)]
        rows += _row("errors", worst, width)
    held = [
        [(plain(site, 60), "yellow"), (f" {figures.span(left)} {plain(why, 40)}".rstrip(), "dim")]
        for site, left, why in stats.holds()[:4]
    ]
    rows += _row("held", held, width) if held else []
    return rows


def _latest(progress: Progress, width: int, most: int) -> list[Text]:
    rows: list[Text] = []
    for page in list(progress.stats.latest)[-most:]:
        code = f"{page.status or 'error':<5}"
        figures_ = f"{figures.size(page.bytes):>8} " if width >= 60 else ""
        label = "" if rows else "latest"
        url = plain(page.url, width)
        rows.append(
            Text.assemble((f"{label:<{_LABEL}}", "dim"), (code, _code_style(page.status)), (figures_, "dim"), url)
        )
    return rows


def _row(label: str, cells: Sequence[Cell], width: int) -> list[Text]:
    """A label and its cells, on a second line where the first is full; what does not fit there either is left out."""
    rows = [Text.assemble((f"{label:<{_LABEL}}", "dim"))]
    used = _LABEL
    for place, cell in enumerate(cells):
        text = Text.assemble(*cell)
        if place and used + 2 + text.cell_len > width:
            if len(rows) == 2:
                break
            rows.append(Text(" " * _LABEL))
            used = _LABEL
        elif place:
            rows[-1].append("  ")
            used += 2
        rows[-1].append_text(text)
        used += text.cell_len
    return rows


def _count(count: int, word: str, style: str = "") -> Cell:
    return [(f"{count:,}", style), (f" {word}", "dim")]


def _code_style(code: int) -> str:
    return {2: "green", 3: "blue", 4: "yellow"}.get(code // 100, "red")
