"""The same wish with one thing changed, again and again: what a plan hangs on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gossamer.plan.figures import Figures
from gossamer.plan.needs import Plan, Wish, plan
from gossamer.plan.units import large, size, span


class Row(NamedTuple):
    """A change, and the plan that it makes."""

    change: str
    plan: Plan


def rows(wish: Wish, figures: Figures) -> Iterator[Row]:
    """As it is wished, then each thing that matters changed by itself."""
    yield Row("as asked", plan(wish, figures))
    for change, other in _wishes(wish):
        yield Row(change, plan(other, figures))
    twice = msgspec.structs.replace(
        figures,
        small_page_cpu_seconds=2 * figures.small_page_cpu_seconds,
        large_page_cpu_seconds=2 * figures.large_page_cpu_seconds,
    )
    yield Row("CPU of a page x 2", plan(wish, twice))
    if wish.archive:
        yield Row("nothing compressed", plan(wish, msgspec.structs.replace(figures, warc_ratio=1.0)))
    for name in figures.frontiers:
        if name not in (wish.store, "sqlite"):
            yield Row(f"frontier in {name}", plan(msgspec.structs.replace(wish, store=name), figures))


def _wishes(wish: Wish) -> Iterator[tuple[str, Wish]]:
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
