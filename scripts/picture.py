"""Crawls the simulated web and saves a frame of the live view as an SVG picture."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from gossamer.cli.live_view import FRAMES_A_SECOND, Progress, frame
from gossamer.jobs.local_run import LocalRun
from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import Settings

SECONDS = 30
COLUMNS, LINES = 92, 17
KINDS = ("plain", "plain", "errors", "plain", "flaky", "redirects", "plain", "robots-part", "slow", "resets")
# The picture loads no external font: every viewer has a monospace font.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'"
)

CELL = 12.2
INDENTED = re.compile(
    r'x="(?P<x>[\d.]+)"(?P<y> y="[\d.]+" )textLength="(?P<length>[\d.]+)"(?P<rest>[^>]*)>(?P<spaces>(?:&#160;)+)'
)


async def watch(run: LocalRun) -> Progress:
    """Watch the crawl with the live view, then stop it."""
    crawling = asyncio.create_task(run.run())
    progress = Progress(run)
    for _ in range(SECONDS * FRAMES_A_SECOND):
        await asyncio.sleep(1 / FRAMES_A_SECOND)
        await progress.look()
    draw(progress)
    run.stop("picture")
    await crawling
    return progress


def draw(progress: Progress) -> None:
    """Save the current frame."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    for row in frame(progress, COLUMNS - 1, LINES):
        console.print(row, soft_wrap=True)
    title = "gossamer crawl --seeds sites.txt --job sites --delay 0.5 --max-pages 5000"
    picture = console.export_svg(title=title, code_format=FORMAT, unique_id="live")
    Path(sys.argv[1]).write_text(INDENTED.sub(_moved, picture), "utf-8")


def _moved(text: re.Match[str]) -> str:
    """Replace leading spaces, which some viewers drop, by a position."""
    spaces = CELL * text["spaces"].count("&#160;")
    return f'x="{float(text["x"]) + spaces:g}"{text["y"]}textLength="{float(text["length"]) - spaces:g}"{text["rest"]}>'


def main() -> None:
    """Create the picture."""
    with tempfile.TemporaryDirectory() as folder, SimWeb(sites=60, pages_per_site=120, names=True, kinds=KINDS) as web:
        settings = Settings(
            allow_private=True, delay=0.5, resolve=("*.sim=127.0.0.1",), max_pages=5000, backoff_seconds=5.0
        )
        asyncio.run(watch(LocalRun(Path(folder) / "sites", settings, web.seeds)))


if __name__ == "__main__":
    main()
