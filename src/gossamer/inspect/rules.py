"""What each rule of a job says of a URL: scope, robots, depth, traps; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from time import gmtime, strftime
from typing import Any, NamedTuple

from gossamer import urls
from gossamer.engine import traps
from gossamer.engine.robots_txt import Matcher, Robots, Rulings, unpack
from gossamer.engine.scope import Scope
from gossamer.settings import Settings


class Ruling(NamedTuple):
    """What one rule says of a URL."""

    allows: bool
    rule: str
    """The word for it: `scope`, `robots`, `asleep` and so on."""
    words: str
    """A whole sentence."""
    setting: str = ""
    """The setting that it comes from, with its value."""
    evidence: Mapping[str, Any] | None = None


def when(epoch: float) -> str:
    """A moment, as people read it."""
    return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(epoch))


def scope_ruling(url: str, settings: Settings, *, page: str, depth: int, year: int) -> Ruling:
    """Whether a link to `url`, found on a page, would be followed at this depth."""
    reason = Scope(settings).refuse(url, page, depth)
    if reason is None and traps.has_far_date(urls.path_query(url), year=year, settings=settings):
        reason = "calendar"
    if reason is not None:
        words, setting = _refusal(reason, url, settings, page=page, depth=depth)
        return Ruling(False, reason, words, setting)
    allowed = _matching(settings.allow, url)
    if allowed:
        return Ruling(True, "allow", f"It matches {allowed!r} of --allow.", f"allow = {allowed}")
    near = {
        "any": "Links to every site are followed.",
        "domain": f"It is on the domain of the page that links to it ({urls.registered_domain(urls.host_port(url))}).",
        "site": f"It is on the site of the page that links to it ({urls.host_port(url)}).",
    }[settings.scope]
    return Ruling(True, "scope", near, f"scope = {settings.scope}")


def _refusal(reason: str, url: str, settings: Settings, *, page: str, depth: int) -> tuple[str, str]:
    """A sentence, and the setting with its value."""
    denied = _matching(settings.deny, url)
    extension = url.partition("?")[0].rpartition(".")[2]
    far = {"site": "on another site than", "domain": "on another domain than", "any": ""}[settings.scope]
    return {
        "depth": (
            f"It is {depth} links from the nearest seed, and links are followed {settings.max_depth} deep.",
            f"max_depth = {settings.max_depth}",
        ),
        "length": (
            f"It has {len(url):,} characters, and {settings.max_url_length:,} are the most.",
            f"max_url_length = {settings.max_url_length}",
        ),
        "scope": (
            f"{urls.host_port(url)} is {far} the page that links to it ({urls.host_port(page)}).",
            f"scope = {settings.scope}",
        ),
        "deny": (f"It matches {denied!r} of --deny.", f"deny = {denied}"),
        "allow": ("It matches nothing of --allow.", f"allow = {', '.join(settings.allow)}"),
        "extension": (
            f"What ends in .{extension} is taken for a file, not a page, unless --allow names it.",
            "allow is not set",
        ),
        "segments": (
            f"Its path has more than {settings.max_segments} segments.",
            f"max_segments = {settings.max_segments}",
        ),
        "repeats": (
            f"A segment of its path stands there more than {settings.max_repeats} times, as in a loop of links.",
            f"max_repeats = {settings.max_repeats}",
        ),
        "calendar": (
            f"It names a date more than {settings.years_ahead} years ahead or {settings.years_back} back: calendars "
            "have no end.",
            f"years_ahead = {settings.years_ahead}, years_back = {settings.years_back}",
        ),
    }[reason]


def _matching(patterns: tuple[str, ...], url: str) -> str:
    return next((pattern for pattern in patterns if re.search(pattern, url)), "")


class RobotsSays:
    """What the robots.txt of an origin, as it was last fetched, says of paths."""

    def __init__(self, packed: bytes | None, origin: str, settings: Settings) -> None:
        self._obeys = settings.robots
        self._file = f"{origin}/robots.txt"
        self.known: Robots | None = unpack(packed) if packed is not None else None
        rules = self.known.rules if self.known is not None else None
        self._matcher = Matcher(rules) if rules is not None else None
        self._rulings = Rulings(rules) if rules is not None else None

    def rule_for(self, path_query: str) -> str:
        """The line of the file that decides, in short."""
        if not self._obeys:
            return "robots.txt is not asked"
        if path_query == "/robots.txt":
            return "robots.txt itself"
        if self.known is None:
            return "robots.txt not known"
        if self.known.kind != "rules":
            return {"allow": "no robots.txt", "unreachable": "robots.txt cannot be had"}[self.known.kind]
        assert self._rulings is not None
        rule = self._rulings.of(path_query)
        return "no rule for it" if rule is None else f"{'Allow' if rule[1] else 'Disallow'}: {rule[0]}"

    def ruling(self, path_query: str) -> Ruling:
        """Whether a path may be fetched, and by which line."""
        if not self._obeys:
            return Ruling(True, "robots", "robots.txt is not asked.", "robots = false")
        robots, file = self.known, self._file
        if robots is None:
            return Ruling(True, "robots", f"{file} has not been asked for yet; that comes first.", "robots = true")
        if robots.kind == "unreachable":
            since = when(robots.failing_since)
            row = f"{robots.failures} times in a row since {since}" if robots.failures > 1 else f"at {since}"
            again = f"It is asked for again from {when(robots.good_until)} on."
            words = f"{file} could not be had {row}, so nothing may be fetched. {again}"
            return Ruling(False, "robots-unreachable", words, "robots = true")
        fetched = f"as of {when(robots.fetched_at)}"
        if robots.kind == "allow":
            return Ruling(True, "robots", f"There is no {file}, so all may be fetched ({fetched}).", "robots = true")
        assert self._matcher is not None
        allows, line = self._matcher.allowed(path_query), self.rule_for(path_query)
        said = f"has {line.replace('no rule for it', 'no rule for it, so it may be fetched')}"
        if not line.startswith("no rule"):
            said = f"says {line!r}" + (", so it may be fetched" if allows else ", so it is not fetched")
        cut = " Only the first 512 KiB of the file were read." if "file-cut" in robots.rules.flags else ""
        return Ruling(allows, "robots", f"{file} {said} ({fetched}).{cut}", "robots = true")


def path_ruling(url: str, memo: Mapping[str, Any], settings: Settings, *, now: float) -> Ruling | None:
    """Whether the part of the site that the URL belongs to is asleep, or has given its pages; None if neither."""
    target = urls.path_query(url)
    prefix = traps.prefix_of(target)
    family = traps.combination_evidence(memo, target, now=now)
    if family is not None:
        query = f"{', '.join(family['common'])} in its query" if family["common"] else "any query"
        words = (
            f"{traps.place_of(target)} with {query} sleeps until {when(family['asleep_until'])}: "
            f"{family['copies']} pages in a row, from {family['since']} to {family['example']}, said the same beside "
            "their links, which led to nothing new but other queries."
        )
        return Ruling(False, "asleep", words, f"alike_pages = {settings.alike_pages}", family)
    found = traps.evidence(memo, prefix, now=now)
    if found is not None:
        copies = found.get("copies", settings.alike_pages)
        row = f"from {found['since']} to {found['example']}" if "since" in found else f"up to {found['example']}"
        words = (
            f"{prefix} sleeps until {when(found['asleep_until'])}: {copies} pages in a row, {row}, were "
            "near-duplicates that led on to more of their kind."
        )
        evidence = {"prefix": prefix, **found}
        return Ruling(False, "asleep", words, f"alike_pages = {settings.alike_pages}", evidence)
    pages = traps.pages_of(memo, prefix)
    if settings.prefix_budget is not None and pages >= settings.prefix_budget:
        words = f"{prefix} has given its {settings.prefix_budget:,} pages."
        return Ruling(False, "prefix-budget", words, f"prefix_budget = {settings.prefix_budget}", {"pages": pages})
    return None
