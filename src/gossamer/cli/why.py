"""The command `why`: the story of one URL, in sentences or as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeVar

import click
import msgspec

from gossamer import job_folder, urls
from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.figures import size
from gossamer.cli.start import run
from gossamer.clock import SystemClock
from gossamer.cut import cut_words
from gossamer.errors import ConfigError, advice_for_kind
from gossamer.inspect.rules import when
from gossamer.inspect.why import tell
from gossamer.jobs.find import guess_name, open_job
from gossamer.logs import plain

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
    frontier = click.option(
        "--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER", help="Where the job is, if not here."
    )
    job = click.option(
        "--job",
        "name",
        default="",
        metavar="NAME|DIR",
        shell_complete=job_names,
        help="The job.  [default: that of the host, or the only one]",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    return job(frontier(as_json(command)))


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
        stories = [await tell(job, url, page=page, now=SystemClock().epoch()) for url in targets]
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
