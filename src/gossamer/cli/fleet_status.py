"""The status of a job, for people and for programs: counts, workers, sites, regions, shards, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
import msgspec

from gossamer.cli.figures import brief, many, rate, size, span
from gossamer.engine.heartbeat import is_live
from gossamer.job_folder import OWNER
from gossamer.jobs.fleet import shard_words
from gossamer.jobs.job import JobStatus, ResultsStatus
from gossamer.logs import plain
from gossamer.model import Heartbeat

_MOST_WORKERS = 20
_MOST_ROWS = 10
_MANY_SHARDS, _WIDE_NUMBERS = 12, 24
_COUNTS = (
    ("stored", "queued", "known"),
    ("done", "delayed", "sites"),
    ("failed", "leased", "ready_sites"),
    ("skipped", "stale", "held_sites"),
    ("parked", "revisits", "active_sites"),
)
Row = Sequence[str]


def status_json(status: JobStatus) -> dict[str, Any]:
    """A status as `status --json` prints it. Scripts read these shapes: the workers of a job of this machine are a
    mapping of names to processes, those of a fleet's job a list."""
    found: dict[str, Any] = {"state": status.state, "counts": msgspec.to_builtins(status.counts)}
    sites = [dict(site) for site in status.sites]
    if not status.is_shared:
        workers = {worker.worker: worker.pid for worker in status.workers if worker.worker != OWNER}
        return {**found, "sites": sites, "workers": workers, "rejected": status.rejected, "cut": status.cut}
    return {
        **found,
        "rate": status.rate,
        "workers": [{**_plain_values(worker), "live": is_live(worker)} for worker in status.workers],
        "sites": sites,
        "regions": {
            name: {**msgspec.to_builtins(region.lanes), "workers": region.workers, "rate": region.rate}
            for name, region in status.regions.items()
        },
        "shards": msgspec.to_builtins(list(status.shards)),
        "warnings": list(status.warnings),
        "results": _results(status.results),
        "cut": status.cut,
    }


def _results(found: ResultsStatus | None) -> dict[str, Any] | None:
    return None if found is None else {**asdict(found), "folder": str(found.folder)}


def cut_lines(found: Mapping[str, Any] | None) -> list[str]:
    """A line for the pages that were cut, if there are any."""
    if not found or not found["pages"]:
        return []
    reasons = ", ".join(f"{plain(reason, 40)}: {each['pages']:,}" for reason, each in found["reasons"].items())
    return [f"  {'cut':10} {found['pages']:>12,} pages ({reasons})"]


def _plain_values(pulse: Heartbeat) -> dict[str, Any]:
    return {name: getattr(pulse, name) for name in Heartbeat.__struct_fields__}


def status_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """What `as_json` gives, as a terminal shows it: bounded, whatever the size of the fleet."""
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
        numbers = shard_words([shard["shard"] for shard in group])
        rows.append((
            numbers if len(numbers) <= _WIDE_NUMBERS else many(len(group), "shard"),
            _cut(group[0]["server"], 48),
            *(f"{sums[word]:,}" for word in ("stored", "queued", "delayed", "leased", "ready_sites")),
        ))  # fmt: skip
    return table("SHARD", ("server", "stored", "queued", "delayed", "leased", "ready"), rows, _MANY_SHARDS)


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
