"""Capacity plans: machines, storage, and cost of a larger crawl, computed from measured costs."""

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
"""Page sizes of the benchmark crawls."""


class StoreCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a frontier: CPU per page with its links, and bytes per URL."""

    client_cpu_seconds: float
    server_cpu_seconds: float
    queued_bytes: float
    done_bytes: float
    again_bytes: float
    """Bytes per completed URL that waits for a revisit."""
    in_memory: bool
    """Whether the bytes are memory (true) or disk (false)."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Measured costs. CPU is user plus system time of the processes, in seconds of one core."""

    measured_on: str
    machine: str
    version: str
    small_page_cpu_seconds: float
    """CPU to crawl a 10 kB page, with the embedded frontier, without TLS and without an archive."""
    large_page_cpu_seconds: float
    """CPU to crawl a 40 kB page."""
    host_cpu_seconds: float
    """Extra CPU for the first page of a host: DNS, connection, and robots.txt."""
    tls_cpu_seconds: float
    """Extra CPU for a new connection with TLS."""
    warc_cpu_seconds: float
    """CPU to write 40 kB to an archive."""
    warc_ratio: float
    """Bytes of the archive per byte of a page."""
    frontiers: dict[str, StoreCost]

    def page_cpu_seconds(self, page_bytes: float) -> float:
        """CPU per page of this size, interpolated linearly between the two measured sizes."""
        slope = max(0.0, self.large_page_cpu_seconds - self.small_page_cpu_seconds) / (LARGE_BYTES - SMALL_BYTES)
        return max(self.small_page_cpu_seconds + slope * (page_bytes - SMALL_BYTES), 0.2 * self.small_page_cpu_seconds)

    def archive_cpu_seconds(self, page_bytes: float) -> float:
        """CPU to archive a page of this size."""
        return self.warc_cpu_seconds * page_bytes / LARGE_BYTES


def reference() -> Figures:
    """The measured costs that ship with this version, with the date and machine of the measurement."""
    return msgspec.json.decode(resources.files("gossamer.lab").joinpath("reference.json").read_bytes(), type=Figures)


def read_figures(path: Path) -> Figures:
    """Read the output file of `gossamer bench`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", hint="create it with gossamer bench --quick --out FILE"
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}", hint="create it again with gossamer bench --quick --out FILE") from None


def write_figures(path: Path, figures: Figures) -> None:
    """Write the figures atomically."""
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
        raise ConfigError(f"{text!r} is not {what} greater than 0", hint=hint)
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
    """Estimated dollars, with three digits."""
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
"""Nodes of the 2017 host graph (Funel 2018), the largest published number."""
EXPONENT = 0.75
"""Size of a host over its rank, as r^-0.75: then the top 500 of 33.3 M domains hold 5.3 % of the pages; in
CC-MAIN-2026-30 they hold 5.1 %, under a budget that cuts the largest, so that the real web is steeper."""
GOOD_ANSWERS = 0.82
"""Share of requests with status 200 in CC-MAIN-2026-30; the rest are redirects, 404s, and failures."""
FETCHED_SHARE, WAITING_SHARE = 0.57, 0.14
"""Shares of the URLs known to Common Crawl that it has fetched, and that it has not fetched yet."""
LINKS, LINKS_ELSEWHERE = 49, 6
"""Links per page, and links to other sites: medians of the Web Almanac 2025."""


class Hosts(NamedTuple):
    """Distribution of pages over hosts: a power law over the rank."""

    pages: float
    number: float
    exponent: float = EXPONENT

    @property
    def largest(self) -> float:
        """Pages of the largest host."""
        return self.pages / (1 + self._integral(self.number))

    def share_of_top(self, ranks: float) -> float:
        """Share of all pages on the `ranks` largest hosts."""
        return (1 + self._integral(ranks)) / (1 + self._integral(self.number))

    def above(self, pages: float) -> float:
        """Number of hosts with more pages than this."""
        if self.largest <= pages:
            return 0.0
        return min(self.number, float((self.largest / pages) ** (1 / self.exponent)))

    def within(self, pages_each: float) -> float:
        """Pages that can be fetched with at most `pages_each` per host."""
        ranks = self.above(pages_each)
        if ranks < 1:
            return self.pages
        return self.pages - (self.largest * (1 + self._integral(ranks)) - pages_each * ranks)

    def _integral(self, ranks: float) -> float:
        """Integral of r^-exponent from 1 to `ranks`."""
        power = 1 - self.exponent
        return float((ranks**power - 1) / power)


def usual_hosts(pages: float) -> float:
    """Typical number of hosts for this number of pages."""
    return max(1.0, min(pages / PAGES_PER_HOST, KNOWN_HOSTS))


HOURS_A_MONTH = 730.0
BATCH = 32
"""Requests per lease, which share a connection."""
KEY_BYTES = 8
LINK_BYTES = 100
_ENOUGH = 0.999


class MachineSize(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of one machine."""

    cores: float
    memory_bytes: float
    bits_per_second: float = 10e9
    disk_bytes: float = 8e12


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in dollars: rounded estimates of the list prices of large clouds, not a quote."""

    as_of: str = "November 2026"
    core_hour: float = 0.03
    memory_gb_hour: float = 0.004
    disk_tb_month: float = 80.0
    storage_tb_month: float = 20.0
    sent_gb: float = 0.05
    between_regions_gb: float = 0.02


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """The crawl to plan, with assumptions that are not measured."""

    pages: float
    period_seconds: float
    page_bytes: float
    hosts: float
    delay: float = 1.0
    latency_seconds: float = 0.5
    """Time from a request to the response headers."""
    once: bool = False
    """Whether each page is fetched only once, instead of once per period."""
    store: str = "redis"
    regions: int = 1
    archive: bool = True
    copies: float = 1.0
    """Copies of the stored data, beyond the replication included in the storage price."""
    wire_ratio: float = 1.0
    """Bytes on the wire per byte of a page: 1 if no server compresses."""
    busy_share: float = 0.6
    """Target utilization of machines; the rest is reserved for peaks and failures."""
    header_bytes: float = 800.0
    sent_bytes: float = 500.0
    """Size of a request."""
    lane_bytes: float = 60_000.0
    """Memory per active site with its connection. Assumed."""
    process_bytes: float = 100e6
    worker: MachineSize = MachineSize(cores=16, memory_bytes=64e9)
    server: MachineSize = MachineSize(cores=16, memory_bytes=128e9)
    prices: Prices = Prices()


Part = Literal[
    "politeness", "worker cores", "worker memory", "bandwidth", "frontier cpu", "frontier space", "storage", "traffic"
]  # fmt: skip


class CrawlPlan(NamedTuple):
    """Resources that the requirements need. Machines are rounded up."""

    pages_per_second: float
    requests_per_second: float
    received_bits_per_second: float
    sites_at_once: float
    """Active sites, each in its delay or waiting for a response."""
    most_of_a_host: float
    """Maximum number of pages per host and period at the delay."""
    large_hosts: float
    """Hosts with more pages than that."""
    polite_share: float
    """Share of the pages that can be fetched in a period."""
    cores: float
    """Busy cores."""
    workers: int
    worker_needs: dict[Part, float]
    """Number of machines by resource; the largest number applies."""
    known_urls: float
    frontier_bytes: float
    servers: int
    server_needs: dict[Part, float]
    shards: int
    raw_bytes: float
    """Size of one pass."""
    stored_bytes: float
    between_regions_bits_per_second: float
    dollars_a_month: dict[Literal["workers", "frontier", "storage", "traffic"], float]
    bottleneck: Part

    @property
    def cost(self) -> float:
        """Dollars per month."""
        return sum(self.dollars_a_month.values())

    @property
    def next_bottleneck(self) -> Part:
        """The resource with the highest cost."""
        return _largest_cost(self.dollars_a_month, self.worker_needs, self.server_needs)


def plan_crawl(requirements: Requirements, figures: Figures) -> CrawlPlan:
    """Compute the plan for these requirements."""
    store, busy = figures.frontiers[requirements.store], requirements.busy_share
    rate = requirements.pages / requirements.period_seconds
    requests = rate / GOOD_ANSWERS
    hosts = Hosts(requirements.pages, min(requirements.hosts, requirements.pages))
    most = requirements.period_seconds / (requirements.delay + requirements.latency_seconds)
    polite_share = hosts.within(most) / requirements.pages

    connections = rate / BATCH + hosts.number / requirements.period_seconds
    # Responses that are not pages cost a request without a body.
    cores = rate * figures.page_cpu_seconds(requirements.page_bytes) + (requests - rate) * figures.page_cpu_seconds(0)
    cores += connections * (figures.host_cpu_seconds + figures.tls_cpu_seconds)
    cores += requests * store.client_cpu_seconds
    cores += rate * figures.archive_cpu_seconds(requirements.page_bytes) if requirements.archive else 0.0
    received = 8 * (rate * requirements.page_bytes * requirements.wire_ratio + requests * requirements.header_bytes)
    at_once = requests * (requirements.delay + requirements.latency_seconds)
    memory = at_once * requirements.lane_bytes + cores / busy * requirements.process_bytes
    worker_needs: dict[Part, float] = {
        "worker cores": cores / (busy * requirements.worker.cores),
        "worker memory": memory / (busy * requirements.worker.memory_bytes),
        "bandwidth": received / (busy * requirements.worker.bits_per_second),
    }
    workers = math.ceil(max(worker_needs.values()))

    known = requirements.pages / FETCHED_SHARE
    space = known * WAITING_SHARE * store.queued_bytes
    space += requirements.pages * (store.done_bytes if requirements.once else store.again_bytes)
    space += known * (1 - WAITING_SHARE - FETCHED_SHARE) * store.done_bytes
    room = requirements.server.memory_bytes if store.in_memory else requirements.server.disk_bytes
    server_cores = requests * store.server_cpu_seconds / busy
    server_needs: dict[Part, float] = {
        "frontier cpu": server_cores / requirements.server.cores,
        "frontier space": space / (busy * room),
    }
    servers = math.ceil(max(server_needs.values()))
    # Redis uses one core; a database uses all cores of its machine.
    shards = max(servers, math.ceil(server_cores)) if store.in_memory else servers

    raw = requirements.pages * requirements.page_bytes
    stored = raw * figures.warc_ratio * requirements.copies if requirements.archive else 0.0
    between = 8 * rate * LINKS_ELSEWHERE * LINK_BYTES * (1 - 1 / requirements.regions)
    sent_bytes = requests * requirements.sent_bytes
    dollars = _dollars(requirements, workers, servers, stored, sent_bytes, between / 8, on_disk=not store.in_memory)
    bottleneck = "politeness" if polite_share < _ENOUGH else _largest_cost(dollars, worker_needs, server_needs)
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
    requirements: Requirements, workers: int, servers: int, stored: float, sent: float, between: float, *, on_disk: bool
) -> Dollars:
    prices, seconds = requirements.prices, HOURS_A_MONTH * 3600
    disk = requirements.server.disk_bytes / 1e12 * prices.disk_tb_month if on_disk else 0.0
    return {
        "workers": workers * _rent(requirements.worker, prices),
        "frontier": servers * (_rent(requirements.server, prices) + disk),
        "storage": stored / 1e12 * prices.storage_tb_month,
        "traffic": (sent * prices.sent_gb + between * prices.between_regions_gb) / 1e9 * seconds,
    }


def _rent(machine: MachineSize, prices: Prices) -> float:
    hourly = machine.cores * prices.core_hour + machine.memory_bytes / 1e9 * prices.memory_gb_hour
    return hourly * HOURS_A_MONTH


def _largest_cost(dollars: Dollars, worker_needs: dict[Part, float], server_needs: dict[Part, float]) -> Part:
    """The resource that causes the largest part of the cost."""
    causes: dict[str, Part] = {
        "workers": max(worker_needs, key=lambda need: worker_needs[need]),
        "frontier": max(server_needs, key=lambda need: server_needs[need]),
        "storage": "storage",
        "traffic": "traffic",
    }
    return causes[max(dollars, key=lambda part: dollars[part])]


class WhatIfRow(NamedTuple):
    """A changed assumption, and the resulting plan."""

    change: str
    plan: CrawlPlan


def what_if(requirements: Requirements, figures: Figures) -> Iterator[WhatIfRow]:
    """The plan itself, then one plan for each changed assumption."""
    yield WhatIfRow("as asked", plan_crawl(requirements, figures))
    for change, other in _variations(requirements):
        yield WhatIfRow(change, plan_crawl(other, figures))
    twice = msgspec.structs.replace(
        figures,
        small_page_cpu_seconds=2 * figures.small_page_cpu_seconds,
        large_page_cpu_seconds=2 * figures.large_page_cpu_seconds,
    )
    yield WhatIfRow("CPU of a page x 2", plan_crawl(requirements, twice))
    if requirements.archive:
        yield WhatIfRow(
            "nothing compressed", plan_crawl(requirements, msgspec.structs.replace(figures, warc_ratio=1.0))
        )
    for name in figures.frontiers:
        if name not in (requirements.store, "sqlite"):
            yield WhatIfRow(
                f"frontier in {name}", plan_crawl(msgspec.structs.replace(requirements, store=name), figures)
            )


def _variations(requirements: Requirements) -> Iterator[tuple[str, Requirements]]:
    change = msgspec.structs.replace
    for factor in (0.25, 4.0):
        yield f"delay {span(requirements.delay * factor)}", change(requirements, delay=requirements.delay * factor)
    for factor in (0.5, 4.0):
        yield (
            f"pages of {size(requirements.page_bytes * factor)}",
            change(requirements, page_bytes=requirements.page_bytes * factor),
        )
    for factor in (1 / 7, 30 / 7):
        period = requirements.period_seconds * factor
        yield f"every {span(period)}", change(requirements, period_seconds=period)
    for factor in (0.1, 10.0):
        yield f"{large(requirements.hosts * factor)} hosts", change(requirements, hosts=requirements.hosts * factor)
    if not requirements.once:
        yield "each page only once", change(requirements, once=True)
    yield "servers compress (0.3)", change(requirements, wire_ratio=0.3)
    if requirements.archive:
        yield "nothing archived", change(requirements, archive=False)
    yield (
        "3 regions" if requirements.regions == 1 else "1 region",
        change(requirements, regions=3 if requirements.regions == 1 else 1),
    )
