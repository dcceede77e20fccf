"""The same wish with one thing changed, again and again: what a plan hangs on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gossamer.plan.figures import Figures
from gossamer.plan.needs import CrawlPlan, Requirements, plan_crawl
from gossamer.plan.units import large, size, span


class WhatIfRow(NamedTuple):
    """A change, and the plan that it makes."""

    change: str
    plan: CrawlPlan


def rows(wish: Requirements, figures: Figures) -> Iterator[WhatIfRow]:
    """As it is wished, then each thing that matters changed by itself."""
    yield WhatIfRow("as asked", plan_crawl(wish, figures))
    for change, other in _wishes(wish):
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


def _wishes(wish: Requirements) -> Iterator[tuple[str, Requirements]]:
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
