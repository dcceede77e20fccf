"""Commands that explain a crawl and check a machine: why, audit, doctor."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gossamer import job_folder, urls
from gossamer.cli.console import Exit, brief, many, put, say, size
from gossamer.cli.options import frontier_option, job_names, some_settings
from gossamer.cli.runner import check_out, read_settings, run
from gossamer.clock import SystemClock
from gossamer.cut import describe_cut
from gossamer.errors import ConfigError, advice_for_kind
from gossamer.frontier.backends import check, is_fleet
from gossamer.inspect.audit import gap_chart, site_audit
from gossamer.inspect.doctor import disk, extras, files, memory, names, python
from gossamer.inspect.rules import when
from gossamer.inspect.why import url_history
from gossamer.jobs.find import guess_name, open_job
from gossamer.logs import plain
from gossamer.model import Finding
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.storage.request_log import dropped_until, requests_to

_LABEL, _MOST_ATTEMPTS = 9, 30
_STATES = {
    "queued": "Queued: not fetched yet.",
    "leased": "Leased: a worker is about to fetch it.",
    "delayed": "Delayed: waiting for a retry.",
    "done": "Done: fetched.",
    "failed": "Failed.",
    "skipped": "Skipped: known, and not fetched.",
    "parked": "Parked: it crashed workers repeatedly and is not retried.",
    "known": "Finished; the frontier keeps no details.",
    "unknown": "Unknown: the job has not found this URL.",
}
_LABELS = {
    "robots": "robots", "robots-unreachable": "robots", "asleep": "asleep", "prefix-budget": "budget",
    "budget": "budget", "closed": "closed", "cut": "cut",
}  # fmt: skip
Command = TypeVar("Command", bound=Callable[..., Any])


def about_a_job(command: Command) -> Command:
    """Add the options that choose a job, and `--json`, to a command."""
    job = click.option(
        "--job",
        "name",
        default="",
        metavar="NAME|DIR",
        shell_complete=job_names,
        help="Name or folder of the job.  [default: the job of the host, or the only one]",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    return job(frontier_option(as_json(command)))


@click.command()
@click.argument("url", metavar="URL")
@about_a_job
@click.option("--from", "page", default="", metavar="PAGE", help="Check whether a link on this page would be followed.")
def why(url: str, name: str, frontier: str, as_json: bool, page: str) -> int:
    """Explain why a URL was or was not fetched.

    Shows where the URL was found, which rule allowed or excluded it, what it is waiting for, and its visits.

    \b
    gossamer why https://example.com/page
    gossamer why https://example.com/page --from https://example.com/

    Rules are evaluated with the job's settings and the last fetched robots.txt. Visits come from the request log.
    """
    targets = [one_url(url)] if "://" in url else [one_url(url), one_url(f"http://{url}")]
    source = one_url(page) if page else ""
    found = run(_ask_why(targets, name or guess_name(urls.host_port(targets[0]), frontier), frontier, source))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return Exit.OK
    for line in why_lines(found, columns=min(terminal_columns(), 100)):
        click.echo(line)
    return Exit.OK


async def _ask_why(targets: list[str], name: str, frontier: str, page: str) -> dict[str, Any]:
    """The history of the first of these URLs that the job knows; if it knows none, of the first."""
    async with open_job(name, frontier) as job:
        histories = [await url_history(job, url, page=page, now=SystemClock().epoch()) for url in targets]
        return next((history for history in histories if history["seen"]), histories[0])


def one_url(text: str) -> str:
    """Normalize a URL from the command line."""
    found = job_folder.read_seeds([text])
    if not found:
        raise ConfigError("the URL is empty", hint="a URL looks like https://example.com/page")
    return found[0]


def terminal_columns() -> int:
    """Columns of the terminal; 100 if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 100


def why_lines(history: Mapping[str, Any], *, columns: int) -> Iterator[str]:
    """The history of a URL as wrapped paragraphs with labels, followed by a table of visits."""
    yield click.style(plain(history["url"], 2000), bold=True)
    for label, text, allows in _paragraphs(history):
        wrapped = textwrap.wrap(plain(text, 4000), columns - _LABEL, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(wrapped or [""]):
            colour: dict[str, Any] = {"dim": True} if allows else {"fg": "red"}
            yield click.style(f"{'' if number else label:<{_LABEL}}", **colour) + line
    yield from _visits(history)


def _paragraphs(history: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Label, text, and whether the paragraph allows the URL to be fetched."""
    yield "state", f"{_STATES[history['state']]} {_end(history)}".strip(), True
    yield "job", f"{history['job']} ({history['job_state']}). {_about_site(history)}", True
    if history["url"] != history["asked_for"]:
        yield "", "The job removes tracking parameters and sorts the others (clean_query).", True
    if history["seen"]:
        yield "found", _found(history), True
    if history.get("cut"):
        yield "cut", f"The last visit stored only a part of it: {describe_cut(history['cut'])}.", True
    for ruling in history["rules"]:
        allows, rule = ruling["allows"], ruling["rule"]
        # Obeying robots.txt is the default and needs no setting in the output.
        setting = f" ({ruling['setting']})" if ruling["setting"] and not rule.startswith("robots") else ""
        allowed = "allowed" if history["seen"] else "rules"
        yield _LABELS.get(rule, allowed if allows else "excluded"), f"{ruling['words']}{setting}", allows
    if not history["seen"] and all(ruling["allows"] for ruling in history["rules"]):
        hint = "Check a link on a page with `--from PAGE`, or queue the URL with `gossamer add`."
        yield "hint", hint, True
    if history["waits"] is not None:
        yield "waits", f"{history['waits']['words']} ({history['waits']['for']})", True
    if history["next"] is not None:
        yield "next", f"{history['next']['words']} ({history['next']['setting']})", True


def _about_site(history: Mapping[str, Any]) -> str:
    site = history["site_state"]
    if site is None:
        return f"The job knows no page on {history['site']}."
    facts = [f"delay {site['delay']:g} s"]
    facts += [f"{site[name]:,} {word}" for name, word in (("stored", "stored"), ("queued", "queued")) if name in site]
    facts += [f"region {site['region']}"] if site.get("region") else []
    connects = sorted(site.get("memo", {}).get("connect", {}).items(), key=itemgetter(1))
    facts += [
        f"{f'{1e3 * seconds:.3g}' if seconds >= 0.001 else 'under 1'} ms to connect from {region}"
        for region, seconds in connects
    ]
    return f"Site {history['site']}: {', '.join(facts)}."


def _end(history: Mapping[str, Any]) -> str:
    """The result of the last visit, and advice on a failure."""
    sent = [one for one in history["attempts"] if not one.get("skipped")]
    if history["state"] not in ("done", "failed"):
        return ""
    last = f"Last visit: {_answer(sent[-1])} at {when(sent[-1]['at'])}." if sent else ""
    closed = next((ruling for ruling in history["rules"] if ruling["rule"] == "closed"), None)
    kind = history.get("reason") or (sent and (sent[-1].get("error") or f"http-{sent[-1].get('status', 0)}"))
    tip = advice_for_kind(str(kind)) if history["state"] == "failed" else ""
    with_site = "Its site was closed." if closed and not sent else ""
    sentences = [last, with_site, f"{tip[:1].upper()}{tip[1:]}." if tip else ""]
    return " ".join(sentence for sentence in sentences if sentence)


def _found(history: Mapping[str, Any]) -> str:
    depth = history.get("depth")
    below = "" if depth is None else f", {depth} link{'s' * (depth != 1)} from the nearest seed"
    if history.get("referrer"):
        return f"On {history['referrer']}{below}."
    return "As a seed." if depth == 0 else f"On a page that is not recorded{below}."


def _visits(history: Mapping[str, Any]) -> Iterator[str]:
    attempts = history["attempts"]
    if not attempts:
        if history["seen"]:
            yield click.style(f"{'visits':<{_LABEL}}", dim=True) + "none"
        return
    shown = attempts[-_MOST_ATTEMPTS:]
    width = 2 + max(len("status"), *(len(_answer(one)) for one in shown))
    head = f"{'visits':<{_LABEL}}{'time':<25}{'status':<{width}}{'took':>8}{'size':>10}  worker"
    yield click.style(head, dim=True)
    if len(attempts) > len(shown):
        yield f"{'':<{_LABEL}}... {len(attempts) - len(shown):,} earlier visits (--json lists all)"
    for one in shown:
        took = f"{one['latency']:.3f} s" if one.get("latency") else ""
        weight = size(one["bytes"]) if one.get("bytes") else ""
        row = f"{when(one['at']):<25}{_answer(one):<{width}}{took:>8}{weight:>10}  {one.get('worker', '')}"
        yield f"{'':<{_LABEL}}{plain(row).rstrip()}"


def _answer(one: Mapping[str, Any]) -> str:
    if one.get("skipped"):
        return f"not sent ({one['skipped']})"
    return str(one["status"]) if one.get("status") else f"none ({one.get('error') or 'no response'})"


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@click.command()
@click.argument("site", metavar="SITE")
@about_a_job
@click.option(
    "--since", default="", metavar="TIME", help="Start time, UTC: 2h (ago), 7d, 2026-05-01, 2026-05-01T14:30."
)
@click.option("--until", default="", metavar="TIME", help="End time, in the same formats.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.svg",
    help="Write a chart of the gaps as SVG.",
)
def audit(site: str, name: str, frontier: str, as_json: bool, since: str, until: str, plot: Path | None) -> int:
    """List every request to a site, with gaps and robots.txt rules.

    Use it to answer questions of a site's operator. Requests come from the request log, including those for robots.txt
    and failed attempts. Rules are evaluated with the last fetched robots.txt.
    """
    host = urls.host_port(one_url(site))
    now = SystemClock().epoch()
    span = (_moment(since, now) if since else 0.0, _moment(until, now) if until else float("inf"))
    found = run(_ask_audit(host, name or guess_name(host, frontier), frontier, span))
    if plot is not None:
        check_out(plot, "--plot")
        plot.write_text(gap_chart(found), "utf-8")
        say(f"wrote {plot}")
    if as_json:
        put(json.dumps(found).encode() + b"\n")
    elif plot is None:
        for line in audit_lines(found):
            put(f"{plain(line, 4000)}\n".encode("utf-8", "replace"))
    return Exit.OK


def _moment(text: str, now: float) -> float:
    """Epoch seconds of `2h` (ago) or of a date, in UTC unless it has a time zone."""
    try:
        if text[-1] in _UNITS and text[:-1].replace(".", "", 1).isdigit():
            return now - float(text[:-1]) * _UNITS[text[-1]]
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a valid time", hint="for example: 30m, 2h, 7d, 2026-05-01, 2026-05-01T14:30"
        ) from None


async def _ask_audit(host: str, name: str, frontier: str, span: tuple[float, float]) -> dict[str, Any]:
    async with open_job(name, frontier) as job:
        name = urls.registered_domain(host) if job.settings.site_by == "domain" else host
        site = await job.site(name)
        if site is None:
            hint = f"list its sites with: gossamer status {job.name}"
            raise ConfigError(f"job {job.name!r} has no site {name}", hint=hint)
        steps = [one for one in requests_to(job.stored(), name, job.settings) if span[0] <= one.step.at < span[1]]
        dropped = dropped_until(job.folder)
        return {**site_audit(job, name, site, steps), "dropped_until": dropped if dropped > span[0] else 0.0}


def audit_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The audit as lines: a summary, then every request."""
    requests = found["requests"]
    if not requests:
        yield f"{found['site']}: no logged requests of job {found['job']}"
    else:
        first, last = when(requests[0]["at"]), when(requests[-1]["at"])
        yield f"{found['site']}: {many(found['sent'], 'request')} of job {found['job']}, {first} to {last}"
    yield f"agent     {found['user_agent']}"
    crawl_delay = f", Crawl-delay {found['crawl_delay']:g} s" if found["crawl_delay"] else ""
    yield f"delay     {brief(found['delay'])} s now (setting {brief(found['setting_delay'])} s{crawl_delay})"
    if found["gaps"] is not None:
        short = f"{many(found['too_short'], 'request')} violated the delay" if found["too_short"] else ""
        kept = short or "every request respected the delay at its time"
        yield f"gaps      shortest {found['gaps']['shortest']:.3f} s, median {found['gaps']['median']:.3f} s; {kept}"
    if found["answers"]:
        yield f"answers   {', '.join(f'{word}: {count:,}' for word, count in sorted(found['answers'].items()))}"
        yield f"bodies    {size(found['bytes'])}"
    if found["kept_back"]:
        yield f"not sent  {', '.join(f'{count:,} {word}' for word, count in sorted(found['kept_back'].items()))}"
    if not found["complete"]:
        yield "note      there is no request log: only stored pages are listed, without robots.txt and failed attempts"
    if found["dropped_until"]:
        yield f"note      the request log was truncated: requests before {when(found['dropped_until'])} are not listed"
    if found["missing"]:
        yield f"note      {many(found['missing'], 'request')} could not be logged and are not listed"
    if requests:
        yield ""
        yield f"{'time':<28}{'gap':>10}{'delay':>9}  {'status':<14}{'rule':<30} url"
    for request in requests:
        yield _row(request)


def _row(request: Mapping[str, Any]) -> str:
    time = datetime.fromtimestamp(request["at"], UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    gap = "" if request["gap"] is None else f"{request['gap']:.3f} s"
    mark = "!" if request["too_short"] else " "
    answer = str(request["status"] or request["error"]) + ("" if request["sent"] else ", not sent")
    delay = f"{request['delay']:g} s" + (f"/{request['lanes']}" if request["lanes"] > 1 else "")
    return f"{time:<28}{gap:>10}{mark}{delay:>8}  {answer:<14}{request['rule']:<30} {request['url']}"


_SIGNS = {"good": ("ok  ", "green"), "weak": ("weak", "yellow"), "bad": ("bad ", "red")}


@click.command()
@click.option(
    "--job",
    default="",
    metavar="NAME|DIR",
    shell_complete=job_names,
    help="Check the disk of this job, existing or new.",
)
@click.option(
    "--frontier", default="", envvar="GOSSAMER_FRONTIER", help="Also check the frontier of a fleet at this address."
)
@click.option("--host", default="example.com", help="Host name for the DNS check.  [default: example.com]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per check.")
@some_settings("concurrency", "nameservers", "resolve", "forget_seconds")
def doctor(job: str, frontier: str, host: str, as_json: bool, **options: Any) -> int:
    """Check this machine and suggest fixes.

    Checks Python, extras, limits of open files and memory, disk, DNS, and with --frontier the servers of a fleet. Exit
    codes: 0 if every check is ok or weak; 1 if one is bad.
    """
    if frontier and not is_fleet(frontier):
        raise ConfigError(
            f"--frontier {masked_address(frontier)} is not the address of a fleet's frontier",
            hint="use redis://, postgresql://, mysql://, or folder:/path",
        )
    given = {name: value for name, value in options.items() if value not in (None, ())}
    return run(_look(job, frontier, urls.host(host), read_settings(None, given), as_json))


async def _look(job: str, frontier: str, host: str, settings: Settings, as_json: bool) -> int:
    console = Console(highlight=False, soft_wrap=True)
    worst = Exit.OK
    async for found in _findings(job, frontier, host, settings):
        if found.state == "bad":
            worst = Exit.ERROR
        if as_json:
            put(msgspec.json.encode(found._asdict()) + b"\n")
            continue
        sign, colour = _SIGNS[found.state]
        console.print(Text.assemble((sign, colour), f"  {found.subject:<10}  {plain(found.says)}"))
        if found.mend:
            console.print(Text(f"{'':18}{plain(found.mend)}", style="dim"))
    return worst


async def _findings(job: str, frontier: str, host: str, settings: Settings) -> AsyncIterator[Finding]:
    clock = SystemClock()
    folder = job_folder.folder_of(job, [f"http://{host}/"])
    for found in (*python(), *extras(), *files(settings), *memory()):
        yield found
    for found in disk(folder):
        yield found
    yield await names(host, settings, clock=clock)
    if frontier:
        async for found in check(frontier, clock=clock, forget_seconds=settings.forget_seconds):
            yield found
