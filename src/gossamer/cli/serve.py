"""The command `serve`: starts the REST API and the dashboard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from gossamer import logs
from gossamer.cli.console import Exit, say
from gossamer.cli.options import Sectioned, given, job_names, notice_options, settings_options
from gossamer.cli.runner import read_settings, run
from gossamer.errors import ConfigError
from gossamer.extras import unusable
from gossamer.frontier.backends import is_fleet
from gossamer.redact import masked_address


@click.command(cls=Sectioned)
@click.argument("jobs", nargs=-1, metavar="[JOB...]", shell_complete=job_names)
@click.option("--crawls", type=click.Path(path_type=Path, file_okay=False), default=Path("crawls"),
              help="Folder with the jobs of this machine.  [default: crawls]")  # fmt: skip
@click.option("--frontier", default="", metavar="URL", envvar="GOSSAMER_FRONTIER",
              help="Address of a frontier, to serve the jobs of a fleet.")  # fmt: skip
@click.option(
    "--host", default="127.0.0.1", help="Address to listen on; others than loopback need a token.  [default: 127.0.0.1]"
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8090, help="Port; 0 picks a free one. [default: 8090]")
@click.option("--only", type=click.Choice(["tasks", "pages"]), default=None, help="Serve only this part of the API.")
@click.option("--read-token-file", type=click.Path(path_type=Path, dir_okay=False),
              help="File with the token for read access.")  # fmt: skip
@click.option("--write-token-file", type=click.Path(path_type=Path, dir_okay=False),
              help="File with the token for full access.")  # fmt: skip
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME",
              help="Host name to accept in requests; may be repeated.")  # fmt: skip
@click.option("--offer", "offers", multiple=True, metavar="NAME=FILE.py",
              help="Spider that submitted jobs may use; may be repeated.")  # fmt: skip
@click.option("--most", type=click.IntRange(1, 1000), default=8, help="Max concurrent crawls to start.  [default: 8]")
@click.option("--rate", type=click.FloatRange(1, 100_000), default=100.0,
              help="Max requests per second from one address.  [default: 100]")  # fmt: skip
@notice_options
@settings_options
def serve(
    jobs: tuple[str, ...],
    crawls: Path,
    frontier: str,
    host: str,
    port: int,
    only: Any,
    read_token_file: Path | None,
    write_token_file: Path | None,
    allow_hosts: tuple[str, ...],
    offers: tuple[str, ...],
    most: int,
    rate: float,
    notify: tuple[str, ...],
    stalled_after: float,
    errors_above: float,
    **options: Any,
) -> int:
    """Start the REST API and the dashboard for the jobs of this machine, or of a fleet.

    \b
    gossamer serve                                   then open the printed URL
    gossamer serve --frontier redis://host:6379/0    the jobs of a fleet

    Settings are the defaults of submitted jobs; docs/reference/api.md lists those that a submission may change. JOB
    adds jobs of a fleet that its frontier does not list. Tokens can also be set in GOSSAMER_READ_TOKEN and
    GOSSAMER_WRITE_TOKEN.
    """
    try:
        from gossamer.service.security import VARIABLES, read_tokens
        from gossamer.service.server import ServerOptions, check_address, parse_offers
        from gossamer.service.server import serve as run_service
    except ImportError as missing:
        raise unusable("service", "the service", missing) from missing
    logs.start()
    if frontier and not is_fleet(frontier):
        raise ConfigError(
            f"--frontier {masked_address(frontier)} is not the address of a fleet's frontier",
            hint="for example: --frontier redis://host:6379/0",
        )
    tokens = read_tokens(os.environ, {"read": read_token_file, "write": write_token_file})
    for variable in VARIABLES.values():
        # Child processes must not inherit the tokens.
        os.environ.pop(variable, None)
    check_address(host, tokens)
    if "://" in "".join(jobs):
        raise ConfigError("JOB must be a name, not a URL", hint="gossamer serve --frontier URL JOB...")
    chosen = ServerOptions(
        crawls=crawls,
        frontier=frontier,
        jobs=jobs,
        host=host,
        port=port,
        only=only or "",
        allow_hosts=allow_hosts,
        spiders=parse_offers(offers),
        most=most,
        rate=rate,
        notify=notify,
        stalled_after=stalled_after,
        errors_above=errors_above,
    )
    base = read_settings(None, given(options))
    run(run_service(chosen, base, tokens, on_ready=_print_address))
    return Exit.OK


def _print_address(address: str) -> None:
    say(f"serving on {address}")
