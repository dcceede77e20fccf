"""Commands on jobs: status, pause, resume, stop, add, delete."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import click
import msgspec

from gossamer.cli import LINES
from gossamer.cli.console import Exit, Row, brief, many, put, rate, say, size, span, table
from gossamer.cli.options import frontier_option, job_names
from gossamer.cli.runner import run
from gossamer.engine.heartbeat import is_live
from gossamer.errors import ConfigError
from gossamer.frontier.backends import is_fleet
from gossamer.job_folder import OWNER, read_seeds
from gossamer.jobs.find import list_jobs, open_job
from gossamer.jobs.fleet import shard_words
from gossamer.jobs.job import JobStatus, JobSummary, ResultsStatus
from gossamer.jobs.removal import Removed, check_rest
from gossamer.logs import plain
from gossamer.model import Heartbeat, JobState
from gossamer.redact import masked_address
from gossamer.storage.jsonl import REJECTED

_MOST_WORKERS = 20
_MANY_SHARDS, _WIDE_NUMBERS = 12, 24
_COUNTS = (
    ("stored", "queued", "known"),
    ("done", "delayed", "sites"),
    ("failed", "leased", "ready_sites"),
    ("skipped", "stale", "held_sites"),
    ("parked", "revisits", "active_sites"),
)


def status_json(status: JobStatus) -> dict[str, Any]:
    """The output of `status --json`. Scripts depend on its shape: the workers of a job on this machine are a mapping of
    names to process ids, those of a fleet's job a list."""
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
    """A line about pages that a limit has cut, if there are any."""
    if not found or not found["pages"]:
        return []
    reasons = ", ".join(f"{plain(reason, 40)}: {each['pages']:,}" for reason, each in found["reasons"].items())
    return [f"  {'cut':10} {found['pages']:>12,} pages ({reasons})"]


def _plain_values(heartbeat: Heartbeat) -> dict[str, Any]:
    return {name: getattr(heartbeat, name) for name in Heartbeat.__struct_fields__}


def status_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """The status of a fleet's job for the terminal; its length does not grow with the fleet."""
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
        text.append(f"  {'fresh':<12} {counts['freshness']:>12.1%} of the stored pages (predicted)")
    return text


def _workers(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    here = [worker for worker in workers if not worker["left"]]
    # Dead workers first, then the fastest.
    here.sort(key=lambda worker: (worker["live"], -worker["rate"], worker["worker"]))
    heads = ("region", "host", "pages", "rate", "sites", "cpu", "memory", "heard")
    text = table("WORKER", heads, [_worker(worker) for worker in here], _MOST_WORKERS)
    left = len(workers) - len(here)
    return [*text, f"  {left:,} exited normally within the last minutes"] if left else text


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
    workers = f"{region['workers']:,}"
    if name and not region["workers"] and region["ready"] + region["later"]:
        workers = click.style(workers, fg="red")
    return _cut(name, 20) or "(none)", workers, rate(region["rate"]), f"{region['ready']:,}", f"{region['later']:,}"


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


_FIGURES = ("stored", "queued", "delayed", "failed", "known", "sites")


def list_json(job: JobSummary) -> dict[str, Any]:
    """A job in the list of `status --json`."""
    if job.counts is None:
        return {"job": job.name, "state": job.problem}
    return {"job": job.name, "state": job.state, **{word: getattr(job.counts, word) for word in _FIGURES}}


def list_lines(found: Sequence[JobSummary]) -> list[str]:
    """A table of jobs for the terminal."""
    rows = [
        (plain(job.name), plain(job.state or job.problem), *(_figure(job, word) for word in _FIGURES)) for job in found
    ]
    return table("JOB", ("state", *_FIGURES), rows, len(rows))[1:]


def _figure(job: JobSummary, word: str) -> str:
    return "-" if job.counts is None else f"{getattr(job.counts, word):,}"


Command = TypeVar("Command", bound=Callable[..., Any])
_STATES: dict[str, JobState] = {"pause": "paused", "resume": "running", "stop": "stopping"}


def on_a_job(command: Command, *, is_named: bool = True) -> Command:
    """Add the argument JOB and the option `--frontier` to a command."""
    metavar = "JOB" if is_named else "[JOB]"
    return click.argument("name", metavar=metavar, required=is_named, shell_complete=job_names)(
        frontier_option(command)
    )


@click.command()
@partial(on_a_job, is_named=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("--check", is_flag=True, help="Count the records of a fleet's job; exit with 1 if some are missing.")
def status(name: str | None, frontier: str, as_json: bool, check: bool) -> int:
    """Show the progress of a job, running or not.

    Without JOB, list the jobs in this folder, or on the frontier.
    """
    if name is None:
        return _list(frontier, as_json=as_json)
    status = run(_status(name, frontier, check=check))
    found, results = status_json(status), status.results
    code = Exit.ERROR if check and results is not None and (results.missing or results.recorded is None) else Exit.OK
    if as_json:
        click.echo(json.dumps(found))
        return code
    if status.is_shared:
        for line in status_lines(name, found):
            click.echo(line)
        return code
    counts = found["counts"]
    click.echo(f"{name}: {found['state']}")
    for word in ("stored", "queued", "delayed", "leased", "done", "failed", "skipped", "parked", "known", "sites"):
        click.echo(f"  {word:10} {counts[word]:>12,}")
    if found.get("rejected"):
        click.echo(f"  {'rejected':10} {found['rejected']:>12,} items, in {REJECTED}")
    for line in cut_lines(found["cut"]):
        click.echo(line)
    if counts.get("freshness") is not None:
        click.echo(f"  {'fresh':10} {counts['freshness']:>12.1%}")
    for site in found["sites"][:10]:
        waiting = f", held for {site['hold']:.0f} s" if site["hold"] else ""
        closed = f", closed: {site['closed']}" if site["closed"] else ""
        browser = site.get("memo", {}).get("browser")
        choice = f", by {browser['use']}: {browser['why']}" if browser else ""
        line = (
            f"  {site['site']:40} {site['queued']:>8,} queued, delay {brief(site['delay'])} s{waiting}{closed}{choice}"
        )
        click.echo(plain(line))
    return Exit.OK


def _list(frontier: str, *, as_json: bool) -> int:
    found = run(list_jobs(frontier))
    if as_json:
        click.echo(json.dumps([list_json(job) for job in found]))
        return Exit.OK
    for line in list_lines(found):
        click.echo(line)
    if not found:
        click.echo(f"no jobs in {masked_address(frontier) if is_fleet(frontier) else 'crawls/'}", err=True)
        if not is_fleet(frontier):
            click.echo("hint: list the jobs of a fleet with: gossamer status --frontier URL", err=True)
    return Exit.OK


async def _status(name: str, frontier: str, *, check: bool) -> JobStatus:
    async with open_job(name, frontier) as job:
        return await job.status(check=check)


def _control_command(verb: str) -> click.Command:
    @click.command(verb, help=LINES[verb])
    @on_a_job
    def command(name: str, frontier: str) -> int:
        run(_set_state(name, frontier, verb))
        click.echo(f"{name}: {_STATES[verb]}", err=True)
        return Exit.OK

    return command


async def _set_state(name: str, frontier: str, verb: str) -> None:
    async with open_job(name, frontier) as job:
        await job.set_state(_STATES[verb])


pause, resume, stop = _control_command("pause"), _control_command("resume"), _control_command("stop")


@click.command()
@on_a_job
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
def add(name: str, frontier: str, urls: tuple[str, ...]) -> int:
    """Add URLs to a running crawl."""
    seeds = read_seeds(urls)
    count = run(_add(name, frontier, seeds))
    click.echo(f"{name}: {count} added, {len(seeds) - count} already known", err=True)
    return Exit.OK


async def _add(name: str, frontier: str, seeds: Sequence[str]) -> int:
    async with open_job(name, frontier) as job:
        return await job.add(seeds)


@click.command()
@on_a_job
@click.option("--results", is_flag=True, help="Also delete the results in the job's folder.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def delete(name: str, frontier: str, results: bool, yes: bool, as_json: bool) -> int:
    """Delete a job: its queue and the record of the URLs that it has fetched.

    \b
    gossamer delete shop             keeps crawls/shop/pages.jsonl
    gossamer delete shop --results   deletes the results, too
    gossamer delete shop --yes       does not ask for confirmation

    Stop a running job first. Results are kept without --results. Results on servers, in buckets, or under other paths
    are never deleted.
    """
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(
                f"deleting job {name!r} needs confirmation, and stdin is not a terminal", hint="add --yes"
            )
        if not click.confirm(f"{run(_question(name, frontier, results))} Delete it?", err=True):
            say("nothing was deleted")
            return Exit.ERROR
    removed = run(_delete(name, frontier, results))
    kept = str(removed.results) if removed.results is not None else None
    if as_json:
        put(f"{json.dumps({'job': name, 'results': kept, 'elsewhere': removed.elsewhere})}\n".encode())
    say(f"{plain(name)}: deleted")
    if kept:
        say(f"{plain(name)}: results kept in {plain(kept)}")
    if removed.elsewhere:
        say(f"{plain(name)}: results kept in {plain(', '.join(removed.elsewhere))}")
    return Exit.OK


async def _question(name: str, frontier: str, results: bool) -> str:
    async with open_job(name, frontier) as job:
        await check_rest(job)
        counts = await job.counts()
        where = masked_address(frontier) if job.frontier else str(job.folder)
        left = f"with the results in {job.folder}" if results else f"keeping the results in {job.folder}"
        return f"Job {plain(name)} in {plain(where)}: {counts.known:,} known URLs, {counts.queued:,} queued, {left}."


async def _delete(name: str, frontier: str, results: bool) -> Removed:
    async with open_job(name, frontier) as job:
        return await job.remove(results=results)
