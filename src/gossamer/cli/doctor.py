"""The command that looks at a machine and a store before they are trusted with a long crawl."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gossamer import job_folder, urls
from gossamer.cli.completion import job_names
from gossamer.cli.exits import Exit
from gossamer.cli.options import some_settings
from gossamer.cli.start import read_settings, run
from gossamer.cli.terminal import put
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.frontier.backends import check, is_fleet
from gossamer.inspect.doctor import disk, extras, files, memory, names, python
from gossamer.logs import plain
from gossamer.model import Finding
from gossamer.redact import masked_address
from gossamer.settings import Settings

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
