"""The command `gossamer simweb`: a simulated web to crawl, on this machine only."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from gossamer.errors import ConfigError
from gossamer.sim import kinds
from gossamer.sim.child import run_simweb
from gossamer.sim.server import SimServer
from gossamer.sim.site import WebPlan

_KINDS = "\n\n".join(
    f"\b\n{group}:\n" + "\n".join(f"  {name:<17} {meaning}" for name, meaning in members.items())
    for group, members in kinds.GROUPS.items()
)


@click.command(epilog=f"Kinds of sites; a group is all of its kinds, `all` is every one but places.\n\n{_KINDS}")
@click.option("--port", default=0, show_default="a free one", help="Port of all hosts.")
@click.option("--sites", default=40, show_default=True, help="Number of hosts.")
@click.option("--pages", default=25, show_default=True, help="Pages of each host; 0 for a web without end.")
@click.option(
    "--seed", default=1, show_default=True, help="Another seed is another web; the same seed is the same web."
)
@click.option("--bytes", "page_bytes", type=int, show_default="as on the real web", help="Size of a page.")
@click.option("--links", type=int, show_default="as on the real web", help="Links on a page.")
@click.option("--latency", default=0.0, show_default=True, help="Median seconds before an answer.")
@click.option("--latency-sigma", default=0.0, show_default=True, help="Spread of the latency (log-normal).")
@click.option(
    "--names/--addresses",
    default=sys.platform != "linux",
    help="Hosts are s0.sim, s1.sim ... on 127.0.0.1, or addresses 127.x.y.z (the default on Linux).",
)
@click.option(
    "--tls", "ca_file", type=click.Path(path_type=Path), metavar="FILE", help="Serve https; write its authority here."
)
@click.option(
    "--kinds", "kind_list", default="plain", show_default=True, help="Kinds of hosts, in turn: A,B+C,D. See below."
)
@click.option(
    "--log", "log_path", type=click.Path(path_type=Path, dir_okay=False), help="Append every request to this file."
)
@click.option("--quiet", is_flag=True, help="Say nothing but the seed URLs.")
def simweb(ca_file: Path | None, log_path: Path | None, kind_list: str, quiet: bool, **values: Any) -> None:
    """Serve a simulated web on loopback until it is interrupted.

    The seed URLs go to stdout, one a line.
    """
    fields = {
        "port": values["port"],
        "sites": values["sites"],
        "pages_per_site": values["pages"],
        "seed": values["seed"],
        "page_bytes": values["page_bytes"],
        "links_per_page": values["links"],
        "latency_seconds": values["latency"],
        "latency_sigma": values["latency_sigma"],
        "names": values["names"],
        "tls": ca_file is not None,
        "kinds": [name.strip() for name in kind_list.split(",") if name.strip()],
    }
    try:
        plan = msgspec.convert(fields, WebPlan)
        run_simweb(_serve(plan, log_path=log_path, ca_file=ca_file, quiet=quiet))
    except msgspec.ValidationError as error:
        # msgspec ends with the field, which is the option's name but for these.
        text = (
            str(error)
            .replace("$.pages_per_site", "--pages")
            .replace("$.page_bytes", "--bytes")
            .replace("$.links_per_page", "--links")
        )
        said, _, option = text.replace("$.latency_seconds", "--latency").replace("$.", "--").partition(" - at ")
        wanted = said.replace("Expected `int`", "a whole number").replace("Expected `float`", "a number")
        told = f"{option.strip('`')} must be {wanted}" if wanted != said else f"{option.strip('`')} {said}".strip()
        raise click.UsageError(told) from None
    except ConfigError as error:
        raise click.UsageError(f"{error}\nhint: {error.hint}" if error.hint else str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None


async def _serve(plan: WebPlan, *, log_path: Path | None, ca_file: Path | None, quiet: bool) -> None:
    server = SimServer(plan, log_path=log_path, ca_file=ca_file)
    plan = await server.start()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        print("\n".join(plan.seeds()), flush=True)
    except BrokenPipeError:
        # Whoever read the seeds has enough of them; the web goes on. Nothing is left to fail at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not quiet:
        print(_advice(plan, log_path, ca_file), file=sys.stderr, flush=True)
    await stop.wait()
    await server.aclose()


def _advice(plan: WebPlan, log_path: Path | None, ca_file: Path | None) -> str:
    size = f"{plan.sites * plan.pages_per_site:,} pages" if plan.pages_per_site else "pages without end"
    options = ["--allow-private"]
    options += ["--resolve '*.sim=127.0.0.1'"] if plan.names else []
    options += [f"--ca-file {ca_file}"] if ca_file else []
    lines = [
        f"A simulated web: {plan.sites:,} host{'s' * (plan.sites != 1)}, {size}, port {plan.port}, seed {plan.seed}.",
        f"In another terminal:  gossamer crawl {plan.url(0)} {' '.join(options)}",
        f"Every site at once:   gossamer crawl --seeds FILE {' '.join(options)}   (FILE: what stdout got here)",
    ]
    lines += [f"Requests are logged to {log_path}."] if log_path else []
    return "\n".join([*lines, "Ctrl-C ends it."])
