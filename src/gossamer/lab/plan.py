"""Capacity plans: what a larger crawl needs, from measured costs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gossamer.errors import ConfigError

SMALL_BYTES, LARGE_BYTES = 10_000, 40_000
"""The pages that crawls are measured with."""


class StoreCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a frontier costs: CPU of one page with its links, and bytes of a URL."""

    client_cpu_seconds: float
    server_cpu_seconds: float
    queued_bytes: float
    done_bytes: float
    again_bytes: float
    """Of one that is done and waits for its next visit."""
    in_memory: bool
    """Whether these bytes are of memory, or of a disk."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """CPU is user and system time of our processes, in seconds of one core."""

    measured_on: str
    machine: str
    version: str
    small_page_cpu_seconds: float
    """The whole crawl of one page of 10 kB, with the embedded frontier, without TLS and without an archive."""
    large_page_cpu_seconds: float
    """The same with 40 kB."""
    host_cpu_seconds: float
    """What the first page of a host takes more: its name, its connection, its robots.txt."""
    tls_cpu_seconds: float
    """What a new connection takes more with TLS."""
    warc_cpu_seconds: float
    """Writing 40 kB into an archive."""
    warc_ratio: float
    """Bytes of the archive for a byte of a page."""
    frontiers: dict[str, StoreCost]

    def page_cpu_seconds(self, page_bytes: float) -> float:
        """CPU of a page of this size, on the line through the two that were measured."""
        slope = max(0.0, self.large_page_cpu_seconds - self.small_page_cpu_seconds) / (LARGE_BYTES - SMALL_BYTES)
        return max(self.small_page_cpu_seconds + slope * (page_bytes - SMALL_BYTES), 0.2 * self.small_page_cpu_seconds)

    def archive_cpu_seconds(self, page_bytes: float) -> float:
        """CPU of keeping a page of this size."""
        return self.warc_cpu_seconds * page_bytes / LARGE_BYTES


def reference() -> Figures:
    """The figures that come with this version; their own words say when and where they were measured."""
    return msgspec.json.decode(resources.files("gossamer.lab").joinpath("reference.json").read_bytes(), type=Figures)


def read_figures(path: Path) -> Figures:
    """What `gossamer bench` has written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="gossamer bench --quick --out FILE writes it") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}", hint="measure again: gossamer bench --quick --out FILE") from None


def write_figures(path: Path, figures: Figures) -> None:
    """Write them, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    temporary.replace(path)


_BYTES = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 365.25 * 86_400}
_COUNTS = {"": 1, "k": 1e3, "m": 1e6, "bn": 1e9, "b": 1e9, "tn": 1e12, "t": 1e12}


def count(text: str) -> float:
    """`1e12`, `1,000,000`, `5M`, `2bn`."""
    return _read(text, _COUNTS, "a number", "as in 1e12, 5M or 2bn")


def byte_count(text: str) -> float:
    """`10kB`, `1.5MB`, `40000`."""
    return _read(text, _BYTES, "a size", "as in 10kB, 1.5MB or 40000")


def seconds(text: str) -> float:
    """`7d`, `36h`, `604800`."""
    return _read(text, _SECONDS, "a time", "as in 7d, 36h or 90s")


def _read(text: str, units: dict[str, float], what: str, hint: str) -> float:
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?\d+)?)\s*([a-z]*)", text.strip().replace(",", ""), re.IGNORECASE)
    try:
        value = float(found[1]) * units[found[2].lower()] if found else 0.0
    except (KeyError, ValueError, OverflowError):
        value = 0.0
    if not 0 < value < 1e30:
        raise ConfigError(f"{text!r} is not {what} above 0", hint=hint)
    return value


def large(value: float) -> str:
    """A number: `812`, `40.5 M`, `1.3 bn`, `1 tn`."""
    for size, unit in ((1e12, " tn"), (1e9, " bn"), (1e6, " M")):
        if value >= 0.9995 * size:
            return f"{_three(value / size)}{unit}"
    return f"{value:,.0f}" if value >= 10 else _three(value)


def size(value: float) -> str:
    """Bytes: `35 kB`, `3.2 PB`."""
    for power, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB")):
        if value < 999.5 * 1000**power:
            return f"{_three(value / 1000**power)} {unit}"
    return f"{_three(value / 1e18)} EB"


def bits(value: float) -> str:
    """A rate: `800 Mbit/s`, `145 Gbit/s`."""
    return f"{size(value / 1).removesuffix('B').rstrip()}bit/s" if value >= 1000 else f"{value:.0f} bit/s"


def dollars(value: float) -> str:
    """Money, which is an estimate: three digits of it."""
    return f"${large(value)}" if value >= 1e6 else f"${value:,.0f}"


def span(value: float) -> str:
    """A time: `90 s`, `36 h`, `7 d`."""
    if value < 7200:
        return f"{_three(value)} s"
    return f"{_three(value / 3600)} h" if value < 2 * 86_400 else f"{_three(value / 86_400)} d"


def _three(value: float) -> str:
    """Three digits, without zeros at the end."""
    text = f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


PAGES_PER_HOST = 52.7
"""Common Crawl CC-MAIN-2026-30: 2.136 bn pages on 40.5 M hosts."""
KNOWN_HOSTS = 1.3e9
"""Nodes of the host graph of 2017 (Funel 2018): the most that anybody has published."""
EXPONENT = 0.75
"""Size of a host over its rank, as r^-0.75: then the top 500 of 33.3 M domains hold 5.3 % of the pages; in
CC-MAIN-2026-30 they hold 5.1 %, under a budget that cuts the largest, so that the real web is steeper."""
GOOD_ANSWERS = 0.82
"""Of requests, 200 in CC-MAIN-2026-30; redirects, 404 and failures are the rest."""
FETCHED_SHARE, WAITING_SHARE = 0.57, 0.14
"""Of the URLs that Common Crawl knows, those that it has fetched, and those that it has not yet."""
LINKS, LINKS_ELSEWHERE = 49, 6
"""Links of a page, and those to other sites: medians of the Web Almanac 2025."""


class Hosts(NamedTuple):
    """So many hosts that have so many pages together, by a power law with a first rank."""

    pages: float
    number: float
    exponent: float = EXPONENT

    @property
    def largest(self) -> float:
        """Pages of the largest."""
        return self.pages / (1 + self._integral(self.number))

    def share_of_top(self, ranks: float) -> float:
        """The share of all pages that the largest hosts have."""
        return (1 + self._integral(ranks)) / (1 + self._integral(self.number))

    def above(self, pages: float) -> float:
        """How many hosts have more pages than this."""
        if self.largest <= pages:
            return 0.0
        return min(self.number, float((self.largest / pages) ** (1 / self.exponent)))

    def within(self, pages_each: float) -> float:
        """Pages that can be had if no host gives more than this: the sum of the lesser of both, over all hosts."""
        ranks = self.above(pages_each)
        if ranks < 1:
            return self.pages
        return self.pages - (self.largest * (1 + self._integral(ranks)) - pages_each * ranks)

    def _integral(self, ranks: float) -> float:
        """Of r^-exponent from 1 to `ranks`."""
        power = 1 - self.exponent
        return float((ranks**power - 1) / power)


def usual_hosts(pages: float) -> float:
    """How many hosts so many pages are on, as far as is known."""
    return max(1.0, min(pages / PAGES_PER_HOST, KNOWN_HOSTS))


HOURS_A_MONTH = 730.0
BATCH = 32
"""Requests of a lease, for which a connection is kept."""
KEY_BYTES = 8
LINK_BYTES = 100
_ENOUGH = 0.999


class MachineSize(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine has."""

    cores: float
    memory_bytes: float
    bits_per_second: float = 10e9
    disk_bytes: float = 8e12


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """In dollars: round figures in the order of what large clouds ask, from memory and not from an offer."""

    as_of: str = "November 2026"
    core_hour: float = 0.03
    memory_gb_hour: float = 0.004
    disk_tb_month: float = 80.0
    storage_tb_month: float = 20.0
    sent_gb: float = 0.05
    between_regions_gb: float = 0.02


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be crawled, and the assumptions that nobody has measured for it."""

    pages: float
    period_seconds: float
    page_bytes: float
    hosts: float
    delay: float = 1.0
    latency_seconds: float = 0.5
    """From a request to the headers of its answer."""
    once: bool = False
    """Fetched once, and not again in each period."""
    store: str = "redis"
    regions: int = 1
    archive: bool = True
    copies: float = 1.0
    """Of what is stored, over and above what the price of storage includes."""
    wire_ratio: float = 1.0
    """Bytes on the wire for a byte of a page: 1 if no server compresses."""
    busy_share: float = 0.6
    """How far machines are filled: the rest is for peaks and for those that are down."""
    header_bytes: float = 800.0
    sent_bytes: float = 500.0
    """Of a request."""
    lane_bytes: float = 60_000.0
    """Memory of a site in hand, with its connection. Assumed."""
    process_bytes: float = 100e6
    worker: MachineSize = MachineSize(cores=16, memory_bytes=64e9)
    server: MachineSize = MachineSize(cores=16, memory_bytes=128e9)
    prices: Prices = Prices()


Part = Literal[
    "politeness", "worker cores", "worker memory", "bandwidth", "frontier cpu", "frontier space", "storage", "traffic"
]  # fmt: skip


class CrawlPlan(NamedTuple):
    """The needs of a wish. Machines are whole ones."""

    pages_per_second: float
    requests_per_second: float
    received_bits_per_second: float
    sites_at_once: float
    """Sites in hand, each in its delay or waiting for an answer."""
    most_of_a_host: float
    """Pages that politeness lets anybody have of one host in a period."""
    large_hosts: float
    """Those that have more."""
    polite_share: float
    """Of the pages, those that can be had in a period."""
    cores: float
    """That are busy at a time."""
    workers: int
    worker_needs: dict[Part, float]
    """Machines, by what they are needed for; the largest counts."""
    known_urls: float
    frontier_bytes: float
    servers: int
    server_needs: dict[Part, float]
    shards: int
    raw_bytes: float
    """Of one pass."""
    stored_bytes: float
    between_regions_bits_per_second: float
    dollars_a_month: dict[Literal["workers", "frontier", "storage", "traffic"], float]
    bottleneck: Part

    @property
    def cost(self) -> float:
        """Dollars a month."""
        return sum(self.dollars_a_month.values())

    @property
    def next_bottleneck(self) -> Part:
        """What costs most of what money can buy."""
        return _dearest(self.dollars_a_month, self.worker_needs, self.server_needs)


def plan_crawl(wish: Requirements, figures: Figures) -> CrawlPlan:
    """What the wish needs."""
    store, busy = figures.frontiers[wish.store], wish.busy_share
    rate = wish.pages / wish.period_seconds
    requests = rate / GOOD_ANSWERS
    hosts = Hosts(wish.pages, min(wish.hosts, wish.pages))
    most = wish.period_seconds / (wish.delay + wish.latency_seconds)
    polite_share = hosts.within(most) / wish.pages

    connections = rate / BATCH + hosts.number / wish.period_seconds
    # What is no page costs a request without a body.
    cores = rate * figures.page_cpu_seconds(wish.page_bytes) + (requests - rate) * figures.page_cpu_seconds(0)
    cores += connections * (figures.host_cpu_seconds + figures.tls_cpu_seconds)
    cores += requests * store.client_cpu_seconds
    cores += rate * figures.archive_cpu_seconds(wish.page_bytes) if wish.archive else 0.0
    received = 8 * (rate * wish.page_bytes * wish.wire_ratio + requests * wish.header_bytes)
    at_once = requests * (wish.delay + wish.latency_seconds)
    memory = at_once * wish.lane_bytes + cores / busy * wish.process_bytes
    worker_needs: dict[Part, float] = {
        "worker cores": cores / (busy * wish.worker.cores),
        "worker memory": memory / (busy * wish.worker.memory_bytes),
        "bandwidth": received / (busy * wish.worker.bits_per_second),
    }
    workers = math.ceil(max(worker_needs.values()))

    known = wish.pages / FETCHED_SHARE
    space = known * WAITING_SHARE * store.queued_bytes
    space += wish.pages * (store.done_bytes if wish.once else store.again_bytes)
    space += known * (1 - WAITING_SHARE - FETCHED_SHARE) * store.done_bytes
    room = wish.server.memory_bytes if store.in_memory else wish.server.disk_bytes
    server_cores = requests * store.server_cpu_seconds / busy
    server_needs: dict[Part, float] = {
        "frontier cpu": server_cores / wish.server.cores,
        "frontier space": space / (busy * room),
    }
    servers = math.ceil(max(server_needs.values()))
    # One Redis is one core; a database uses all that its machine has.
    shards = max(servers, math.ceil(server_cores)) if store.in_memory else servers

    raw = wish.pages * wish.page_bytes
    stored = raw * figures.warc_ratio * wish.copies if wish.archive else 0.0
    between = 8 * rate * LINKS_ELSEWHERE * LINK_BYTES * (1 - 1 / wish.regions)
    sent_bytes = requests * wish.sent_bytes
    dollars = _dollars(wish, workers, servers, stored, sent_bytes, between / 8, on_disk=not store.in_memory)
    bottleneck = "politeness" if polite_share < _ENOUGH else _dearest(dollars, worker_needs, server_needs)
    return CrawlPlan(
        pages_per_second=rate,
        requests_per_second=requests,
        received_bits_per_second=received,
        sites_at_once=at_once,
        most_of_a_host=most,
        large_hosts=hosts.above(most),
        polite_share=polite_share,
        cores=cores,
        workers=workers,
        worker_needs=worker_needs,
        known_urls=known,
        frontier_bytes=space,
        servers=servers,
        server_needs=server_needs,
        shards=shards,
        raw_bytes=raw,
        stored_bytes=stored,
        between_regions_bits_per_second=between,
        dollars_a_month=dollars,
        bottleneck=bottleneck,
    )


Dollars = dict[Literal["workers", "frontier", "storage", "traffic"], float]


def _dollars(
    wish: Requirements, workers: int, servers: int, stored: float, sent: float, between: float, *, on_disk: bool
) -> Dollars:
    prices, seconds = wish.prices, HOURS_A_MONTH * 3600
    disk = wish.server.disk_bytes / 1e12 * prices.disk_tb_month if on_disk else 0.0
    return {
        "workers": workers * _rent(wish.worker, prices),
        "frontier": servers * (_rent(wish.server, prices) + disk),
        "storage": stored / 1e12 * prices.storage_tb_month,
        "traffic": (sent * prices.sent_gb + between * prices.between_regions_gb) / 1e9 * seconds,
    }


def _rent(machine: MachineSize, prices: Prices) -> float:
    hourly = machine.cores * prices.core_hour + machine.memory_bytes / 1e9 * prices.memory_gb_hour
    return hourly * HOURS_A_MONTH


def _dearest(dollars: Dollars, worker_needs: dict[Part, float], server_needs: dict[Part, float]) -> Part:
    """What the largest part of the cost is paid for."""
    causes: dict[str, Part] = {
        "workers": max(worker_needs, key=lambda need: worker_needs[need]),
        "frontier": max(server_needs, key=lambda need: server_needs[need]),
        "storage": "storage",
        "traffic": "traffic",
    }
    return causes[max(dollars, key=lambda part: dollars[part])]


class WhatIfRow(NamedTuple):
    """A change, and the plan that it makes."""

    change: str
    plan: CrawlPlan


def rows(wish: Requirements, figures: Figures) -> Iterator[WhatIfRow]:
    """As it is wished, then each thing that matters changed by itself."""
    yield WhatIfRow("as asked", plan_crawl(wish, figures))
    for change, other in _variations(wish):
        yield WhatIfRow(change, plan_crawl(other, figures))
    twice = msgspec.structs.replace(
        figures,
        small_page_cpu_seconds=2 * figures.small_page_cpu_seconds,
        large_page_cpu_seconds=2 * figures.large_page_cpu_seconds,
    )
    yield WhatIfRow("CPU of a page x 2", plan_crawl(wish, twice))
    if wish.archive:
        yield WhatIfRow("nothing compressed", plan_crawl(wish, msgspec.structs.replace(figures, warc_ratio=1.0)))
    for name in figures.frontiers:
        if name not in (wish.store, "sqlite"):
            yield WhatIfRow(f"frontier in {name}", plan_crawl(msgspec.structs.replace(wish, store=name), figures))


def _variations(wish: Requirements) -> Iterator[tuple[str, Requirements]]:
    change = msgspec.structs.replace
    for factor in (0.25, 4.0):
        yield f"delay {span(wish.delay * factor)}", change(wish, delay=wish.delay * factor)
    for factor in (0.5, 4.0):
        yield f"pages of {size(wish.page_bytes * factor)}", change(wish, page_bytes=wish.page_bytes * factor)
    for factor in (1 / 7, 30 / 7):
        period = wish.period_seconds * factor
        yield f"every {span(period)}", change(wish, period_seconds=period)
    for factor in (0.1, 10.0):
        yield f"{large(wish.hosts * factor)} hosts", change(wish, hosts=wish.hosts * factor)
    if not wish.once:
        yield "each page only once", change(wish, once=True)
    yield "servers compress (0.3)", change(wish, wire_ratio=0.3)
    if wish.archive:
        yield "nothing archived", change(wish, archive=False)
    yield "3 regions" if wish.regions == 1 else "1 region", change(wish, regions=3 if wish.regions == 1 else 1)
