"""Traps: parts of a site that have no end, each entered by one link from the site's first page."""

from __future__ import annotations

import itertools
import re
from urllib.parse import parse_qsl

from gossamer.sim.answer import SimAnswer, note
from gossamer.sim.kinds import TRAPS
from gossamer.sim.words import draw

ENTRIES = {
    "calendar": "/calendar/2024/1",
    "sessions": "/shop/0?sid=0",
    "deep": "/deep/",
    "soft404": "/soft/0",
    "facets": "/facets",
}
_PREFIXES = {"calendar": "/calendar/", "sessions": "/shop/", "deep": "/deep/", "soft404": "/soft/", "facets": "/facets"}
_FACETS = {"colour": "red green blue", "size": "s m l xl", "order": "up down", "view": "grid list", "page": "1 2 3 4 5"}


def entries(features: frozenset[str]) -> list[str]:
    """The paths by which the traps of a site are entered."""
    return [ENTRIES[name] for name in TRAPS if name in features]


def holds(features: frozenset[str], target: str) -> bool:
    """Whether a path of a site with these features is inside one of its traps."""
    return any(target.startswith(_PREFIXES[name]) for name in TRAPS if name in features)


def trap_answer(seed: int, site: int, target: str, features: frozenset[str]) -> SimAnswer | None:
    """A page inside a trap, None outside; a soft 404 site takes every unknown path, so ask it last."""
    path = target.partition("?")[0]
    if "calendar" in features and (found := re.fullmatch(r"/calendar/(-?\d{1,9})/(\d{1,2})", path)):
        month = int(found[1]) * 12 + int(found[2]) - 1
        near = tuple(f"/calendar/{(month + step) // 12}/{(month + step) % 12 + 1}" for step in (-12, -1, 1, 12))
        return SimAnswer(body=note(f"Calendar {found[1]}-{found[2]}", near))
    if "sessions" in features and path.startswith("/shop/"):
        session = f"{draw(seed, site, target):016x}"
        return SimAnswer(body=note("Shop", tuple(f"/shop/{number}?sid={session}" for number in range(4))))
    if "deep" in features and path.startswith("/deep/"):
        return SimAnswer(body=note("Deeper", ("down/", "down/further/", "../deep/down/")))
    if "facets" in features and path == "/facets":
        return SimAnswer(body=note("Filter", _facets(target)))
    if "soft404" in features:
        return SimAnswer(
            body=note("Not found", tuple(f"/soft/{draw(seed, site, target, number):x}" for number in range(10)))
        )
    return None


def _facets(target: str) -> tuple[str, ...]:
    chosen = dict(parse_qsl(target.partition("?")[2]))
    links: list[str] = []
    for name, values in _FACETS.items():
        for value in values.split():
            pairs = [(key, old) for key, old in chosen.items() if key in _FACETS and key != name] + [(name, value)]
            orders = itertools.islice(itertools.permutations(pairs), 2)
            links.extend("/facets?" + "&".join(f"{key}={picked}" for key, picked in order) for order in orders)
    return tuple(links)
