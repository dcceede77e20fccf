"""Evaluates the rules of a job for a URL: scope, robots.txt, depth, and crawler traps. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from time import gmtime, strftime
from typing import Any, NamedTuple

from gossamer import urls
from gossamer.engine import traps
from gossamer.engine.robots_txt import Matcher, Robots, RuleFinder, unpack
from gossamer.engine.scope import Scope
from gossamer.settings import Settings


class Ruling(NamedTuple):
    """The result of one rule for a URL."""

    allows: bool
    rule: str
    """Name of the rule: `scope`, `robots`, `asleep`, and so on."""
    words: str
    """The explanation, as a sentence."""
    setting: str = ""
    """The setting behind the rule, with its value."""
    evidence: Mapping[str, Any] | None = None


def when(epoch: float) -> str:
    """Format a time in UTC."""
    return strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(epoch))


def scope_ruling(url: str, settings: Settings, *, page: str, depth: int, year: int) -> Ruling:
    """Whether the crawl follows a link to `url` on `page`, at this depth."""
    reason = Scope(settings).refuse(url, page, depth)
    if reason is None and traps.has_far_date(urls.path_query(url), year=year, settings=settings):
        reason = "calendar"
    if reason is not None:
        words, setting = _refusal(reason, url, settings, page=page, depth=depth)
        return Ruling(False, reason, words, setting)
    allowed = _matching(settings.allow, url)
    if allowed:
        return Ruling(True, "allow", f"It matches --allow {allowed!r}.", f"allow = {allowed}")
    near = {
        "any": "Links to all sites are followed.",
        "domain": f"It is on the domain of the page linking to it ({urls.registered_domain(urls.host_port(url))}).",
        "site": f"It is on the same site as the page that links to it ({urls.host_port(url)}).",
    }[settings.scope]
    return Ruling(True, "scope", near, f"scope = {settings.scope}")


def _refusal(reason: str, url: str, settings: Settings, *, page: str, depth: int) -> tuple[str, str]:
    """The explanation of a refusal, and the setting with its value."""
    denied = _matching(settings.deny, url)
    extension = url.partition("?")[0].rpartition(".")[2]
    far = {"site": "on another site than", "domain": "on another domain than", "any": ""}[settings.scope]
    return {
        "depth": (
            f"It is {depth} links from the nearest seed, and the limit is {settings.max_depth}.",
            f"max_depth = {settings.max_depth}",
        ),
        "length": (
            f"It has {len(url):,} characters, and the limit is {settings.max_url_length:,}.",
            f"max_url_length = {settings.max_url_length}",
        ),
        "scope": (
            f"{urls.host_port(url)} is {far} the page that links to it ({urls.host_port(page)}).",
            f"scope = {settings.scope}",
        ),
        "deny": (f"It matches --deny {denied!r}.", f"deny = {denied}"),
        "allow": ("It matches no --allow pattern.", f"allow = {', '.join(settings.allow)}"),
        "extension": (
            f"URLs that end in .{extension} count as files, not pages, unless --allow matches them.",
            "allow is not set",
        ),
        "segments": (
            f"Its path has more than {settings.max_segments} segments.",
            f"max_segments = {settings.max_segments}",
        ),
        "repeats": (
            f"A segment of its path occurs more than {settings.max_repeats} times, as in a loop of links.",
            f"max_repeats = {settings.max_repeats}",
        ),
        "calendar": (
            f"It contains a date more than {settings.years_ahead} years ahead or {settings.years_back} years back, as "
            "in endless calendars.",
            f"years_ahead = {settings.years_ahead}, years_back = {settings.years_back}",
        ),
    }[reason]


def _matching(patterns: tuple[str, ...], url: str) -> str:
    return next((pattern for pattern in patterns if re.search(pattern, url)), "")


class RobotsRules:
    """The last fetched robots.txt of an origin, and its rules for paths."""

    def __init__(self, packed: bytes | None, origin: str, settings: Settings) -> None:
        self._obeys = settings.robots
        self._file = f"{origin}/robots.txt"
        self.known: Robots | None = unpack(packed) if packed is not None else None
        rules = self.known.rules if self.known is not None else None
        self._matcher = Matcher(rules) if rules is not None else None
        self._rulings = RuleFinder(rules) if rules is not None else None

    def rule_for(self, path_query: str) -> str:
        """The line of the file that applies to a path, or why there is none."""
        if not self._obeys:
            return "robots.txt ignored"
        if path_query == "/robots.txt":
            return "robots.txt itself"
        if self.known is None:
            return "robots.txt not fetched"
        if self.known.kind != "rules":
            return {"allow": "no robots.txt", "unreachable": "robots.txt unreachable"}[self.known.kind]
        assert self._rulings is not None
        rule = self._rulings.of(path_query)
        return "no matching rule" if rule is None else f"{'Allow' if rule[1] else 'Disallow'}: {rule[0]}"

    def ruling(self, path_query: str) -> Ruling:
        """Whether a path may be fetched, and by which line of the file."""
        if not self._obeys:
            return Ruling(True, "robots", "The job ignores robots.txt.", "robots = false")
        robots, file = self.known, self._file
        if robots is None:
            return Ruling(True, "robots", f"{file} is fetched first, before any page.", "robots = true")
        if robots.kind == "unreachable":
            since = when(robots.failing_since)
            row = f"{robots.failures} times in a row since {since}" if robots.failures > 1 else f"at {since}"
            again = f"The next attempt is after {when(robots.good_until)}."
            words = f"{file} could not be fetched {row}, so no page may be. {again}"
            return Ruling(False, "robots-unreachable", words, "robots = true")
        fetched = f"fetched {when(robots.fetched_at)}"
        if robots.kind == "allow":
            return Ruling(
                True, "robots", f"{file} does not exist, so all pages are allowed ({fetched}).", "robots = true"
            )
        assert self._matcher is not None
        allows, line = self._matcher.allowed(path_query), self.rule_for(path_query)
        verdict = "allows it: no rule matches" if line == "no matching rule" else f"allows it with {line!r}"
        if not allows:
            verdict = f"disallows it with {line!r}"
        cut = " Only the first 512 KiB of the file were read." if "file-cut" in robots.rules.flags else ""
        return Ruling(allows, "robots", f"{file} {verdict} ({fetched}).{cut}", "robots = true")


def path_ruling(url: str, memo: Mapping[str, Any], settings: Settings, *, now: float) -> Ruling | None:
    """Whether the path prefix of the URL is asleep or has used its budget; None if neither."""
    target = urls.path_query(url)
    prefix = traps.prefix_of(target)
    family = traps.combination_evidence(memo, target, now=now)
    if family is not None:
        query = f"{', '.join(family['common'])} in its query" if family["common"] else "any query"
        words = (
            f"{traps.place_of(target)} with {query} is skipped until {when(family['asleep_until'])}: "
            f"{family['copies']} pages in a row, from {family['since']} to {family['example']}, had the same text and "
            "linked only to other query combinations."
        )
        return Ruling(False, "asleep", words, f"alike_pages = {settings.alike_pages}", family)
    found = traps.evidence(memo, prefix, now=now)
    if found is not None:
        copies = found.get("copies", settings.alike_pages)
        row = f"from {found['since']} to {found['example']}" if "since" in found else f"up to {found['example']}"
        words = (
            f"{prefix} is skipped until {when(found['asleep_until'])}: {copies} pages in a row, {row}, were "
            "near-duplicates that linked to more of them."
        )
        evidence = {"prefix": prefix, **found}
        return Ruling(False, "asleep", words, f"alike_pages = {settings.alike_pages}", evidence)
    pages = traps.pages_of(memo, prefix)
    if settings.prefix_budget is not None and pages >= settings.prefix_budget:
        words = f"{prefix} has reached its limit of {settings.prefix_budget:,} pages."
        return Ruling(False, "prefix-budget", words, f"prefix_budget = {settings.prefix_budget}", {"pages": pages})
    return None
