"""Crawler traps: detects endless calendars, paths, and query combinations, and bounds them.

**Paths.** The statistics of a site's paths are in its memo, under one key for each lane, so that a lane has one writer:

    "paths.0": {"/calendar/": {"pages": 40, "alike": 12, "like": "8f3c...", "first": URL}}

`alike` counts near-duplicates in a row, and `first` is the first of them. A path with too many is paused, and stores
the evidence for that time: the length of the row, its first page, and its last page.

    {"asleep_until": 1.8e9, "copies": 20, "since": URL, "example": URL}

**Query combinations.** Pages that list other pages differ in the text of their links, and each set of parameters looks
like a new part of the site. So these pages are compared by their text outside links, and by where they lead. If a row
of pages of one path has the same text, and leads to nothing new but other queries of that path, then all queries with
the features that this row has in common are paused. A single parameter that counts pages makes no such row: it takes
three different sets, or orders, of parameters. The memo has, again under one key for each lane:

    "queries.0": {"/list": {"alike": 12, "like": "8f3c...", "first": URL, "common": ["view", "view=grid"],
                            "shapes": ["view", "view&size"], "asleep": [...]}}

Each paused combination stores the evidence:

    {"common": [], "asleep_until": 1.8e9, "copies": 20, "since": URL, "example": URL}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gossamer import urls
from gossamer.clock import Clock
from gossamer.frontier.recrawl import was_seen
from gossamer.model import Lease, Request
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
"""A pattern that few URLs match, as a fast first check: every link is tested."""

Path = dict[str, Any]


def prefix_of(target: str) -> str:
    """Return the prefix that a path with query belongs to.

    It consists of up to three folders, ending before the first with a digit, and the names of the query's parameters.
    """
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
    """Return whether a path with query contains a month of a year that is too far away for real content."""
    if may_have_date(target) is None:
        return False
    for found in _DATED.finditer(target):
        dated = int(found["year"] or found["only"])
        if dated > year + settings.years_ahead or dated < year - settings.years_back:
            return True
    return False


def are_near(one: int, other: int) -> bool:
    """Return whether two SimHashes belong to near-duplicates."""
    return (one ^ other).bit_count() <= _NEAR_BITS


def sleeping(memo: Mapping[str, Any], prefix: str, *, now: float) -> bool:
    """Return whether a path of the site is paused."""
    return evidence(memo, prefix, now=now) is not None


def evidence(memo: Mapping[str, Any], prefix: str, *, now: float) -> Path | None:
    """Return the evidence for pausing a path of the site; None if it is not paused."""
    return next((path for path in _known(memo, prefix) if path.get("asleep_until", 0.0) > now), None)


def pages_of(memo: Mapping[str, Any], prefix: str) -> int:
    """Return how many pages of a path were fetched, as far as they are counted."""
    return sum(path.get("pages", 0) for path in _known(memo, prefix))


def _known(memo: Mapping[str, Any], prefix: str) -> list[Path]:
    return [paths[prefix] for name, paths in memo.items() if name.startswith(PATHS) and prefix in paths]


def after_page(
    paths: Mapping[str, Path],
    url: str,
    prefix: str,
    *,
    simhash: int | None,
    leads_on: bool,
    now: float,
    settings: Settings,
) -> dict[str, Path] | None:
    """Return a lane's paths after one more page; None if nothing changes that is worth storing.

    `simhash` is the SimHash of the page's main text, None for a page that clearly differs from the last one. A page
    that is a near-duplicate of the last one of its path and `leads_on` to new URLs there extends the row of
    near-duplicates. One that leads nowhere may be one of many with little text, and is ignored. Any other page ends the
    row."""
    before = paths.get(prefix, {})
    counts = settings.prefix_budget is not None
    alike, like = 0, ""
    if simhash is not None and settings.alike_pages:
        last = int(before["like"], 16) if before.get("like") else None
        near = last is not None and are_near(last, simhash)
        alike, like = (before.get("alike", 0) if near else 0) + leads_on, f"{simhash:016x}"
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
    """Return the most relevant paths, if there are too many: paused ones, then those with the most pages."""
    if len(paths) <= _MOST_PATHS:
        return paths
    # Always keep the newest: it has few pages yet, would be dropped first, and could never grow.
    *older, newest = paths
    weight = {name: (paths[name].get("asleep_until", 0.0) > now, paths[name].get("pages", 0)) for name in older}
    kept = sorted(older, key=lambda name: weight[name], reverse=True)[: _MOST_PATHS - 1]
    return {name: paths[name] for name in (*kept, newest)}


QUERIES = "queries"
_MOST_PLACES = 16
_MOST_FAMILIES = 8
_MOST_PAIRS = 8
_SHAPES = 3
_LONGEST_PAIR = 60

Place = dict[str, Any]


def place_of(target: str) -> str:
    """Return the path of a path with query; empty if there is no query."""
    path, _, query = target.partition("?")
    return path[:_LONGEST] if query else ""


def features(target: str) -> set[str]:
    """Return the features of a query: the names of its parameters, and the names with their values."""
    found: set[str] = set()
    for pair in sorted(target.partition("?")[2].split("&"))[:_MOST_PAIRS]:
        found |= {pair.partition("=")[0][:_LONGEST_PAIR], pair[:_LONGEST_PAIR]}
    return found


def _shape(target: str) -> str:
    return "&".join(pair.partition("=")[0] for pair in target.partition("?")[2].split("&"))[:_LONGEST]


def combination_evidence(memo: Mapping[str, Any], target: str, *, now: float) -> Place | None:
    """Return the evidence for pausing queries like this one; None if they are not paused."""
    place = place_of(target)
    families = [
        family
        for name, places in (memo.items() if place else ())
        if name.startswith(QUERIES) and place in places
        for family in places[place].get("asleep", ())
        if family["asleep_until"] > now
    ]
    if not families:
        return None
    own = features(target)
    return next((family for family in families if own.issuperset(family["common"])), None)


def after_combination(
    places: Mapping[str, Place],
    url: str,
    target: str,
    *,
    simhash: int | None,
    leads_on: bool,
    leads_away: bool,
    now: float,
    settings: Settings,
) -> dict[str, Place] | None:
    """Return a lane's places after one more page with a query; None if nothing changes that is worth storing.

    `simhash` is the SimHash of the page's text outside links, None if it clearly differs from the last one. A page
    that is a near-duplicate of the last one of its path, and `leads_on` to new queries of it and not `leads_away`,
    extends the row. One that leads nowhere new is ignored. Any other page ends the row."""
    place = place_of(target)
    before = places.get(place, {})
    near = simhash is not None and bool(before.get("like")) and are_near(int(before["like"], 16), simhash)
    if near and not leads_on and not leads_away:
        return None
    asleep = [family for family in before.get("asleep", ()) if family["asleep_until"] > now]
    after: Place = {"asleep": asleep} if asleep else {}
    if simhash is not None and leads_on and not leads_away:
        row = _row(before if near else {}, url, target)
        if row["alike"] >= settings.alike_pages and len(row["shapes"]) >= _SHAPES:
            family = {
                "common": row["common"], "asleep_until": round(now + settings.sleep_seconds), "copies": row["alike"],
                "since": row["first"], "example": url[:_LONGEST],
            }  # fmt: skip
            after = {"asleep": _with(asleep, family)}
        else:
            # A row that only counts pages is not stored without limit.
            after |= {**row, "alike": min(row["alike"], settings.alike_pages), "like": f"{simhash:016x}"}
    if after == before:
        return None
    others = {name: other for name, other in places.items() if name != place}
    return _bounded_combinations({**others, place: after} if after else others)


def _row(before: Place, url: str, target: str) -> Place:
    """Return a row with one more page."""
    own, shape, shapes = features(target), _shape(target), before.get("shapes", [])
    return {
        "alike": before.get("alike", 0) + 1,
        "first": before.get("first", url[:_LONGEST]),
        "common": sorted(own.intersection(before["common"]) if before else own),
        "shapes": shapes if shape in shapes or len(shapes) >= _SHAPES else [*shapes, shape],
    }


def _with(asleep: list[Place], family: Place) -> list[Place]:
    """Add a paused combination. A second row with the same parameters but other values pauses all of their values."""
    names = _names(family)
    same = [other for other in asleep if _names(other) == names]
    for other in same:
        family = {**family, "common": sorted({*family["common"]}.intersection(other["common"]))}
    return [*(other for other in asleep if other not in same), family][-_MOST_FAMILIES:]


def _names(family: Place) -> set[str]:
    return {name.partition("=")[0] for name in family["common"]}


def _bounded_combinations(places: dict[str, Place]) -> dict[str, Place]:
    """Return the most relevant places, if there are too many: those with a paused combination, then the longest
    rows."""
    if len(places) <= _MOST_PLACES:
        return places
    # Always keep the newest: its row is short, would be dropped first, and could never grow.
    *older, newest = places
    weight = {name: (bool(places[name].get("asleep")), places[name].get("alike", 0)) for name in older}
    kept = sorted(older, key=lambda name: weight[name], reverse=True)[: _MOST_PLACES - 1]
    return {name: places[name] for name in (*kept, newest)}


ASLEEP, SPENT = "asleep", "prefix-budget"
_KEPT = (PATHS, QUERIES)


class Paths:
    """The paths of one leased site. The memo is the visit's own copy, which others do not change."""

    def __init__(self, lease: Lease, memo: dict[str, Any], settings: Settings, clock: Clock) -> None:
        self._key = f"{PATHS}.{lease.lane}"
        self._queries = f"{QUERIES}.{lease.lane}"
        self._site = lease.site
        self._memo = memo
        self._settings = settings
        self._clock = clock

    def refuse(self, request: Request) -> str:
        """Return why a request of this site is not fetched now; empty if it may be. Seeds always may."""
        if not request.depth or not any(name.startswith(_KEPT) for name in self._memo):
            return ""
        target, now = urls.path_query(request.url), self._clock.epoch()
        prefix = prefix_of(target)
        if sleeping(self._memo, prefix, now=now) or combination_evidence(self._memo, target, now=now):
            return ASLEEP
        budget = self._settings.prefix_budget
        if budget is None or was_seen(request.state):
            return ""
        return SPENT if pages_of(self._memo, prefix) >= budget else ""

    def open(self, links: tuple[Request, ...], refused: Counter[str]) -> tuple[Request, ...]:
        """Return the links without those of this site that would not be fetched now, which are counted by reason."""
        found = []
        for link in links:
            if link.site == self._site and (reason := self.refuse(link)):
                refused[reason] += 1
            else:
                found.append(link)
        return tuple(found)

    def saw(
        self, request: Request, simhash: int | None, links: tuple[Request, ...], *, query_simhash: int | None = None
    ) -> dict[str, Any]:
        """Record a fetched page with its possibly new links; return the changes to the memo.

        `simhash` and `query_simhash` are SimHashes of its main text and of its text outside links, if they may match
        the last page."""
        if was_seen(request.state):
            return {}
        target = urls.path_query(request.url)
        prefix = prefix_of(target)
        leads_on = simhash is not None and any(
            link.site == self._site and prefix_of(urls.path_query(link.url)) == prefix for link in links
        )
        paths = after_page(
            self._memo.get(self._key, {}),
            request.url,
            prefix,
            simhash=simhash,
            leads_on=leads_on,
            now=self._clock.epoch(),
            settings=self._settings,
        )
        changed = {} if paths is None else {self._key: paths}
        queries = self._combined(request.url, target, query_simhash, links)
        return changed if queries is None else {**changed, self._queries: queries}

    def _combined(
        self, url: str, target: str, query_simhash: int | None, links: tuple[Request, ...]
    ) -> dict[str, Place] | None:
        places, place = self._memo.get(self._queries, {}), place_of(target)
        if not place or not self._settings.alike_pages or (query_simhash is None and place not in places):
            return None
        alike = [link.site == self._site and place_of(urls.path_query(link.url)) == place for link in links]
        return after_combination(
            places,
            url,
            target,
            simhash=query_simhash,
            leads_on=any(alike),
            leads_away=not all(alike),
            now=self._clock.epoch(),
            settings=self._settings,
        )
