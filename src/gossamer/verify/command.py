"""The command `verify`: proves on a user's own store and sink that nothing is lost, stored twice or impolite."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from gossamer.cli.exits import Exit
from gossamer.cli.figures import many
from gossamer.cli.start import run
from gossamer.cli.terminal import put, say
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.frontier.backends import is_fleet, is_in_memory
from gossamer.logs import plain
from gossamer.redact import masked_address
from gossamer.verify.run import Proof, ProofOptions, prove

_FEW = 5
_Count = click.IntRange(min=1)


@click.command()
@click.option(
    "--frontier",
    default="",
    metavar="URL",
    envvar="GOSSAMER_FRONTIER",
    help="redis://, postgresql://, mysql:// or folder:/path.  [default: embedded]",
)
@click.option("--sink", "sinks", multiple=True, metavar="SINK", help="jsonl, warc, postgresql://...  [default: jsonl]")
@click.option("--workers", type=_Count, default=3, show_default=True, help="Worker processes.")
@click.option("--kills", type=click.IntRange(min=0), default=5, show_default=True, help="Times to kill -9.")
@click.option("--stops", type=click.IntRange(min=0), default=1, show_default=True,
              help="Times to stop a worker past its lease.")  # fmt: skip
@click.option("--sites", type=click.IntRange(2, 2000), default=12, show_default=True, help="Sites of the web.")
@click.option("--pages", type=click.IntRange(2, 100_000), default=40, show_default=True, help="Pages of each.")
@click.option("--delay", type=click.FloatRange(0.01, 60), default=0.2, show_default=True, help="Between requests.")
@click.option("--lease-seconds", type=click.FloatRange(1, 600), default=3.0, show_default=True, help="Of the job.")
@click.option("--seconds", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Give up after them.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the web, and of what is killed when.")
@click.option("--job", default="", metavar="NAME", help="Name of the job.  [default: verify- and random letters]")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), metavar="DIR",
              help="Where its own folder is made.  [default: that for temporary files]")  # fmt: skip
@click.option("--keep", is_flag=True, help="Take nothing away at the end, and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verify(as_json: bool, job: str, sinks: tuple[str, ...], frontier: str, **options: Any) -> int:
    """Crawl a simulated web on this machine with your frontier and your sink, kill workers, and check the result.

    Judged by the log of the web, on loopback, and by what the sink holds at the end. The job has a name of its own,
    and is taken away. Exits with 1 if a page was lost or stored twice, a site was asked too soon, or more was fetched
    again than was in hand.
    """
    if is_in_memory(frontier):
        raise ConfigError(
            f"--frontier {masked_address(frontier)}: nothing that outlives a kill",
            hint="leave it away for the embedded one, or name redis://, postgresql://, mysql:// or folder:/path",
        )
    wish = ProofOptions(
        job=job or f"verify-{secrets.token_hex(4)}",
        frontier=frontier if is_fleet(frontier) else "",
        sinks=sinks or ("jsonl",),
        **options,
    )
    if "/" in wish.job:
        raise ConfigError("--job is a name here, not a folder", hint="--folder DIR says where its folder is made")
    say(
        f"{wish.sites:,} sites with {wish.pages:,} pages each, {many(wish.workers, 'worker')}, "
        f"{masked_address(wish.frontier) or 'embedded'}, {', '.join(map(masked_address, wish.sinks))}; "
        f"{many(wish.kills, 'kill')} and {many(wish.stops, 'stop')}, seed {wish.seed}"
    )
    try:
        proof = run(_prove(wish))
    except asyncio.CancelledError:
        return Exit.INTERRUPTED
    if as_json:
        put(msgspec.json.encode(_as_json(proof)) + b"\n")
    else:
        put("".join(f"{line}\n" for line in verify_lines(proof)).encode())
    return Exit.OK if proof.is_good else Exit.ERROR


async def _prove(wish: ProofOptions) -> Proof:
    task = asyncio.current_task()
    assert task is not None
    # As with Ctrl-C: what was started and made is taken away.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await prove(wish, clock=SystemClock(), tell=lambda line: say(plain(line)))


def verify_lines(proof: Proof) -> Iterator[str]:
    """The verdict as people read it."""
    found, wish = proof.verdict, proof.wish
    kinds = [blow.kind for blow in proof.blows]
    dealt = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) or "nothing was killed"
    yield f"{found.requests:,} requests for {found.pages:,} URLs in {proof.seconds:.1f} s; {dealt}"
    yield f"  lost           {len(found.lost):>6,}"
    yield f"  stored twice   {len(found.stored_twice):>6,}"
    yield f"  fetched again  {found.fetched_again:>6,}  of at most {found.again_at_most:,} that were in hand"
    least = f"; the smallest {found.least_gap:.4f} s" if found.least_gap is not None else ""
    yield f"  impolite       {len(found.impolite):>6,}  of {found.gaps:,} gaps{least}, the delay is {wish.delay:g} s"
    yield f"  forbidden      {len(found.forbidden):>6,}"
    if found.late:
        yield f"  late           {found.late:>6,}  written by a stopped worker in the moment it woke"
    yield from (f"  lost: {plain(url)}" for url in found.lost[:_FEW])
    yield from (f"  stored {count} times: {plain(url)}" for url, count in [*found.stored_twice.items()][:_FEW])
    yield from (f"  impolite: {gap.site} after {gap.seconds:.4f} s" for gap in found.impolite[:_FEW])
    yield from (f"  forbidden: {plain(url)}" for url in [*found.forbidden][:_FEW])
    if proof.fault:
        yield f"  {plain(proof.fault)}"
    if len(proof.blows) < wish.kills + wish.stops and not proof.fault:
        yield "  the crawl was over before all blows were dealt: more --pages make it longer"
    if proof.kept:
        yield f"  kept in {proof.kept}"
    yield "verified" if proof.is_good else "NOT verified"


def _as_json(proof: Proof) -> dict[str, Any]:
    found, wish = proof.verdict, proof.wish
    return {
        "verified": proof.is_good,
        "fault": proof.fault,
        "seconds": round(proof.seconds, 3),
        "frontier": masked_address(wish.frontier) or "sqlite",
        "sinks": list(map(masked_address, wish.sinks)),
        "workers": wish.workers,
        "delay": wish.delay,
        "seed": wish.seed,
        "blows": [blow._asdict() for blow in proof.blows],
        **msgspec.to_builtins(found),
    }
