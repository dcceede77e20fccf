"""The command `simulate`: many seeds, and how to repeat one that fails."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import click

from gossamer.cli.exits import Exit
from gossamer.cli.terminal import put, say
from gossamer.simulation.run import Report, simulate
from gossamer.simulation.scenario import FAULTS, draw

_FEW = 5


def integer(text: str) -> int:
    """A whole number, also as 1e6; ValueError if it is none."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or not number.is_integer():
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


@click.command(name="simulate")
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="How many seeds to run.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--workers", type=integer, default=0, help="Workers in each run.  [default: 1 to 4]")
@click.option("--sites", type=integer, default=0, help="Sites in each run.  [default: 2 to 6]")
@click.option("--pages", type=integer, default=0, help="Pages of each site.  [default: 1 to 9]")
@click.option("--fault", type=click.Choice(FAULTS), default=None, help="What befalls a whole fleet on several servers.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes to use.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each seed.")
def command(
    seeds: int, seed: int, workers: int, sites: int, pages: int, fault: str | None, processes: int, as_json: bool
) -> int:
    """Crawl simulated webs with the real engine in virtual time, under faults that follow from a seed.

    Workers are killed, frozen and cut off, calls and writes get lost, clocks are wrong, hosts are slow, dead or flaky.
    With --fault, workers share a frontier on one to three servers, and servers forget their last seconds (forget), all
    workers sleep at once (sleep), results are lost and repaired (disk), or shards move between servers (move).
    After each run the promises are checked. A seed that breaks one is printed with the command that repeats it.
    """
    began, befell, pages_done, failed = time.monotonic(), Counter[str](), 0, 0
    sizes: dict[str, Any] = {"workers": workers, "sites": sites, "pages": pages, "fault": fault or ""}
    for report in _reports(range(seed, seed + seeds), processes, sizes):
        befell.update(report.befell)
        pages_done += report.pages
        if as_json:
            put(f"{json.dumps(report._asdict())}\n".encode())
        if report.violations:
            failed += 1
            given = "".join(f" --{name} {value}" for name, value in sizes.items() if value)
            say(f"seed {report.seed} fails: gossamer simulate --seeds 1 --seed {report.seed}{given}")
            for line in report.violations[:_FEW]:
                say(f"  {line}")
            if len(report.violations) > _FEW:
                say(f"  and {len(report.violations) - _FEW} more")
        elif seeds == 1:
            say(f"seed {report.seed} holds: digest {report.digest}, {report.seconds:,.0f} virtual seconds")
    what = ", ".join(f"{count:,} x {name}" for name, count in sorted(befell.items())) or "nothing befell"
    worlds = "1 seed" if seeds == 1 else f"{seeds:,} seeds"
    say(f"{worlds} in {time.monotonic() - began:.0f} s, {failed:,} failed; {pages_done:,} pages; {what}")
    import resource

    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    most_mib = max(usage.ru_maxrss for usage in usages) / 1024
    say(f"{cpu_seconds:,.0f} s of processor time, at most {most_mib:,.0f} MiB of memory")
    return Exit.ERROR if failed else Exit.OK


def _reports(seeds: range, processes: int, sizes: dict[str, Any]) -> Iterator[Report]:
    one = partial(_one, sizes=sizes)
    if processes == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, seeds, chunksize=4)


def _one(seed: int, *, sizes: dict[str, Any]) -> Report:
    return simulate(draw(seed, **sizes))
