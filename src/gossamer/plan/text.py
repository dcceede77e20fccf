"""A plan as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gossamer.plan.figures import Figures
from gossamer.plan.needs import KEY_BYTES, CrawlPlan, Part, Requirements
from gossamer.plan.units import bits, dollars, large, size, span
from gossamer.plan.web import Hosts
from gossamer.plan.whatif import rows

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
    found, *_ = (row.plan for row in rows(wish, figures))
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
    for change, found in rows(wish, figures):
        share = f"{100 * found.polite_share:.1f} %"
        yield (
            f"{change:<24}{share:>11}{found.workers:>9,}{found.servers:>9,}{size(found.stored_bytes):>9}"
            f"{dollars(found.cost):>10}  {found.next_bottleneck}"
        )
