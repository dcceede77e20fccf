"""The command `plan`: what a crawl of any size takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gossamer.cli.exits import Exit
from gossamer.cli.terminal import put
from gossamer.errors import ConfigError
from gossamer.plan import units
from gossamer.plan.figures import Figures, read_figures, reference
from gossamer.plan.needs import MachineSize, Prices, Requirements
from gossamer.plan.text import lines
from gossamer.plan.web import usual_hosts
from gossamer.plan.whatif import rows

REFERENCE = "reference"
Command = TypeVar("Command", bound=Callable[..., Any])
_PRICES = Prices()


def _reader(read: Callable[[str], float]) -> Any:
    return lambda _context, _option, value: read(value) if value is not None else None


def _count(flag: str, default: str | None, text: str) -> Callable[[Command], Command]:
    return click.option(flag, default=default, show_default=default, callback=_reader(units.count), help=text)


def _bytes(flag: str, default: str, text: str) -> Callable[[Command], Command]:
    return click.option(flag, default=default, show_default=default, callback=_reader(units.byte_count), help=text)


def _seconds(flag: str, default: str, text: str) -> Callable[[Command], Command]:
    return click.option(flag, default=default, show_default=default, callback=_reader(units.seconds), help=text)


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
    wish = _wish(options)
    if as_json:
        variants = {row.change: row.plan._asdict() for row in rows(wish, figures)}
        put(msgspec.json.encode({"wish": wish, "figures": figures, "source": told, "plans": variants}) + b"\n")
    else:
        put("".join(f"{line}\n" for line in lines(wish, figures, told)).encode())
    return Exit.OK


def _wish(options: dict[str, Any]) -> Requirements:
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
