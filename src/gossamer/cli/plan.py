"""The command `plan`: what a larger crawl needs."""

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
    "politeness": "no machine helps: ask large sites for a shorter delay, or take longer",
    "worker cores": "less CPU a page: smaller pages, fewer links followed",
    "worker memory": "a shorter delay keeps fewer sites in hand",
    "bandwidth": "faster network cards, or servers that compress",
    "frontier cpu": "more shards",
    "frontier space": "fewer URLs known, or a store on disks",
    "storage": "keep less of each page, or fewer pages",
    "traffic": "nothing: requests have to be sent",
}


def lines(wish: Requirements, figures: Figures, source: str) -> Iterator[str]:
    """The whole plan; `source` says where the figures are from."""
    found, *_ = (row.plan for row in what_if(wish, figures))
    often = f"once within {span(wish.period_seconds)}" if wish.once else f"every {span(wish.period_seconds)}"
    yield f"{large(wish.pages)} pages of {size(wish.page_bytes)} {often}, one request a site each {span(wish.delay)}"
    yield f"figures: {source}, {figures.measured_on}, {figures.machine}"
    yield ""
    for name, text in _parts(wish, figures, found):
        yield f"{name:<12}{text}"
    yield ""
    yield f"bottleneck  {found.bottleneck}: {_RELIEF[found.bottleneck]}"
    if found.bottleneck != found.next_bottleneck:
        yield f"dearest     {found.next_bottleneck}: {_RELIEF[found.next_bottleneck]}"
    yield ""
    yield from _table(wish, figures)


def _parts(wish: Requirements, figures: Figures, found: CrawlPlan) -> Iterator[tuple[str, str]]:
    store = figures.frontiers[wish.store]
    hosts = Hosts(wish.pages, min(wish.hosts, wish.pages))
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
            f"{large(hosts.number)} hosts with {large(wish.pages / hosts.number)} pages each on average, "
            f"{large(hosts.largest)} on the largest; {large(found.sites_at_once)} in hand at a time"
        ),
    )
    above = f": {large(found.large_hosts)} hosts have more" if found.large_hosts >= 1 else ", and no host has more"
    yield (
        "politeness",
        (
            f"at most {large(found.most_of_a_host)} pages of a host in that time{above}; "
            f"{100 * found.polite_share:.1f} % of the pages can be had"
        ),
    )
    yield (
        "workers",
        (
            f"{_many(found.workers, 'machine')} ({_machine(wish.worker.cores, wish.worker.memory_bytes)}, "
            f"{bits(wish.worker.bits_per_second)}), {large(found.cores)} cores busy; {_needs(found.worker_needs)}"
        ),
    )
    per_server = found.known_urls * KEY_BYTES / found.servers
    room = "memory" if store.in_memory else "disk"
    yield (
        "frontier",
        (
            f"{wish.store}: {_many(found.servers, 'server')} "
            f"({_machine(wish.server.cores, wish.server.memory_bytes)}), "
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
    kept = f"{size(found.stored_bytes)} as WARC ({figures.warc_ratio:.2f})" if wish.archive else "not archived"
    yield "storage", f"{size(found.raw_bytes)} a pass, {kept}"
    if wish.regions > 1:
        crossing = bits(found.between_regions_bits_per_second)
        yield (
            "regions",
            (
                f"{wish.regions}, each about {found.workers / wish.regions:,.0f} workers and "
                f"{found.servers / wish.regions:,.0f} servers; {crossing} of links between them"
            ),
        )
    costs = ", ".join(f"{name} {dollars(value)}" for name, value in found.dollars_a_month.items())
    million = found.cost / (found.pages_per_second * 730 * 3600) * 1e6
    yield "cost", f"{dollars(found.cost)} a month ({costs}), ${million:,.2f} a million pages; prices of {_priced(wish)}"


def _priced(wish: Requirements) -> str:
    return f"{wish.prices.as_of}, round ones"


def _machine(cores: float, memory_bytes: float) -> str:
    return f"{cores:g} cores, {size(memory_bytes)}"


def _many(count: float, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def _needs(needs: Mapping[Part, float]) -> str:
    parts = ((name.split()[-1], value) for name, value in needs.items())
    return ", ".join(f"{name} need{'s' * (not name.endswith('s'))} {large(max(value, 0.01))}" for name, value in parts)


def _table(wish: Requirements, figures: Figures) -> Iterator[str]:
    yield f"{'if':<24}{'can be had':>11}{'workers':>9}{'servers':>9}{'stored':>9}{'a month':>10}  dearest"
    for change, found in what_if(wish, figures):
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
@_seconds("--every", "7d", "Time in which each of them is to be fetched: 7d, 36h.")
@click.option("--once", is_flag=True, help="Fetch each page once in that time, and not again.")
@_bytes("--page-size", "35kB", "Of a page.")
@_count("--hosts", None, "Hosts that have the pages.  [default: as on the web as it is known]")
@_seconds("--delay", "1s", "Between two requests to a site.")
@_seconds("--latency", "500ms", "From a request to its answer, on average.")
@click.option("--store", default="redis", show_default=True, help="Frontier: redis, postgresql or mysql.")
@click.option("--regions", type=click.IntRange(1, 1000), default=1, show_default=True, help="Places with workers.")
@click.option("--no-archive", is_flag=True, help="Keep no pages, only what is extracted from them.")
@click.option("--compression", type=click.FloatRange(0.01, 2), help="Bytes stored for a byte.  [default: as measured]")
@click.option("--wire-ratio", type=click.FloatRange(0.01, 1), default=1.0, show_default=True,
              help="Bytes on the wire for a byte: less than 1 where servers compress.")  # fmt: skip
@click.option("--busy", type=click.FloatRange(0.05, 1), default=0.6, show_default=True, help="Load of machines.")
@click.option("--cores", type=click.FloatRange(min=1), default=16, show_default=True, help="Of a machine.")
@_bytes("--worker-memory", "64GB", "Of a machine with workers.")
@_bytes("--server-memory", "128GB", "Of a machine with a frontier.")
@_bytes("--server-disk", "8TB", "Of a machine with a frontier.")
@click.option("--gigabits", type=click.FloatRange(min=0.01), default=10.0, show_default=True,
              help="Network of a machine, in Gbit/s.")  # fmt: skip
@_price("--core-price", _PRICES.core_hour, "Dollars for a core and an hour.")
@_price("--memory-price", _PRICES.memory_gb_hour, "Dollars for a GB of memory and an hour.")
@_price("--disk-price", _PRICES.disk_tb_month, "Dollars for a TB of a server's disk and a month.")
@_price("--storage-price", _PRICES.storage_tb_month, "Dollars for a TB stored and a month.")
@_price("--sent-price", _PRICES.sent_gb, "Dollars for a GB sent; what is received is free.")
@click.option("--figures", "source", default="", metavar="FILE",
              help="File of `gossamer bench`, or `reference`.  [default: the last bench, else reference]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the plan and its variants as JSON.")
def plan(source: str, as_json: bool, **options: Any) -> int:
    """Compute machines, memory, traffic, storage and cost of a crawl, and name its bottleneck.

    From figures that were measured (`gossamer bench`), the shape of the web as it is published, and assumptions that
    are options. The table shows what changes if one of them is wrong.
    """
    figures, told = chosen_figures(source)
    if options["compression"] is not None:
        figures = msgspec.structs.replace(figures, warc_ratio=options["compression"])
    if options["store"] not in figures.frontiers:
        raise ConfigError(
            f"--store {options['store']}: there are no figures of it ({', '.join(figures.frontiers)})",
            hint="gossamer bench --frontier URL measures it; or --figures reference",
        )
    wish = _requirements(options)
    if as_json:
        variants = {row.change: row.plan._asdict() for row in what_if(wish, figures)}
        put(msgspec.json.encode({"wish": wish, "figures": figures, "source": told, "plans": variants}) + b"\n")
    else:
        put("".join(f"{line}\n" for line in lines(wish, figures, told)).encode())
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
    """The figures to plan with, and where they are from."""
    if source == REFERENCE:
        return reference(), "reference"
    if source:
        return read_figures(Path(source)), source
    path = figures_path()
    return (read_figures(path), "measured here") if path.exists() else (reference(), "reference")


def figures_path() -> Path:
    """Where `bench` leaves its figures: in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "gossamer" / "figures.json"
