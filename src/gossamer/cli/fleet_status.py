"""How a fleet's job is, for people and for programs: counts, workers, sites, regions, shards, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from gossamer.cli.figures import brief, many, rate, size, span
from gossamer.cli.terminal import plain
from gossamer.engine.pulse import is_live
from gossamer.errors import SinkError
from gossamer.frontier.base import Fleet
from gossamer.frontier.regions import parse_part
from gossamer.model import Counts, JobState, Pulse, RegionView, ShardView
from gossamer.results import compare, forgotten_words, is_cheap, is_results, repair_command
from gossamer.sink import wants_segments
from gossamer.sink.segments import has_segments, segment_bytes
from gossamer.sink.trail import cut_of, has_trail, trail_bytes

_QUICK_BYTES = 256 * 1024 * 1024
_MOST_WORKERS, _MOST_ROWS = 20, 10
_MANY_SHARDS, _WIDE_NUMBERS = 12, 24
_COUNTS = (
    ("stored", "queued", "known"),
    ("done", "delayed", "sites"),
    ("failed", "leased", "ready_sites"),
    ("skipped", "stale", "held_sites"),
    ("parked", "revisits", "active_sites"),
)
_UNFINISHED: tuple[JobState, ...] = ("running", "paused", "stopping")
Row = Sequence[str]


async def look(fleet: Fleet) -> dict[str, Any]:
    """All that `status --json` says."""
    counts, pulses, shards = await fleet.counts(), await fleet.workers(), await fleet.shards()
    live = [pulse for pulse in pulses if is_live(pulse)]
    regions = merged(shards)
    # Nobody works on it, though something is left: said in the same word as of a job of one machine.
    state = "resting" if counts.job == "running" and not live and not counts.finished else counts.job
    return {
        "state": state,
        "counts": msgspec.to_builtins(counts),
        "rate": round(sum(pulse.rate for pulse in live), 2),
        "workers": [{**_plain_values(pulse), "live": is_live(pulse)} for pulse in pulses],
        "sites": [dict(site) for site in await fleet.sites(100)],
        "regions": {
            name: {
                **msgspec.to_builtins(regions.get(name, RegionView())),
                "workers": sum(pulse.region == name for pulse in live),
                "rate": round(sum(pulse.rate for pulse in live if pulse.region == name), 2),
            }
            for name in sorted({*regions, *(pulse.region for pulse in live)})
        },
        "shards": msgspec.to_builtins(shards),
        "warnings": warnings(counts, live, shards, is_auto=fleet.settings.region_by == "auto"),
    }


async def results(fleet: Fleet, job: str, frontier: str, folder: Path, *, check: bool) -> dict[str, Any] | None:
    """What `status` says of the job's results folder; None if nothing can be said from this machine.

    Records are counted only if that takes a moment, or with `check`."""
    marked = bool(fleet.settings.results_id)
    if not wants_segments(fleet.settings.sink) or not (marked or has_segments(folder)):
        return None
    found: dict[str, Any] = {"folder": str(folder), "recorded": None, "missing": None, "warning": ""}
    if not is_results(folder, fleet.settings):
        if not check:
            return None
        found["warning"] = f"{folder} is not the job's results folder: has this machine mounted it?"
    elif not check and not is_cheap(folder):
        found["warning"] = f"the records in {folder} were not counted: {size(segment_bytes(folder))}; --check does"
    else:
        try:
            compared = await compare(fleet, folder)
        except SinkError as error:
            return {**found, "warning": f"the records in {folder} cannot be counted: {error}"}
        found |= {"recorded": compared.recorded, "missing": compared.missing}
        if compared.missing:
            what = f"{compared.missing:,} of {compared.stored:,} stored pages have no record in {folder}"
            more = " yet" if compared.is_live else f": {repair_command(job, frontier)} queues them again"
            found["warning"] = what + more
        elif compared.forgotten:
            found["warning"] = forgotten_words(compared, await fleet.counts(), fleet.settings, job)
    return found


def cut_pages(folder: Path, *, check: bool = False) -> dict[str, Any] | None:
    """The pages that were cut, by the request log; None where there is none, or a long one, without `check`."""
    if not has_trail(folder) or (not check and trail_bytes(folder) > _QUICK_BYTES):
        return None
    return cut_of(folder).plain()


def cut_lines(found: Mapping[str, Any] | None) -> list[str]:
    """A line for the pages that were cut, if there are any."""
    if not found or not found["pages"]:
        return []
    reasons = ", ".join(f"{plain(reason, 40)}: {each['pages']:,}" for reason, each in found["reasons"].items())
    return [f"  {'cut':10} {found['pages']:>12,} pages ({reasons})"]


def _plain_values(pulse: Pulse) -> dict[str, Any]:
    return {name: getattr(pulse, name) for name in Pulse.__struct_fields__}


def merged(shards: Iterable[ShardView]) -> dict[str, RegionView]:
    """The regions of all shards together."""
    found: dict[str, RegionView] = {}
    for shard in shards:
        for name, view in shard.regions.items():
            known = found.get(name, RegionView())
            waits = [wait for wait in (known.due_in, view.due_in) if wait is not None]
            found[name] = RegionView(
                ready=known.ready + view.ready,
                later=known.later + view.later,
                soon=known.soon + view.soon,
                due_in=min(waits, default=None),
            )
    return found


def warnings(counts: Counts, live: Sequence[Pulse], shards: Sequence[ShardView], *, is_auto: bool = False) -> list[str]:
    """What keeps a job from going on, or part of it."""
    if counts.finished or counts.job not in _UNFINISHED:
        return []
    if not live:
        if counts.job == "stopping" and not counts.leased:
            return []
        return ["no worker is there: start some with gossamer worker FRONTIER --job NAME"]
    found = []
    if counts.outbox and not counts.queued and not counts.leased and not counts.delayed:
        found.append("all pages are done: waiting until the servers cannot lose the last links (forget_seconds)")
    manned = {pulse.region for pulse in live}
    for name, view in sorted(merged(shards).items()):
        lanes = view.ready + view.later
        if name and lanes and name not in manned:
            what = "workers of other regions take them over" if is_auto else f"start one with --region {name}"
            found.append(f"region {name} has work on {many(lanes, 'site')}, but no worker: {what}")
    taken: set[int] = set()
    for pulse in live:
        # On a folder it is a list of those that the worker has now; others are taken when there is work.
        is_pinned = "/" in pulse.shards
        taken.update(parse_part(pulse.shards).shards if is_pinned else range(len(shards)))
    left = sorted({shard.shard for shard in shards} - taken)
    if left:
        found.append(f"no worker takes {_numbers(left)} of {many(len(shards), 'shard')}")
    return found


def lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """What `look` found, as a terminal shows it: bounded, whatever the size of the fleet."""
    workers = found["workers"]
    live = [worker for worker in workers if worker["live"]]
    head = f"{plain(name)}: {found['state']}"
    if live:
        head += f", {rate(found['rate'])} by {many(len(live), 'worker')}"
    text = [click.style(head, bold=True)]
    text += [click.style(f"warning: {plain(warning)}", fg="yellow") for warning in found["warnings"]]
    text += ["", *_counts(found["counts"])]
    about = found.get("results") or {}
    if about.get("recorded") is not None:
        text.append(f"  {'recorded':<12} {about['recorded']:>12,}    {'missing':<12} {about['missing']:>12,}")
    text += cut_lines(found.get("cut"))
    text += _workers(workers)
    regions = found["regions"]
    if any(regions):
        text += table("REGION", ("workers", "rate", "ready", "later"), [_region(*item) for item in regions.items()])
    sites = [site for site in found["sites"] if site["queued"] or site["hold"] or site["closed"]]
    text += table("SITE", ("queued", "leased", "delay", "region", ""), [_site(site) for site in sites])
    text += _shards(found["shards"])
    return text


def _counts(counts: Mapping[str, Any]) -> list[str]:
    text = [
        "  " + "    ".join(f"{word.replace('_', ' '):<12} {counts[word]:>12,}" for word in words) for words in _COUNTS
    ]
    if counts.get("freshness") is not None:
        text.append(f"  {'fresh':<12} {counts['freshness']:>12.1%} of the copies, as predicted from the changes seen")
    return text


def _workers(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    here = [worker for worker in workers if not worker["left"]]
    # Those that are wanting come first, then those that do most.
    here.sort(key=lambda worker: (worker["live"], -worker["rate"], worker["worker"]))
    heads = ("region", "host", "pages", "rate", "sites", "cpu", "memory", "heard")
    text = table("WORKER", heads, [_worker(worker) for worker in here], _MOST_WORKERS)
    left = len(workers) - len(here)
    return [*text, f"  {left:,} left in good order within the last minutes"] if left else text


def _worker(worker: Mapping[str, Any]) -> Row:
    is_here = worker["live"]
    heard = f"{span(worker['silent'])} ago"
    part = f" [{worker['shards']}]" if worker["shards"] else ""
    return (
        _cut(worker["worker"] + part, 32),
        _cut(worker["region"], 12) or "-",
        _cut(worker["host"], 20),
        f"{worker['pages']:,}",
        rate(worker["rate"]) if is_here else "-",
        f"{worker['active']:,}" if is_here else "-",
        f"{worker['load']:.0%}" if is_here else "-",
        size(worker["memory_bytes"]),
        heard if is_here else click.style(f"dead: {heard}", fg="red"),
    )


def _region(name: str, region: Mapping[str, Any]) -> Row:
    manned = f"{region['workers']:,}"
    if name and not region["workers"] and region["ready"] + region["later"]:
        manned = click.style(manned, fg="red")
    return _cut(name, 20) or "(none)", manned, rate(region["rate"]), f"{region['ready']:,}", f"{region['later']:,}"


def _site(site: Mapping[str, Any]) -> Row:
    state = f"closed: {plain(site['closed'])}" if site["closed"] else f"held for {span(site['hold'])}"
    return (
        _cut(site["site"], 40),
        f"{site['queued']:,}",
        f"{site.get('leased', 0):,}",
        f"{brief(site['delay'])} s",
        _cut(site.get("region", ""), 12) or "-",
        state if site["closed"] or site["hold"] else "",
    )


def _shards(shards: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(shards) < 2:
        return []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for shard in shards:
        each = len(shards) <= _MANY_SHARDS
        groups.setdefault(f"{shard['shard']}" if each else shard["server"], []).append(shard)
    rows = []
    for group in groups.values():
        sums: Counter[str] = Counter()
        for shard in group:
            sums.update(
                {word: shard["counts"][word] for word in ("queued", "delayed", "leased", "stored", "ready_sites")}
            )
        numbers = _numbers([shard["shard"] for shard in group])
        rows.append((
            numbers if len(numbers) <= _WIDE_NUMBERS else many(len(group), "shard"),
            _cut(group[0]["server"], 48),
            *(f"{sums[word]:,}" for word in ("stored", "queued", "delayed", "leased", "ready_sites")),
        ))  # fmt: skip
    return table("SHARD", ("server", "stored", "queued", "delayed", "leased", "ready"), rows, _MANY_SHARDS)


def _numbers(numbers: Sequence[int]) -> str:
    """`shard 7`, `shards 0-3, 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:8])
    return f"shard{'' if len(numbers) == 1 else 's'} {text}{', ...' if len(runs) > 8 else ''}"


def _cut(text: str, width: int) -> str:
    return plain(text, width)


def table(title: str, heads: Row, rows: Sequence[Row], limit: int = _MOST_ROWS) -> list[str]:
    """Rows under their heads, numbers to the right; of very many only the first."""
    if not rows:
        return []
    shown = [(title, *heads), *rows[:limit]]
    widths = [max(len(click.unstyle(row[column])) for row in shown) for column in range(len(shown[0]))]
    rights = [all(_is_figure(row[column]) for row in shown[1:]) for column in range(len(widths))]
    text = [""]
    for number, row in enumerate(shown):
        cells = [
            (" " * (width - len(click.unstyle(cell))) + cell)
            if right
            else cell + " " * (width - len(click.unstyle(cell)))
            for cell, width, right in zip(row, widths, rights, strict=True)
        ]
        line = ("  " + "  ".join(cells)).rstrip()
        text.append(click.style(line, dim=True) if number == 0 else line)
    if len(rows) > limit:
        text.append(f"  ... and {len(rows) - limit:,} more")
    return text


def _is_figure(cell: str) -> bool:
    text = click.unstyle(cell)
    return text[:1].isdigit() or text in ("", "-")
