"""The rule against pages that only combine the same filters anew, as pure functions: one path, endless queries.

Such pages list other pages, so their text differs with their links, and each set of parameters looks like a part of
the site of its own. So they are known by what they say beside their links and by where they lead: a row of pages of
one path that say the same, and lead to nothing new but to other queries of that path, puts to sleep what its queries
have in common. One parameter that counts pages makes no such row: it takes three sets, or orders, of parameters.

What is known is kept in the site's memo, under a key for each lane, so that a lane has one writer:

    "queries.0": {"/list": {"alike": 12, "like": "8f3c...", "first": URL, "common": ["view", "view=grid"],
                            "shapes": ["view", "view&size"], "asleep": [...]}}

Each that is asleep keeps the evidence:

    {"common": [], "asleep_until": 1.8e9, "copies": 20, "since": URL, "example": URL}   the row, its first and last page
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gossamer.frontier.traps import are_near
from gossamer.settings import Settings

QUERIES = "queries"
_MOST_PLACES = 16
_MOST_FAMILIES = 8
_MOST_PAIRS = 8
_SHAPES = 3
_LONGEST_PAIR = 60
_LONGEST = 200

Place = dict[str, Any]


def place_of(target: str) -> str:
    """The path of a path with query, empty if there is no query."""
    path, _, query = target.partition("?")
    return path[:_LONGEST] if query else ""


def features(target: str) -> set[str]:
    """What queries may have in common: the names of their parameters, and the names with their values."""
    found: set[str] = set()
    for pair in sorted(target.partition("?")[2].split("&"))[:_MOST_PAIRS]:
        found |= {pair.partition("=")[0][:_LONGEST_PAIR], pair[:_LONGEST_PAIR]}
    return found


def _shape(target: str) -> str:
    return "&".join(pair.partition("=")[0] for pair in target.partition("?")[2].split("&"))[:_LONGEST]


def combination_evidence(memo: Mapping[str, Any], target: str, *, now: float) -> Place | None:
    """Why queries like this one are asleep; None if they are awake."""
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
    likeness: int | None,
    leads_on: bool,
    leads_away: bool,
    now: float,
    settings: Settings,
) -> dict[str, Place] | None:
    """A lane's places after one more page with a query; None if that changes nothing that is worth keeping.

    `likeness` is the SimHash of what the page says beside its links, None if it is plainly not like the last one. A
    page that is near the last one of its path, and `leads_on` to new queries of it and not `leads_away`, makes the
    row longer; one that is near and leads nowhere new says nothing; any other one ends the row."""
    place = place_of(target)
    before = places.get(place, {})
    near = likeness is not None and bool(before.get("like")) and are_near(int(before["like"], 16), likeness)
    if near and not leads_on and not leads_away:
        return None
    asleep = [family for family in before.get("asleep", ()) if family["asleep_until"] > now]
    after: Place = {"asleep": asleep} if asleep else {}
    if likeness is not None and leads_on and not leads_away:
        row = _row(before if near else {}, url, target)
        if row["alike"] >= settings.alike_pages and len(row["shapes"]) >= _SHAPES:
            family = {
                "common": row["common"], "asleep_until": round(now + settings.sleep_seconds), "copies": row["alike"],
                "since": row["first"], "example": url[:_LONGEST],
            }  # fmt: skip
            after = {"asleep": _with(asleep, family)}
        else:
            # A row that only counts pages is not written down for ever.
            after |= {**row, "alike": min(row["alike"], settings.alike_pages), "like": f"{likeness:016x}"}
    if after == before:
        return None
    others = {name: other for name, other in places.items() if name != place}
    return _bounded_combinations({**others, place: after} if after else others)


def _row(before: Place, url: str, target: str) -> Place:
    """A row with one more page."""
    own, shape, shapes = features(target), _shape(target), before.get("shapes", [])
    return {
        "alike": before.get("alike", 0) + 1,
        "first": before.get("first", url[:_LONGEST]),
        "common": sorted(own.intersection(before["common"]) if before else own),
        "shapes": shapes if shape in shapes or len(shapes) >= _SHAPES else [*shapes, shape],
    }


def _with(asleep: list[Place], family: Place) -> list[Place]:
    """A second row with the same parameters, though with other values, speaks against all of their values."""
    names = _names(family)
    same = [other for other in asleep if _names(other) == names]
    for other in same:
        family = {**family, "common": sorted({*family["common"]}.intersection(other["common"]))}
    return [*(other for other in asleep if other not in same), family][-_MOST_FAMILIES:]


def _names(family: Place) -> set[str]:
    return {name.partition("=")[0] for name in family["common"]}


def _bounded_combinations(places: dict[str, Place]) -> dict[str, Place]:
    """The places that matter most, if there are too many: those where something is asleep, then the longest rows."""
    if len(places) <= _MOST_PLACES:
        return places
    # The newest would be first to go, and could then never grow.
    *older, newest = places
    weight = {name: (bool(places[name].get("asleep")), places[name].get("alike", 0)) for name in older}
    kept = sorted(older, key=lambda name: weight[name], reverse=True)[: _MOST_PLACES - 1]
    return {name: places[name] for name in (*kept, newest)}
