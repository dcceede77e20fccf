"""Commands for tests and measurements: simweb, simulate, verify, bench."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from gossamer.cli.console import Exit, many, put, say
from gossamer.cli.plan import figures_path
from gossamer.cli.runner import run
from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.frontier.backends import backend_of, is_fleet, is_in_memory
from gossamer.lab.bench import measure_archive, measure_crawls, measure_store
from gossamer.lab.plan import Figures, StoreCost, write_figures
from gossamer.lab.simulation.run import Report
from gossamer.lab.simulation.run import simulate as run_seed
from gossamer.lab.simulation.scenario import FAULTS, draw
from gossamer.lab.simweb import features
from gossamer.lab.simweb.process import run_simweb
from gossamer.lab.simweb.server import SimServer
from gossamer.lab.simweb.site import WebPlan
from gossamer.lab.verify import VerifyOptions, VerifyResult, run_verification
from gossamer.logs import plain
from gossamer.redact import masked_address
from gossamer.settings import VERSION
from gossamer.testing.servers import RedisServer

_KINDS = "\n\n".join(
    f"\b\n{group}:\n" + "\n".join(f"  {name:<17} {meaning}" for name, meaning in members.items())
    for group, members in features.GROUPS.items()
)


@click.command(
    epilog=f"Kinds of sites. A group stands for all of its kinds, `all` for every kind except places.\n\n{_KINDS}"
)
@click.option("--port", default=0, show_default="a free one", help="Port of all hosts.")
@click.option("--sites", default=40, show_default=True, help="Number of hosts.")
@click.option("--pages", default=25, show_default=True, help="Pages per host; 0 for an endless web.")
@click.option("--seed", default=1, show_default=True, help="Random seed; the same seed generates the same web.")
@click.option("--bytes", "page_bytes", type=int, show_default="as on the real web", help="Bytes per page.")
@click.option("--links", type=int, show_default="as on the real web", help="Links per page.")
@click.option("--latency", default=0.0, show_default=True, help="Median latency in seconds.")
@click.option("--latency-sigma", default=0.0, show_default=True, help="Sigma of the log-normal latency.")
@click.option(
    "--names/--addresses",
    default=sys.platform != "linux",
    help="Host names s0.sim, s1.sim, ... on 127.0.0.1, or addresses 127.x.y.z (the default on Linux).",
)
@click.option(
    "--tls",
    "ca_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Serve https; write the CA certificate to FILE.",
)
@click.option(
    "--kinds",
    "kind_list",
    default="plain",
    show_default=True,
    help="Kinds of hosts, assigned in turn: A,B+C,D. See below.",
)
@click.option(
    "--log", "log_path", type=click.Path(path_type=Path, dir_okay=False), help="Log every request to this file."
)
@click.option("--quiet", is_flag=True, help="Print only the seed URLs.")
def simweb(ca_file: Path | None, log_path: Path | None, kind_list: str, quiet: bool, **values: Any) -> None:
    """Serve a simulated web on loopback for test crawls, until interrupted.

    Prints the seed URLs to stdout, one per line.
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
        message, _, option = text.replace("$.latency_seconds", "--latency").replace("$.", "--").partition(" - at ")
        wanted = message.replace("Expected `int`", "a whole number").replace("Expected `float`", "a number")
        reason = (
            f"{option.strip('`')} must be {wanted}" if wanted != message else f"{option.strip('`')} {message}".strip()
        )
        raise click.UsageError(reason) from None
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
        # The reader of the seeds has closed the pipe; keep serving.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not quiet:
        print(_advice(plan, log_path, ca_file), file=sys.stderr, flush=True)
    await stop.wait()
    await server.aclose()


def _advice(plan: WebPlan, log_path: Path | None, ca_file: Path | None) -> str:
    size = f"{plan.sites * plan.pages_per_site:,} pages" if plan.pages_per_site else "endless pages"
    options = ["--allow-private"]
    options += ["--resolve '*.sim=127.0.0.1'"] if plan.names else []
    options += [f"--ca-file {ca_file}"] if ca_file else []
    lines = [
        f"A simulated web: {plan.sites:,} host{'s' * (plan.sites != 1)}, {size}, port {plan.port}, seed {plan.seed}.",
        f"In another terminal:  gossamer crawl {plan.url(0)} {' '.join(options)}",
        f"All sites:            gossamer crawl --seeds FILE {' '.join(options)}   (FILE: stdout of this command)",
    ]
    lines += [f"Requests are logged to {log_path}."] if log_path else []
    return "\n".join([*lines, "Press Ctrl-C to stop."])


_FEW = 5


def integer(text: str) -> int:
    """Parse an integer, such as 1000 or 1e6; ValueError otherwise."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or not number.is_integer():
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="Number of seeds to run.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="First seed.")
@click.option("--workers", type=integer, default=0, help="Workers per run.  [default: 1 to 4]")
@click.option("--sites", type=integer, default=0, help="Sites per run.  [default: 2 to 6]")
@click.option("--pages", type=integer, default=0, help="Pages per site.  [default: 1 to 9]")
@click.option(
    "--fault", type=click.Choice(FAULTS), default=None, help="Fault to inject into a fleet on several servers."
)
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per seed.")
def simulate(
    seeds: int, seed: int, workers: int, sites: int, pages: int, fault: str | None, processes: int, as_json: bool
) -> int:
    """Test the engine in virtual time, on simulated webs with injected faults.

    The seed determines the faults: workers are killed, frozen, and disconnected, calls and writes are lost, clocks are
    wrong, and hosts are slow, dead, or flaky. With --fault, workers share a frontier on one to three servers, and
    servers lose their last seconds (forget), all workers are suspended (sleep), results are lost and repaired (disk),
    or shards move between servers (move). After each run the invariants are checked. A seed that violates one is
    printed with the command that reproduces it.
    """
    began, befell, pages_done, failed = time.monotonic(), Counter[str](), 0, 0
    sizes: dict[str, Any] = {"workers": workers, "sites": sites, "pages": pages, "fault": fault or ""}
    for report in _reports(range(seed, seed + seeds), processes, sizes):
        befell.update(report.befell)
        pages_done += report.pages
        if as_json:
            put(f"{json.dumps(report._asdict())}\n".encode())
        if report.violations:
            failed += 1
            given = "".join(f" --{name} {value}" for name, value in sizes.items() if value)
            say(f"seed {report.seed} fails: gossamer simulate --seeds 1 --seed {report.seed}{given}")
            for line in report.violations[:_FEW]:
                say(f"  {line}")
            if len(report.violations) > _FEW:
                say(f"  and {len(report.violations) - _FEW} more")
        elif seeds == 1:
            say(f"seed {report.seed} holds: digest {report.digest}, {report.seconds:,.0f} virtual seconds")
    what = ", ".join(f"{count:,} x {name}" for name, count in sorted(befell.items())) or "no faults"
    worlds = "1 seed" if seeds == 1 else f"{seeds:,} seeds"
    say(f"{worlds} in {time.monotonic() - began:.0f} s, {failed:,} failed; {pages_done:,} pages; {what}")
    import resource

    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    most_mib = max(usage.ru_maxrss for usage in usages) / 1024
    say(f"{cpu_seconds:,.0f} s of CPU time, at most {most_mib:,.0f} MiB of memory")
    return Exit.ERROR if failed else Exit.OK


def _reports(seeds: range, processes: int, sizes: dict[str, Any]) -> Iterator[Report]:
    one = partial(_one, sizes=sizes)
    if processes == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, seeds, chunksize=4)


def _one(seed: int, *, sizes: dict[str, Any]) -> Report:
    return run_seed(draw(seed, **sizes))


_Count = click.IntRange(min=1)


@click.command()
@click.option(
    "--frontier",
    default="",
    metavar="URL",
    envvar="GOSSAMER_FRONTIER",
    help="redis://, postgresql://, mysql://, or folder:/path.  [default: embedded]",
)
@click.option("--sink", "sinks", multiple=True, metavar="SINK", help="jsonl, warc, postgresql://...  [default: jsonl]")
@click.option("--workers", type=_Count, default=3, show_default=True, help="Worker processes.")
@click.option("--kills", type=click.IntRange(min=0), default=5, show_default=True, help="Number of kill -9.")
@click.option("--stops", type=click.IntRange(min=0), default=1, show_default=True,
              help="Number of times to suspend a worker past its lease.")  # fmt: skip
@click.option("--sites", type=click.IntRange(2, 2000), default=12, show_default=True, help="Sites of the web.")
@click.option("--pages", type=click.IntRange(2, 100_000), default=40, show_default=True, help="Pages per site.")
@click.option("--delay", type=click.FloatRange(0.01, 60), default=0.2, show_default=True,
              help="Seconds between two requests to a site.")  # fmt: skip
@click.option("--lease-seconds", type=click.FloatRange(1, 600), default=3.0, show_default=True,
              help="Seconds of the job's leases.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=1), default=300.0, show_default=True,
              help="Max seconds of the test.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed of the web and of the kills.")
@click.option("--job", default="", metavar="NAME", help="Name of the job.  [default: verify- and random letters]")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), metavar="DIR",
              help="Parent of the test's folder.  [default: the system's folder for temporary files]")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the job and its files, and print where they are.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(as_json: bool, job: str, sinks: tuple[str, ...], frontier: str, **given: Any) -> int:
    """Test your frontier and sink: crawl a simulated web, kill workers, and check for lost or duplicate pages.

    The check compares the request log of the simulated web, on loopback, with the contents of the sink. The job has its
    own name and is deleted at the end. Exit code 1: a page was lost or stored twice, a delay was violated, or more
    pages were fetched again than were in progress at the kills.
    """
    if is_in_memory(frontier):
        raise ConfigError(
            f"--frontier {masked_address(frontier)} does not survive a kill",
            hint="omit it for the embedded frontier, or use redis://, postgresql://, mysql://, or folder:/path",
        )
    options = VerifyOptions(
        job=job or f"verify-{secrets.token_hex(4)}",
        frontier=frontier if is_fleet(frontier) else "",
        sinks=sinks or ("jsonl",),
        **given,
    )
    if "/" in options.job:
        raise ConfigError("--job must be a name, not a folder", hint="choose the parent folder with --folder DIR")
    say(
        f"{options.sites:,} sites with {options.pages:,} pages each, {many(options.workers, 'worker')}, "
        f"{masked_address(options.frontier) or 'embedded'}, {', '.join(map(masked_address, options.sinks))}; "
        f"{many(options.kills, 'kill')} and {many(options.stops, 'stop')}, seed {options.seed}"
    )
    try:
        proof = run(_run_verification(options))
    except asyncio.CancelledError:
        return Exit.INTERRUPTED
    if as_json:
        put(msgspec.json.encode(_as_json(proof)) + b"\n")
    else:
        put("".join(f"{line}\n" for line in verify_lines(proof)).encode())
    return Exit.OK if proof.is_good else Exit.ERROR


async def _run_verification(options: VerifyOptions) -> VerifyResult:
    task = asyncio.current_task()
    assert task is not None
    # As with Ctrl-C: processes are stopped and files are deleted.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_verification(options, clock=SystemClock(), report=lambda line: say(plain(line)))


def verify_lines(proof: VerifyResult) -> Iterator[str]:
    """The result as lines."""
    found, options = proof.verdict, proof.options
    kinds = [event.kind for event in proof.injected]
    dealt = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) or "nothing was killed"
    yield f"{found.requests:,} requests for {found.pages:,} URLs in {proof.seconds:.1f} s; {dealt}"
    yield f"  lost           {len(found.lost):>6,}"
    yield f"  stored twice   {len(found.stored_twice):>6,}"
    yield f"  fetched again  {found.fetched_again:>6,}  of at most {found.again_at_most:,} in progress at the kills"
    least = f"; the smallest {found.least_gap:.4f} s" if found.least_gap is not None else ""
    yield f"  impolite       {len(found.impolite):>6,}  of {found.gaps:,} gaps{least}, the delay is {options.delay:g} s"
    yield f"  forbidden      {len(found.forbidden):>6,}"
    if found.late:
        yield f"  late           {found.late:>6,}  written by a suspended worker when it resumed"
    yield from (f"  lost: {plain(url)}" for url in found.lost[:_FEW])
    yield from (f"  stored {count} times: {plain(url)}" for url, count in [*found.stored_twice.items()][:_FEW])
    yield from (f"  impolite: {gap.site} after {gap.seconds:.4f} s" for gap in found.impolite[:_FEW])
    yield from (f"  forbidden: {plain(url)}" for url in [*found.forbidden][:_FEW])
    if proof.fault:
        yield f"  {plain(proof.fault)}"
    if len(proof.injected) < options.kills + options.stops and not proof.fault:
        yield "  the crawl finished before all faults were injected; raise --pages for a longer crawl"
    if proof.kept:
        yield f"  kept in {proof.kept}"
    yield "verified" if proof.is_good else "NOT verified"


def _as_json(proof: VerifyResult) -> dict[str, Any]:
    found, options = proof.verdict, proof.options
    return {
        "verified": proof.is_good,
        "fault": proof.fault,
        "seconds": round(proof.seconds, 3),
        "frontier": masked_address(options.frontier) or "sqlite",
        "sinks": list(map(masked_address, options.sinks)),
        "workers": options.workers,
        "delay": options.delay,
        "seed": options.seed,
        "blows": [event._asdict() for event in proof.injected],
        **msgspec.to_builtins(found),
    }


@click.command()
@click.option("--quick", is_flag=True, help="Run each measurement once, with less data; takes about a minute.")
@click.option("--frontier", "urls", multiple=True, metavar="URL",
              help="Also measure this frontier, with a temporary job; may be repeated.")  # fmt: skip
@click.option("--servers/--no-servers", default=True,
              help="Start Redis, PostgreSQL, and MariaDB if they are installed.  [default: servers]")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Output file.  [default: figures.json in the user's cache]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bench(quick: bool, urls: tuple[str, ...], servers: bool, out: Path | None, as_json: bool) -> int:
    """Benchmark pages, frontiers, and WARC archives on this machine.

    Measures CPU time per page, and CPU time and size of frontiers. `gossamer plan` uses the figures. All traffic stays
    on loopback.
    """
    for url in urls:
        if not is_fleet(url):
            raise ConfigError(
                f"--frontier {masked_address(url)}: no store of a fleet", hint="as in redis://host:6379/0"
            )
    began = time.monotonic()
    figures = measure(quick=quick, urls=urls, servers=servers)
    path = out or figures_path()
    write_figures(path, figures)
    if as_json:
        put(msgspec.json.encode(figures) + b"\n")
    else:
        put("".join(f"{line}\n" for line in bench_lines(figures)).encode())
    say(f"measured in {time.monotonic() - began:.0f} s, written to {path}; next: gossamer plan --pages 1e9 --every 30d")
    return Exit.OK


def measure(*, quick: bool, urls: tuple[str, ...], servers: bool) -> Figures:
    """Measure all figures. `quick` uses a quarter of the pages, and one run instead of five."""
    runs, many = (1, 1) if quick else (5, 4)
    say("crawling simulated webs")
    crawls = measure_crawls(pages=1600 * many, hosts=500 * many, runs=runs)
    say("writing an archive")
    archive_cpu, ratio = run(measure_archive(300 * many))
    frontiers: dict[str, StoreCost] = {}
    with ExitStack() as stack:
        for name, url, pid in _stores(urls, stack, servers=servers):
            say(f"frontier: {name}")
            frontiers[name] = measure_store(url, known=16_000 * many, pages=2400 * many, pid=pid)
    return Figures(
        measured_on=datetime.now(UTC).date().isoformat(),
        machine=machine(),
        version=VERSION,
        small_page_cpu_seconds=crawls.small_page,
        large_page_cpu_seconds=crawls.large_page,
        host_cpu_seconds=crawls.host,
        tls_cpu_seconds=crawls.tls,
        warc_cpu_seconds=archive_cpu,
        warc_ratio=ratio,
        frontiers=frontiers,
    )


def _stores(urls: tuple[str, ...], stack: ExitStack, *, servers: bool) -> Iterator[tuple[str, str, int]]:
    """Name, address, and process id of each frontier to measure; servers are started one at a time."""
    yield "sqlite", "", 0
    named = {}
    for url in urls:
        named[backend_of(url).name] = url
    yield from ((kind, url, 0) for kind, url in named.items())
    if not servers:
        return
    if "redis" not in named and RedisServer.is_there():
        server = stack.enter_context(RedisServer())
        yield "redis", server.url, server.pid
    # This import needs drivers that may not be installed.
    try:
        from gossamer.testing.servers import MariaServer, PostgresServer
    except ConfigError:
        return
    for kind, program in (("postgresql", PostgresServer), ("mysql", MariaServer)):
        if kind not in named and program.is_there():
            database = stack.enter_context(program())
            yield kind, database.url, database.pid


def machine() -> str:
    """Description of this machine."""
    model = platform.processor() or platform.machine()
    try:
        found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = " ".join(found[0].partition(":")[2].split()) if found else model
    except OSError:
        pass
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}"


def bench_lines(figures: Figures) -> Iterator[str]:
    """The figures as a table."""
    yield f"{figures.measured_on}, {figures.machine}, gossamer {figures.version}"
    for name, value in (
        ("page of 10 kB", figures.small_page_cpu_seconds),
        ("page of 40 kB", figures.large_page_cpu_seconds),
        ("a new host, on top", figures.host_cpu_seconds),
        ("its TLS, on top", figures.tls_cpu_seconds),
        ("40 kB into WARC", figures.warc_cpu_seconds),
    ):
        yield f"  {name:<20}{1000 * value:>8.3f} ms CPU"
    yield f"  {'WARC':<20}{figures.warc_ratio:>8.2f} bytes a byte"
    yield f"  {'frontier':<14}{'us CPU a page':>18}{'bytes a URL':>34}"
    yield f"  {'':<14}{'client':>9}{'server':>9}{'queued':>16}{'done':>9}{'again':>9}"
    for name, store in figures.frontiers.items():
        cpu = f"{1e6 * store.client_cpu_seconds:>9.0f}{1e6 * store.server_cpu_seconds:>9.0f}"
        sizes = f"{store.queued_bytes:>16.0f}{store.done_bytes:>9.0f}{store.again_bytes:>9.0f}"
        yield f"  {name:<14}{cpu}{sizes}  of {'memory' if store.in_memory else 'disk'}"
