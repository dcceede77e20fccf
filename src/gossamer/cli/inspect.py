"""Commands that explain: why, audit, doctor."""

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
from gossamer.cut import cut_words
from gossamer.errors import ConfigError, advice_for_kind
from gossamer.frontier.backends import check, is_fleet
from gossamer.inspect.audit import drawn, site_audit
from gossamer.inspect.doctor import disk, extras, files, memory, names, python
from gossamer.inspect.rules import when
from gossamer.inspect.why import url_history
from gossamer.jobs.find import guess_name, open_job
from gossamer.logs import plain
from gossamer.model import Finding
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.storage.request_log import dropped_until, walked

_LABEL, _MOST_ATTEMPTS = 9, 30
_STATES = {
    "queued": "It waits to be fetched.",
    "leased": "It is about to be fetched.",
    "delayed": "It waits to be tried again.",
    "done": "It was fetched.",
    "failed": "It failed.",
    "skipped": "It was skipped: known, and not fetched.",
    "parked": "It is parked: workers died of it, and it is not tried again.",
    "known": "It is known and over; no more is kept of it.",
    "unknown": "This job has never seen it.",
}
_LABELS = {
    "robots": "robots", "robots-unreachable": "robots", "asleep": "asleep", "prefix-budget": "budget",
    "budget": "budget", "closed": "closed", "cut": "cut",
}  # fmt: skip
Command = TypeVar("Command", bound=Callable[..., Any])


def about_a_job(command: Command) -> Command:
    """Give a command the options that say which job is asked."""
    job = click.option(
        "--job",
        "name",
        default="",
        metavar="NAME|DIR",
        shell_complete=job_names,
        help="The job.  [default: that of the host, or the only one]",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    return job(frontier_option(as_json(command)))


@click.command()
@click.argument("url", metavar="URL")
@about_a_job
@click.option("--from", "page", default="", metavar="PAGE", help="A page with a link to it: would that be followed?")
def why(url: str, name: str, frontier: str, as_json: bool, page: str) -> int:
    """Tell the whole story of a URL: found or not, let in or kept out and by which rule, where it waits, its visits.

    \b
    gossamer why https://example.com/page
    gossamer why https://example.com/page --from https://example.com/

    The rules are asked again with the job's settings, and with robots.txt as it was last fetched. Visits come from
    the trail that the workers leave beside what they store.
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
    """The story of the first of these that the job knows, or else of the first."""
    async with open_job(name, frontier) as job:
        stories = [await url_history(job, url, page=page, now=SystemClock().epoch()) for url in targets]
        return next((story for story in stories if story["seen"]), stories[0])


def one_url(text: str) -> str:
    """A URL as people write it, made normal."""
    found = job_folder.read_seeds([text])
    if not found:
        raise ConfigError("an empty URL", hint="a URL looks like https://example.com/page")
    return found[0]


def terminal_columns() -> int:
    """How wide lines for people may be."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 100


def why_lines(story: Mapping[str, Any], *, columns: int) -> Iterator[str]:
    """The story, one paragraph a line of thought, with a label before each."""
    yield click.style(plain(story["url"], 2000), bold=True)
    for label, text, allows in _paragraphs(story):
        wrapped = textwrap.wrap(plain(text, 4000), columns - _LABEL, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(wrapped or [""]):
            colour: dict[str, Any] = {"dim": True} if allows else {"fg": "red"}
            yield click.style(f"{'' if number else label:<{_LABEL}}", **colour) + line
    yield from _visits(story)


def _paragraphs(story: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Label, text, and whether what it says lets the URL be fetched."""
    yield "state", f"{_STATES[story['state']]} {_end(story)}".strip(), True
    yield "job", f"{story['job']} ({story['job_state']}). {_about_site(story)}", True
    if story["url"] != story["asked_for"]:
        yield "", "Tracking parameters are dropped and the others sorted in this job (clean_query).", True
    if story["seen"]:
        yield "found", _found(story), True
    if story.get("cut"):
        yield "cut", f"Only a part of it was kept at its last visit: {cut_words(story['cut'])}.", True
    for ruling in story["rules"]:
        allows, rule = ruling["allows"], ruling["rule"]
        # That robots.txt is asked is what everybody takes for granted.
        setting = f" ({ruling['setting']})" if ruling["setting"] and not rule.startswith("robots") else ""
        admitted = "let in" if story["seen"] else "rules"
        yield _LABELS.get(rule, admitted if allows else "kept out"), f"{ruling['words']}{setting}", allows
    if not story["seen"] and all(ruling["allows"] for ruling in story["rules"]):
        hint = "`--from PAGE` tells whether a link on that page would be followed; `gossamer add` queues it."
        yield "hint", hint, True
    if story["waits"] is not None:
        yield "waits", f"{story['waits']['words']} ({story['waits']['for']})", True
    if story["next"] is not None:
        yield "next", f"{story['next']['words']} ({story['next']['setting']})", True


def _about_site(story: Mapping[str, Any]) -> str:
    site = story["site_state"]
    if site is None:
        return f"No page on {story['site']} is known."
    told = [f"delay {site['delay']:g} s"]
    told += [f"{site[name]:,} {word}" for name, word in (("stored", "stored"), ("queued", "queued")) if name in site]
    told += [f"region {site['region']}"] if site.get("region") else []
    connects = sorted(site.get("memo", {}).get("connect", {}).items(), key=itemgetter(1))
    told += [
        f"{f'{1e3 * seconds:.3g}' if seconds >= 0.001 else 'under 1'} ms to connect from {region}"
        for region, seconds in connects
    ]
    return f"Site {story['site']}: {', '.join(told)}."


def _end(story: Mapping[str, Any]) -> str:
    """How the last visit went, and what may help."""
    sent = [one for one in story["attempts"] if not one.get("skipped")]
    if story["state"] not in ("done", "failed"):
        return ""
    last = f"Last visit: {_answer(sent[-1])} at {when(sent[-1]['at'])}." if sent else ""
    closed = next((ruling for ruling in story["rules"] if ruling["rule"] == "closed"), None)
    kind = story.get("reason") or (sent and (sent[-1].get("error") or f"http-{sent[-1].get('status', 0)}"))
    tip = advice_for_kind(str(kind)) if story["state"] == "failed" else ""
    with_site = "It went with its site." if closed and not sent else ""
    told = [last, with_site, f"{tip[:1].upper()}{tip[1:]}." if tip else ""]
    return " ".join(part for part in told if part)


def _found(story: Mapping[str, Any]) -> str:
    depth = story.get("depth")
    below = "" if depth is None else f", {depth} link{'s' * (depth != 1)} from the nearest seed"
    if story.get("referrer"):
        return f"On {story['referrer']}{below}."
    return "As a seed." if depth == 0 else f"The page is not kept{below}."


def _visits(story: Mapping[str, Any]) -> Iterator[str]:
    attempts = story["attempts"]
    if not attempts:
        if story["seen"]:
            yield click.style(f"{'visits':<{_LABEL}}", dim=True) + "none"
        return
    shown = attempts[-_MOST_ATTEMPTS:]
    width = 2 + max(len("answer"), *(len(_answer(one)) for one in shown))
    head = f"{'visits':<{_LABEL}}{'time':<25}{'answer':<{width}}{'took':>8}{'size':>10}  worker"
    yield click.style(head, dim=True)
    if len(attempts) > len(shown):
        yield f"{'':<{_LABEL}}... {len(attempts) - len(shown):,} earlier ones: --json has all"
    for one in shown:
        took = f"{one['latency']:.3f} s" if one.get("latency") else ""
        weight = size(one["bytes"]) if one.get("bytes") else ""
        row = f"{when(one['at']):<25}{_answer(one):<{width}}{took:>8}{weight:>10}  {one.get('worker', '')}"
        yield f"{'':<{_LABEL}}{plain(row).rstrip()}"


def _answer(one: Mapping[str, Any]) -> str:
    if one.get("skipped"):
        return f"not sent ({one['skipped']})"
    return str(one["status"]) if one.get("status") else f"none ({one.get('error') or 'no answer'})"


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


_SIGNS = {"good": ("ok  ", "green"), "weak": ("weak", "yellow"), "bad": ("bad ", "red")}


@click.command()
@click.option(
    "--job",
    default="",
    metavar="NAME|DIR",
    shell_complete=job_names,
    help="Look at the disk where this job is, or will be.",
)
@click.option("--frontier", default="", envvar="GOSSAMER_FRONTIER", help="Look at this fleet's store, too.")
@click.option("--host", default="example.com", help="The name to look up.  [default: example.com]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@some_settings("concurrency", "nameservers", "resolve", "forget_seconds")
def doctor(job: str, frontier: str, host: str, as_json: bool, **options: Any) -> int:
    """Check Python, extras, limits, disk, names and a fleet's store, and say how to mend what is not well.

    Exits with 0 if all is well or only weak, and with 1 if something is bad.
    """
    if frontier and not is_fleet(frontier):
        raise ConfigError(
            f"{masked_address(frontier)} is no store of a fleet",
            hint="name redis://, postgresql://, mysql:// or folder:/path",
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
