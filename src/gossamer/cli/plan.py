"""The command `plan`: estimates the machines, storage, and cost of a crawl."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gossamer.cli.console import Exit, put
from gossamer.errors import ConfigError
from gossamer.lab.plan import (
    KEY_BYTES,
    CrawlPlan,
    Figures,
    Hosts,
    MachineSize,
    Part,
    Prices,
    Requirements,
    bits,
    byte_count,
    count,
    dollars,
    large,
    read_figures,
    reference,
    seconds,
    size,
    span,
    usual_hosts,
    what_if,
)

_RELIEF: Mapping[Part, str] = {
    "politeness": "more machines do not help: agree on a shorter delay with large sites, or allow more time",
    "worker cores": "reduce CPU per page: smaller pages, fewer links followed",
    "worker memory": "a shorter delay reduces the number of concurrent sites",
    "bandwidth": "faster network cards, or servers that compress",
    "frontier cpu": "more shards",
    "frontier space": "fewer known URLs, or a frontier on disk",
    "storage": "store less of each page, or fewer pages",
    "traffic": "cannot be reduced: requests have to be sent",
}


def lines(needs: Requirements, figures: Figures, source: str) -> Iterator[str]:
    """The plan as lines; `source` names the origin of the figures."""
    found, *_ = (row.plan for row in what_if(needs, figures))
    often = f"once within {span(needs.period_seconds)}" if needs.once else f"every {span(needs.period_seconds)}"
    yield (
        f"{large(needs.pages)} pages of {size(needs.page_bytes)} {often}, "
        f"one request per site every {span(needs.delay)}"
    )
    yield f"figures: {source}, {figures.measured_on}, {figures.machine}"
    yield ""
    for name, text in _parts(needs, figures, found):
        yield f"{name:<12}{text}"
    yield ""
    yield f"bottleneck  {found.bottleneck}: {_RELIEF[found.bottleneck]}"
    if found.bottleneck != found.next_bottleneck:
        yield f"costliest   {found.next_bottleneck}: {_RELIEF[found.next_bottleneck]}"
    yield ""
    yield from _table(needs, figures)


def _parts(needs: Requirements, figures: Figures, found: CrawlPlan) -> Iterator[tuple[str, str]]:
    store = figures.frontiers[needs.store]
    hosts = Hosts(needs.pages, min(needs.hosts, needs.pages))
    yield (
        "demand",
        (
            f"{large(found.pages_per_second)} pages/s, {large(found.requests_per_second)} requests/s, "
            f"{bits(found.received_bits_per_second)} received"
        ),
    )
    yield (
        "sites",
        (
            f"{large(hosts.number)} hosts with {large(needs.pages / hosts.number)} pages each on average, "
            f"{large(hosts.largest)} on the largest; {large(found.sites_at_once)} at the same time"
        ),
    )
    above = f": {large(found.large_hosts)} hosts have more" if found.large_hosts >= 1 else ", and no host has more"
    yield (
        "politeness",
        (
            f"at most {large(found.most_of_a_host)} pages of a host in that time{above}; "
            f"{100 * found.polite_share:.1f} % of the pages can be fetched"
        ),
    )
    yield (
        "workers",
        (
            f"{_many(found.workers, 'machine')} ({_machine(needs.worker.cores, needs.worker.memory_bytes)}, "
            f"{bits(needs.worker.bits_per_second)}), {large(found.cores)} cores busy; {_needs(found.worker_needs)}"
        ),
    )
    per_server = found.known_urls * KEY_BYTES / found.servers
    room = "memory" if store.in_memory else "disk"
    yield (
        "frontier",
        (
            f"{needs.store}: {_many(found.servers, 'server')} "
            f"({_machine(needs.server.cores, needs.server.memory_bytes)}), "
            f"{found.shards:,} shards, {size(found.frontier_bytes)} of {room}; {_needs(found.server_needs)}"
        ),
    )
    yield (
        "known URLs",
        (
            f"{large(found.known_urls)}; their keys alone are {size(found.known_urls * KEY_BYTES)}, "
            f"{size(per_server)} a server"
        ),
    )
    kept = f"{size(found.stored_bytes)} as WARC ({figures.warc_ratio:.2f})" if needs.archive else "not archived"
    yield "storage", f"{size(found.raw_bytes)} a pass, {kept}"
    if needs.regions > 1:
        crossing = bits(found.between_regions_bits_per_second)
        yield (
            "regions",
            (
                f"{needs.regions}, each about {found.workers / needs.regions:,.0f} workers and "
                f"{found.servers / needs.regions:,.0f} servers; {crossing} of links between them"
            ),
        )
    costs = ", ".join(f"{name} {dollars(value)}" for name, value in found.dollars_a_month.items())
    million = found.cost / (found.pages_per_second * 730 * 3600) * 1e6
    yield (
        "cost",
        f"{dollars(found.cost)} per month ({costs}), ${million:,.2f} per million pages; prices of {_priced(needs)}",
    )


def _priced(needs: Requirements) -> str:
    return f"{needs.prices.as_of}, rounded"


def _machine(cores: float, memory_bytes: float) -> str:
    return f"{cores:g} cores, {size(memory_bytes)}"


def _many(count: float, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def _needs(needs: Mapping[Part, float]) -> str:
    parts = ((name.split()[-1], value) for name, value in needs.items())
    return ", ".join(f"{name} need{'s' * (not name.endswith('s'))} {large(max(value, 0.01))}" for name, value in parts)


def _table(needs: Requirements, figures: Figures) -> Iterator[str]:
    yield f"{'if':<24}{'crawlable':>11}{'workers':>9}{'servers':>9}{'stored':>9}{'per month':>10}  costliest"
    for change, found in what_if(needs, figures):
        share = f"{100 * found.polite_share:.1f} %"
        yield (
            f"{change:<24}{share:>11}{found.workers:>9,}{found.servers:>9,}{size(found.stored_bytes):>9}"
            f"{dollars(found.cost):>10}  {found.next_bottleneck}"
        )


REFERENCE = "reference"
Command = TypeVar("Command", bound=Callable[..., Any])
_PRICES = Prices()


def _reader(read: Callable[[str], float]) -> Any:
    return lambda _context, _option, value: read(value) if value is not None else None


def _count(flag: str, default: str | None, text: str) -> Callable[[Command], Command]:
    return click.option(flag, default=default, show_default=default, callback=_reader(count), help=text)


def _bytes(flag: str, default: str, text: str) -> Callable[[Command], Command]:
    return click.option(flag, default=default, show_default=default, callback=_reader(byte_count), help=text)


def _seconds(flag: str, default: str, text: str) -> Callable[[Command], Command]:
    return click.option(flag, default=default, show_default=default, callback=_reader(seconds), help=text)


def _price(flag: str, default: float, text: str) -> Callable[[Command], Command]:
    return click.option(flag, type=click.FloatRange(min=0), default=default, show_default=True, help=text)


@click.command()
@_count("--pages", "1e9", "Pages to crawl: 1e12, 5M, 2bn.")
@_seconds("--every", "7d", "Period in which each page is fetched: 7d, 36h.")
@click.option("--once", is_flag=True, help="Fetch each page once in that period, without revisits.")
@_bytes("--page-size", "35kB", "Mean bytes per page.")
@_count("--hosts", None, "Number of hosts.  [default: by the distribution of the public web]")
@_seconds("--delay", "1s", "Delay between two requests to a site.")
@_seconds("--latency", "500ms", "Mean latency of a request.")
@click.option("--store", default="redis", show_default=True, help="Frontier: redis, postgresql, or mysql.")
@click.option("--regions", type=click.IntRange(1, 1000), default=1, show_default=True, help="Regions with workers.")
@click.option("--no-archive", is_flag=True, help="Store no pages, only extracted data.")
@click.option("--compression", type=click.FloatRange(0.01, 2), help="Stored bytes per byte.  [default: as measured]")
@click.option("--wire-ratio", type=click.FloatRange(0.01, 1), default=1.0, show_default=True,
              help="Bytes on the wire per byte; below 1 if servers compress.")  # fmt: skip
@click.option("--busy", type=click.FloatRange(0.05, 1), default=0.6, show_default=True,
              help="Target load of machines.")  # fmt: skip
@click.option("--cores", type=click.FloatRange(min=1), default=16, show_default=True, help="Cores per machine.")
@_bytes("--worker-memory", "64GB", "Memory per worker machine.")
@_bytes("--server-memory", "128GB", "Memory per frontier server.")
@_bytes("--server-disk", "8TB", "Disk per frontier server.")
@click.option("--gigabits", type=click.FloatRange(min=0.01), default=10.0, show_default=True,
              help="Network bandwidth per machine, in Gbit/s.")  # fmt: skip
@_price("--core-price", _PRICES.core_hour, "Dollars per core and hour.")
@_price("--memory-price", _PRICES.memory_gb_hour, "Dollars per GB of memory and hour.")
@_price("--disk-price", _PRICES.disk_tb_month, "Dollars per TB of server disk and month.")
@_price("--storage-price", _PRICES.storage_tb_month, "Dollars per TB of storage and month.")
@_price("--sent-price", _PRICES.sent_gb, "Dollars per GB sent; received traffic is free.")
@click.option("--figures", "source", default="", metavar="FILE",
              help="Output of `gossamer bench`, or `reference`.  [default: last bench, or reference]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the plan and its variants as JSON.")
def plan(source: str, as_json: bool, **options: Any) -> int:
    """Estimate the machines, storage, and cost of a crawl, and its bottleneck.

    The estimate uses measured figures (`gossamer bench`), published statistics of the web, and the assumptions in the
    options. The table shows how the result changes if an assumption is wrong.
    """
    figures, origin = chosen_figures(source)
    if options["compression"] is not None:
        figures = msgspec.structs.replace(figures, warc_ratio=options["compression"])
    if options["store"] not in figures.frontiers:
        raise ConfigError(
            f"--store {options['store']}: no figures (only {', '.join(figures.frontiers)})",
            hint="measure it with: gossamer bench --frontier URL; or use --figures reference",
        )
    needs = _requirements(options)
    if as_json:
        variants = {row.change: row.plan._asdict() for row in what_if(needs, figures)}
        put(msgspec.json.encode({"wish": needs, "figures": figures, "source": origin, "plans": variants}) + b"\n")
    else:
        put("".join(f"{line}\n" for line in lines(needs, figures, origin)).encode())
    return Exit.OK


def _requirements(options: dict[str, Any]) -> Requirements:
    prices = Prices(
        core_hour=options["core_price"],
        memory_gb_hour=options["memory_price"],
        disk_tb_month=options["disk_price"],
        storage_tb_month=options["storage_price"],
        sent_gb=options["sent_price"],
    )
    speed = options["gigabits"] * 1e9
    return Requirements(
        pages=options["pages"],
        period_seconds=options["every"],
        page_bytes=options["page_size"],
        hosts=options["hosts"] or usual_hosts(options["pages"]),
        delay=options["delay"],
        latency_seconds=options["latency"],
        once=options["once"],
        store=options["store"],
        regions=options["regions"],
        archive=not options["no_archive"],
        wire_ratio=options["wire_ratio"],
        busy_share=options["busy"],
        worker=MachineSize(cores=options["cores"], memory_bytes=options["worker_memory"], bits_per_second=speed),
        server=MachineSize(
            cores=options["cores"],
            memory_bytes=options["server_memory"],
            bits_per_second=speed,
            disk_bytes=options["server_disk"],
        ),
        prices=prices,
    )


def chosen_figures(source: str) -> tuple[Figures, str]:
    """The figures to use, and their source."""
    if source == REFERENCE:
        return reference(), "reference"
    if source:
        return read_figures(Path(source)), source
    path = figures_path()
    return (read_figures(path), "measured here") if path.exists() else (reference(), "reference")


def figures_path() -> Path:
    """The file in the user's cache to which `bench` writes its figures."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "gossamer" / "figures.json"
