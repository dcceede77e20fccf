"""What a crawl needs, computed from wishes and figures: pure functions, so that every wish can be asked "what if?"."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec

from gossamer.plan.figures import Figures
from gossamer.plan.web import FETCHED_SHARE, GOOD_ANSWERS, LINKS_ELSEWHERE, WAITING_SHARE, Hosts

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
