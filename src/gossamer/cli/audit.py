"""The command `audit`: every request to a site, with its gap and the rule that allowed it; as text, JSON or a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gossamer import urls
from gossamer.cli.exits import Exit
from gossamer.cli.figures import brief, many, size
from gossamer.cli.start import check_out, run
from gossamer.cli.terminal import put, say
from gossamer.cli.why import about_a_job, one_url
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.inspect.audit import drawn, site_audit
from gossamer.inspect.rules import when
from gossamer.jobs.find import guess_name, open_job
from gossamer.logs import plain
from gossamer.storage.request_log import dropped_until, walked

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@click.command()
@click.argument("site", metavar="SITE")
@about_a_job
@click.option("--since", default="", metavar="TIME", help="Only from then on: 2h, 7d, 2026-05-01, 2026-05-01T14:30.")
@click.option("--until", default="", metavar="TIME", help="Only up to then, in UTC as --since.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="Draw it there.")
def audit(site: str, name: str, frontier: str, as_json: bool, since: str, until: str, plot: Path | None) -> int:
    """List every request to a site: when, how long after the one before, and which rule allowed it.

    This is the answer to a webmaster's mail. Requests come from the trail that the workers leave beside what they
    store; robots.txt and tries that failed are in it. Rules are those of robots.txt as it was last fetched.
    """
    host = urls.host_port(one_url(site))
    now = SystemClock().epoch()
    span = (_moment(since, now) if since else 0.0, _moment(until, now) if until else float("inf"))
    found = run(_ask_audit(host, name or guess_name(host, frontier), frontier, span))
    if plot is not None:
        check_out(plot, "--plot")
        plot.write_text(drawn(found), "utf-8")
        say(f"wrote {plot}")
    if as_json:
        put(json.dumps(found).encode() + b"\n")
    elif plot is None:
        for line in audit_lines(found):
            put(f"{plain(line, 4000)}\n".encode("utf-8", "replace"))
    return Exit.OK


def _moment(text: str, now: float) -> float:
    """Epoch seconds of `2h` (ago) or of a date, which is UTC unless it says otherwise."""
    try:
        if text[-1] in _UNITS and text[:-1].replace(".", "", 1).isdigit():
            return now - float(text[:-1]) * _UNITS[text[-1]]
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise ConfigError(f"{text!r} is no time", hint="as in 30m, 2h, 7d, 2026-05-01 or 2026-05-01T14:30") from None


async def _ask_audit(host: str, name: str, frontier: str, span: tuple[float, float]) -> dict[str, Any]:
    async with open_job(name, frontier) as job:
        name = urls.registered_domain(host) if job.settings.site_by == "domain" else host
        site = await job.site(name)
        if site is None:
            hint = f"`gossamer status {job.name}` shows its sites"
            raise ConfigError(f"{name} is no site of job {job.name!r}", hint=hint)
        steps = [one for one in walked(job.stored(), name, job.settings) if span[0] <= one.step.at < span[1]]
        dropped = dropped_until(job.folder)
        return {**site_audit(job, name, site, steps), "dropped_until": dropped if dropped > span[0] else 0.0}


def audit_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The audit for people: what it comes to, then every request."""
    requests = found["requests"]
    if not requests:
        yield f"{found['site']}: no request of job {found['job']} is on record here"
    else:
        first, last = when(requests[0]["at"]), when(requests[-1]["at"])
        yield f"{found['site']}: {many(found['sent'], 'request')} of job {found['job']}, {first} to {last}"
    yield f"agent     {found['user_agent']}"
    asked = f", Crawl-delay {found['crawl_delay']:g} s" if found["crawl_delay"] else ""
    yield f"delay     {brief(found['delay'])} s now (setting {brief(found['setting_delay'])} s{asked})"
    if found["gaps"] is not None:
        short = f"{many(found['too_short'], 'request')} came sooner than the delay" if found["too_short"] else ""
        kept = short or "every request kept the delay of its time"
        yield f"gaps      shortest {found['gaps']['shortest']:.3f} s, median {found['gaps']['median']:.3f} s; {kept}"
    if found["answers"]:
        yield f"answers   {', '.join(f'{word}: {count:,}' for word, count in sorted(found['answers'].items()))}"
        yield f"bodies    {size(found['bytes'])}"
    if found["kept_back"]:
        yield f"kept back {', '.join(f'{count:,} {word}' for word, count in sorted(found['kept_back'].items()))}"
    if not found["complete"]:
        yield "note      no trail was kept: only stored pages are listed, without robots.txt and tries that failed"
    if found["dropped_until"]:
        yield f"note      the trail was dropped up to {when(found['dropped_until'])}: older requests are not listed"
    if found["missing"]:
        yield f"note      {many(found['missing'], 'line')} could not be written, and are missing here"
    if requests:
        yield ""
        yield f"{'time':<28}{'gap':>10}{'delay':>9}  {'answer':<14}{'rule':<30} url"
    for request in requests:
        yield _row(request)


def _row(request: Mapping[str, Any]) -> str:
    moment = datetime.fromtimestamp(request["at"], UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    gap = "" if request["gap"] is None else f"{request['gap']:.3f} s"
    mark = "!" if request["too_short"] else " "
    answer = str(request["status"] or request["error"]) + ("" if request["sent"] else ", unsent")
    delay = f"{request['delay']:g} s" + (f"/{request['lanes']}" if request["lanes"] > 1 else "")
    return f"{moment:<28}{gap:>10}{mark}{delay:>8}  {answer:<14}{request['rule']:<30} {request['url']}"
