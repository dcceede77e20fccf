"""Rules against parts of a site that have no end, as pure functions: dates without end, and paths full of copies.

What is known of a site's paths is kept in its memo, under a key for each lane, so that a lane has one writer:

    "paths.0": {"/calendar/": {"pages": 40, "alike": 12, "like": "8f3c...", "first": URL}}

`first` is where the row of copies began. A path that was put to sleep keeps the evidence, for as long as it sleeps:

    {"asleep_until": 1.8e9, "copies": 20, "since": URL, "example": URL}     the row, its first and its last page
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gossamer.settings import Settings

PATHS = "paths"
_MOST_PATHS = 32
_MOST_SEGMENTS = 3
_NEAR_BITS = 3
_LONGEST = 200
_DATED = re.compile(
    r"(?:^|[/=_.-])(?P<year>[12]\d{3})(?:[/_.-]|&(?:month|mon|m)=)(?:0?[1-9]|1[0-2])(?=$|[/&?_.-])"
    r"|[?&](?:year|yr|y|jahr|annee|ano)=(?P<only>[12]\d{3})(?=$|&)",
    re.ASCII,
)
_EVIDENCE = ("asleep_until", "copies", "since", "example")
may_have_date = re.compile(r"[12]\d{3}(?=[/_.&?#-]|$)", re.ASCII).search
"""What most URLs have not: looked for first, since every link comes here."""

Path = dict[str, Any]


def prefix_of(target: str) -> str:
    """The part of a site that a path with query belongs to: its folders up to the first that holds a digit, at most
    three, and the names of its query's parameters."""
    path, _, query = target.partition("?")
    kept = []
    for segment in path.split("/")[1:-1][:_MOST_SEGMENTS]:
        if any(character.isdigit() for character in segment):
            break
        kept.append(segment)
    prefix = "/".join(("", *kept, ""))[:_LONGEST]
    if not query:
        return prefix
    names = sorted({pair.partition("=")[0] for pair in query.split("&")})
    return f"{prefix}?{'&'.join(names)}"[:_LONGEST]


def has_far_date(target: str, *, year: int, settings: Settings) -> bool:
    """Whether a path with query names a month of a year that is too far away to be more than a calendar's page."""
    if may_have_date(target) is None:
        return False
    for found in _DATED.finditer(target):
        dated = int(found["year"] or found["only"])
        if dated > year + settings.years_ahead or dated < year - settings.years_back:
            return True
    return False


def are_near(one: int, other: int) -> bool:
    """Whether two SimHashes are those of near-duplicates."""
    return (one ^ other).bit_count() <= _NEAR_BITS


def sleeping(memo: Mapping[str, Any], prefix: str, *, now: float) -> bool:
    """Whether a path of the site is asleep."""
    return evidence(memo, prefix, now=now) is not None


def evidence(memo: Mapping[str, Any], prefix: str, *, now: float) -> Path | None:
    """Why a path of the site is asleep; None if it is awake."""
    return next((path for path in _known(memo, prefix) if path.get("asleep_until", 0.0) > now), None)


def pages_of(memo: Mapping[str, Any], prefix: str) -> int:
    """How many pages of a path were fetched, as far as they are counted."""
    return sum(path.get("pages", 0) for path in _known(memo, prefix))


def _known(memo: Mapping[str, Any], prefix: str) -> list[Path]:
    return [paths[prefix] for name, paths in memo.items() if name.startswith(PATHS) and prefix in paths]


def after_page(
    paths: Mapping[str, Path],
    url: str,
    prefix: str,
    *,
    likeness: int | None,
    leads_on: bool,
    now: float,
    settings: Settings,
) -> dict[str, Path] | None:
    """A lane's paths after one more page; None if that changes nothing that is worth keeping.

    `likeness` is the SimHash of the page's main text, None for a page that is plainly not like the last one. A page
    that is near the last one of its path and `leads_on` to new URLs there makes the row of copies longer; one that
    is near but leads nowhere may be one of many with little text, and says nothing; any other one ends the row."""
    before = paths.get(prefix, {})
    counts = settings.prefix_budget is not None
    alike, like = 0, ""
    if likeness is not None and settings.alike_pages:
        last = int(before["like"], 16) if before.get("like") else None
        near = last is not None and are_near(last, likeness)
        alike, like = (before.get("alike", 0) if near else 0) + leads_on, f"{likeness:016x}"
    if not counts and alike == before.get("alike", 0):
        return None
    after: Path = {"pages": before.get("pages", 0) + 1, "alike": alike, "like": like}
    if alike:
        after["first"] = before.get("first", url[:_LONGEST]) if alike > 1 else url[:_LONGEST]
    if settings.alike_pages and alike >= settings.alike_pages:
        began = after.pop("first")
        until = round(now + settings.sleep_seconds)
        after |= {"alike": 0, "asleep_until": until, "copies": alike, "since": began, "example": url[:_LONGEST]}
    elif before.get("asleep_until", 0.0) > now:
        after |= {name: before[name] for name in _EVIDENCE if name in before}
    return _bounded({**paths, prefix: after}, now)


def _bounded(paths: dict[str, Path], now: float) -> dict[str, Path]:
    """The paths that matter most, if there are too many: those asleep, then those with the most pages."""
    if len(paths) <= _MOST_PATHS:
        return paths
    # The newest would be first to go, and could then never grow.
    *older, newest = paths
    weight = {name: (paths[name].get("asleep_until", 0.0) > now, paths[name].get("pages", 0)) for name in older}
    kept = sorted(older, key=lambda name: weight[name], reverse=True)[: _MOST_PATHS - 1]
    return {name: paths[name] for name in (*kept, newest)}
