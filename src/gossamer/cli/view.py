"""What a crawl shows while it runs, and what it says at the end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gossamer.job import Crawl, Summary
from gossamer.settings import Settings


async def follow(run: Crawl) -> None:
    """Show the crawl as it goes: a line every ten seconds where nobody watches."""
    while True:
        await asyncio.sleep(10)
        counts = await run.counts()
        print(
            f"{run.stats.pages} pages ({run.stats.rate():.1f}/s), {counts.queued + counts.delayed} queued, {counts.failed} failed",
            file=sys.stderr,
        )


def summary_lines(summary: Summary, folder: Path | None, settings: Settings) -> list[str]:
    """The end of a crawl, and what to do next."""
    counts, stats = summary.counts, summary.stats
    return [
        f"{summary.state}: {stats.pages} pages, {stats.items} items in {stats.seconds:.1f} s ({stats.mean_rate:.1f} pages/s)",
        f"done {counts.done}, failed {counts.failed}, skipped {counts.skipped}, queued {counts.queued + counts.delayed}",
    ]
