"""Leaves: the URLs that a site's features hang beside its tree of pages, each with the fate that a crawler owes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gossamer.sim import places, robots, traps
from gossamer.sim.answer import Fate, Leaf, SimAnswer, moved, note, refused

if TYPE_CHECKING:
    from gossamer.sim.site import WebPlan

_CODES = (404, 410, 403, 401, 400, 451)
_FORMS = ("comment", "script", "template", "textarea", "image", "style")
_LOOP, _FAR, _HOPS = 3, 15, 10
_NUMBERED = re.compile(r"/(\w+)/(?:(\w+)-)?(\d{1,12})")


def page_leaves(plan: WebPlan, site: int, page: int, *, sitemaps: bool = False) -> list[Leaf]:
    """The leaves of one page; only every third page has any."""
    features = plan.features(site)
    if not features or page % 3:
        return []
    found: list[Leaf] = []
    kind = robots.kind_of(features)
    if kind in features:
        found += robots.robots_leaves(kind, page, sitemaps=sitemaps)
    if "errors" in features:
        found.append(Leaf(f"/errors/{_CODES[page // 3 % len(_CODES)]}-{page}", "missing"))
    if "nofollow" in features:
        found += [
            Leaf(f"/nofollow/link-{page}", "nofollow", "nofollow"),
            *(Leaf(f"/quiet/{how}-{page}", "page") for how in ("meta", "header")),
            *(Leaf(f"/nofollow/{how}-{page}", "nofollow", "") for how in ("meta", "header")),
        ]
    if "hidden" in features:
        found += [Leaf(f"/hidden/{form}-{page}", "unlinked", form) for form in _FORMS]
    if "outside" in features:
        found += [
            Leaf(plan.url(plan.sites + page % 5, f"/elsewhere/{page}"), "scope"),
            Leaf(f"/away/{page}", "redirect"),
            Leaf(plan.url(plan.sites, f"/elsewhere/away-{page}"), "scope", ""),
        ]
    return found + (_first_page(features) if page == 0 else [])


def _first_page(features: frozenset[str]) -> list[Leaf]:
    found = [Leaf(entry, "optional") for entry in traps.entries(features)] + places.place_leaves(features)
    if "failing" in features:
        found += [Leaf("/failing/500-0", "failing"), Leaf("/failing/reset-0", "failing")]
    if "hangs" in features:
        found.append(Leaf("/hangs/0", "failing"))
    if "loops" in features:
        found += [Leaf("/loops/self-0", "loop"), Leaf("/loops/0", "loop")]
        found += [Leaf(f"/loops/{number}", "loop", "") for number in range(1, _LOOP)]
        found += [Leaf(f"/far/{left}", _far_fate(left), "a" if left == _FAR else "") for left in range(_FAR, -1, -1)]
    return found


def _far_fate(left: int) -> Fate:
    """Chains end after ten hops; whether the tenth target is still fetched is a matter of counting."""
    hops = _FAR - left
    return "loop" if hops < _HOPS else "optional" if hops <= _HOPS + 1 else "unlinked"


def leaf_answer(plan: WebPlan, site: int, target: str) -> SimAnswer | None:
    """What a leaf answers; None where the site has none."""
    features = plan.features(site)
    if robots.kind_of(features) in features and (found := robots.answer_leaf(target)):
        return found
    shape = _NUMBERED.fullmatch(target)
    if shape is None:
        return None
    family, word, number = shape[1], shape[2] or "", int(shape[3])
    if family == "errors" and "errors" in features and word.isdecimal() and int(word) in _CODES:
        return refused(int(word), f"Error {word}.")
    if family in ("nofollow", "hidden") and family in features:
        return SimAnswer(body=note(f"Nobody should read {target}"))
    if family == "quiet" and "nofollow" in features:
        meta = word == "meta"
        return SimAnswer(
            headers=() if meta else (("X-Robots-Tag", "nofollow"),),
            body=note(
                "Quiet", (f"/nofollow/{word}-{number}",), head='<meta name="robots" content="nofollow">' if meta else ""
            ),
        )
    if family == "away" and "outside" in features:
        return moved(302, plan.url(plan.sites, f"/elsewhere/away-{number}"))
    if family == "failing" and "failing" in features:
        return SimAnswer(fault="reset") if word == "reset" else refused(500, "Always out of order.")
    if family == "hangs" and "hangs" in features:
        return SimAnswer(fault="hang")
    if family == "loops" and "loops" in features:
        return moved(302, target if word == "self" else f"/loops/{(number + 1) % _LOOP}")
    if family == "far" and "loops" in features:
        return moved(301, f"/far/{number - 1}") if number else SimAnswer(body=note("Too far"))
    return None


def written(leaf: Leaf) -> str:
    """A leaf as its page writes it in HTML."""
    match leaf.form:
        case "a":
            return f'<a href="{leaf.target.replace("&", "&amp;")}">see also</a>'
        case "nofollow":
            return f'<a rel="external nofollow" href="{leaf.target}">sponsored</a>'
        case "comment":
            return f'<!-- <a href="{leaf.target}">old</a> -->'
        case "script":
            return f"<script>document.write('<a href=\"{leaf.target}\">script</a>')</script>"
        case "template":
            return f'<template><a href="{leaf.target}">template</a></template>'
        case "textarea":
            return f'<textarea><a href="{leaf.target}">text</a></textarea>'
        case "image":
            return f'<img alt="" src="{leaf.target}" data-href="{leaf.target}">'
        case "style":
            return f'<link rel="stylesheet" href="{leaf.target}">'
        case _:
            return ""
