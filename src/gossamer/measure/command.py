"""The command `bench`: measures what a crawl costs on this machine, for `gossamer plan`."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from gossamer.cli.exits import Exit
from gossamer.cli.start import run
from gossamer.cli.terminal import put, say
from gossamer.errors import ConfigError
from gossamer.frontier.backends import backend_of, is_fleet
from gossamer.measure.archive import measure_archive
from gossamer.measure.crawls import measure_crawls
from gossamer.measure.stores import measure_store
from gossamer.plan.command import figures_path
from gossamer.plan.figures import Figures, StoreCost, write_figures
from gossamer.redact import masked_address
from gossamer.settings import VERSION
from gossamer.testing.servers import RedisServer


@click.command()
@click.option("--quick", is_flag=True, help="Measure each thing once and briefly: about a minute.")
@click.option("--frontier", "urls", multiple=True, metavar="URL",
              help="Measure this store too, in a job of its own; may be repeated.")  # fmt: skip
@click.option("--servers/--no-servers", default=True,
              help="Start Redis, PostgreSQL and MariaDB where they are installed.  [default: servers]")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the figures there.  [default: figures.json in the user's cache]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bench(quick: bool, urls: tuple[str, ...], servers: bool, out: Path | None, as_json: bool) -> int:
    """Measure CPU of a page, cost and size of frontiers, and an archive on this machine.

    `gossamer plan` computes with what it writes. Traffic stays on loopback.
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
    """All figures; a quick measure has a fourth of the pages, and one run in place of five."""
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
    """Name, address and process of the stores to measure, each started when it is its turn."""
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
    # Loads drivers that may not be there.
    try:
        from gossamer.testing.sqlservers import MariaServer, PostgresServer
    except ConfigError:
        return
    for kind, program in (("postgresql", PostgresServer), ("mysql", MariaServer)):
        if kind not in named and program.is_there():
            database = stack.enter_context(program())
            yield kind, database.url, database.pid


def machine() -> str:
    """This machine, in words."""
    model = platform.processor() or platform.machine()
    try:
        found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = " ".join(found[0].partition(":")[2].split()) if found else model
    except OSError:
        pass
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}"


def bench_lines(figures: Figures) -> Iterator[str]:
    """The figures as people read them."""
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
