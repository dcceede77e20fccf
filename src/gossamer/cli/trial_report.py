"""The findings of `gossamer try`, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gossamer.cli import figures
from gossamer.cli.summary import REFUSED
from gossamer.logs import plain

_KINDS = {
    "rules": "has rules",
    "allow": "is not there, so all is allowed",
    "unreachable": "could not be had, so nothing may be fetched",
}


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report as lines that a terminal can be shown."""
    return [
        plain(line, 400) for part in (_pages, _robots_words, _scope, _selectors, _estimate) for line in part(report)
    ]


def _pages(report: Mapping[str, Any]) -> Iterator[str]:
    codes = ", ".join(f"{code}: {count}" for code, count in report["codes"].items())
    yield f"pages     {report['pages']} looked at" + (f" ({codes})" if codes else "")
    if report["latency"]:
        middle, largest = (1000 * report["latency"][name] for name in ("median", "largest"))
        yield f"answers   after {middle:,.0f} ms (median), {largest:,.0f} ms at most"
    if report["bytes"]:
        middle, largest = (report["bytes"][name] for name in ("median", "largest"))
        yield f"sizes     {figures.size(middle)} (median), {figures.size(largest)} at most"
    if report["cut"]["pages"]:
        yield f"cut       {figures.many(report['cut']['pages'], 'page')}: {report['cut']['words']}"
    for kind, count in figures.most(report["failed"], 5):
        yield f"failed    {count} {kind}"
    for kind, count in figures.most(report["skipped"], 5):
        yield f"skipped   {count} {kind}"
    for text in dict.fromkeys(report["advice"]):
        yield f"          {text}"
    if report["items"]["found"]:
        yield f"items     {report['items']['found']}, such as {report['items']['examples'][0]}"


def _robots_words(report: Mapping[str, Any]) -> Iterator[str]:
    if report["robots"] is None:
        yield "robots    not asked (--no-robots)"
        return
    for entry in report["robots"]:
        yield f"robots    {entry['origin']}/robots.txt {_KINDS[entry['kind']]}"
        for verb, pattern in entry["rules"] if entry["kind"] == "rules" else ():
            yield f"          {verb} {pattern}"
        if entry["rule_count"] > len(entry["rules"]):
            yield f"          and {entry['rule_count'] - len(entry['rules'])} more rules"
        for sitemap in entry["sitemaps"][:3]:
            yield f"          sitemap {sitemap}"
        if entry["crawl_delay"] is not None:
            yield f"          crawl-delay {entry['crawl_delay']:g} s"
    yield f"delay     {report['delay']:g} s between two requests to a site"


def _scope(report: Mapping[str, Any]) -> Iterator[str]:
    scope = report["scope"]
    yield f"follows   {figures.many(scope['followed'], 'link')} (--scope {scope['setting']})"
    for url in scope["examples"]:
        yield f"          {url}"
    for reason, found in sorted(scope["refused"].items(), key=lambda pair: -pair[1]["links"]):
        yield f"refuses   {figures.many(found['links'], 'link')}: {REFUSED.get(reason, reason)}"
        for url in found["examples"][:2]:
            yield f"          {url}"


def _selectors(report: Mapping[str, Any]) -> Iterator[str]:
    if report["selectors"]:
        yield "selectors that may be worth it, with what they gave:"
    for found in report["selectors"]:
        yield f"  --extract {found['name']}='{found['selector']}'"
        yield f"      {' | '.join(sample[:50] for sample in found['samples'])}"


def _estimate(report: Mapping[str, Any]) -> Iterator[str]:
    guess = report["estimate"]
    if not report["good_pages"]:
        yield "hint: no page came back, so there is nothing to estimate; `gossamer fetch URL` shows more"
        return
    about = "about" if guess["bounded"] else "at least"
    if guess["queued"] == 0:
        about = "all"
    yield (
        f"estimate  {about} {figures.many(guess['pages'], 'page')}, {figures.span(guess['seconds'])}, "
        f"{figures.size(guess['bytes'])}"
    )
    if guess["queued"] and not guess["bounded"]:
        yield (
            f"          pages still bring {guess['new_links_per_page']:g} new links each: "
            "nobody knows yet where it ends; --max-pages sets an end"
        )
    if not report["has_contact"]:
        yield "hint: say who is crawling: --user-agent 'NAME/1.0 (+https://your.site; you@your.site)'"
    yield f"next: {report['command']}"
