"""The map of sites: by region, the largest one by one and the rest added up, however many there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from gossamer.service.views import MapRegion, Rest, SiteMap, SiteRow, Square, Standing

MOST_SITES, MOST_REGIONS = 200, 40
By = Literal["queued", "stored", "requests"]


def drawn(job: str, rows: Sequence[SiteRow], *, by: By, total: int | None) -> SiteMap:
    """At most 200 sites of each region, and 40 regions; those with most to show come first."""
    regions: defaultdict[str, list[SiteRow]] = defaultdict(list)
    for row in rows:
        regions[row.region].append(row)
    largest = sorted(regions, key=lambda region: (-sum(_size(row, by) for row in regions[region]), region))
    for region in largest[MOST_REGIONS:]:
        # They are too small to be seen beside the others; their sites are counted with those that were not looked at.
        del regions[region]
    shown = sum(map(len, regions.values()))
    return SiteMap(
        job=job,
        by=by,
        total=total,
        regions=[_region(region, regions[region], by) for region in largest[:MOST_REGIONS]],
        unseen=max(0, (total or 0) - shown),
    )


def standing(row: SiteRow) -> Standing:
    """What a site does."""
    if row.closed:
        return "closed"
    if row.hold > 0:
        return "held"
    if row.requests and row.errors * 2 > row.requests:
        return "failing"
    return "fetching" if row.leased else "waits" if row.queued else "idle"


def _region(region: str, rows: list[SiteRow], by: By) -> MapRegion:
    rows.sort(key=lambda row: (-_size(row, by), row.site))
    rest = rows[MOST_SITES:]
    return MapRegion(
        region=region,
        sites=[_square(row) for row in rows[:MOST_SITES]],
        rest=Rest(
            sites=len(rest),
            queued=sum(_size(row, "queued") for row in rest),
            stored=sum(_size(row, "stored") for row in rest),
            requests=sum(_size(row, "requests") for row in rest),
        ),
    )


def _size(row: SiteRow, by: By) -> int:
    return getattr(row, by) or 0


def _square(row: SiteRow) -> Square:
    return Square(
        site=row.site,
        state=standing(row),
        queued=row.queued or 0,
        stored=row.stored or 0,
        requests=row.requests,
        errors=row.errors,
        hold=row.hold,
        closed=row.closed,
    )
