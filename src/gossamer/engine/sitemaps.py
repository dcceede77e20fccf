"""Sitemaps in a crawl: where to find them, which of their pages to queue, and when to read them again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.engine.links import Linker
from gossamer.engine.robots_txt import MAX_SITEMAPS, Robots
from gossamer.engine.verdict import Verdict
from gossamer.extract.sitemap import PROBLEMS, Sitemap, SitemapEntry, parse
from gossamer.frontier import recrawl
from gossamer.model import Request, Response
from gossamer.settings import Settings

log = logging.getLogger("gossamer.engine")
CHUNK = 5000
"""Max requests that go to the frontier in one call."""
MAX_LEVEL = 3
"""Max indexes between a robots.txt and a sitemap; the protocol has one."""
READ, NONE, FAILED = "sitemap", "no-sitemap", "sitemap-failed"
"""Reasons of the outcomes of sitemaps. A missing sitemap at a default location is no failure."""
FUTURE_SECONDS = 86_400.0
USUAL, OTHER = "/sitemap.xml", "/sitemap_index.xml"
"""Default locations of a sitemap that no robots.txt names; the second is tried if there is none at the first."""
_MARK = "sitemaps"
_INLINE_BYTES = 65_536
_SLICE = 1000
_SAMPLE = 20
_GRAVE = frozenset(PROBLEMS) - {"no-url", "bad-lastmod", "too-many-extras"}


class Discovery(NamedTuple):
    """The sitemaps of an origin, and the resulting site state."""

    requests: Sequence[Request]
    memo: dict[str, Any]


class SitemapResult(NamedTuple):
    """The result of reading a sitemap."""

    reason: str
    requests: Sequence[Request] = ()
    again_in: float | None = None
    state: dict[str, Any] | None = None
    memo: dict[str, Any] | None = None


class Sitemaps:
    """The sitemaps of one worker."""

    def __init__(self, settings: Settings, linker: Linker, clock: Clock) -> None:
        self._settings = settings
        self._linker = linker
        self._clock = clock

    def has_looked_up(self, url: str, memo: dict[str, Any]) -> bool:
        """Return whether the sitemaps of this URL's origin were looked up."""
        return _mark(url) in memo

    def discover(self, url: str, robots: Robots, memo: dict[str, Any]) -> Discovery | None:
        """Return requests for the sitemaps that a robots.txt names, or the default one; None if they are queued
        already.

        A robots.txt that was fetched again may name others."""
        settings = self._settings
        if (robots.kind == "unreachable" and settings.robots) or memo.get(_mark(url), -1.0) >= robots.fetched_at:
            return None
        if settings.max_depth == 0:
            return None
        origin = urls.origin(url)
        if "sitemaps-cut" in robots.rules.flags:
            log.warning("%s/robots.txt lists more than %d sitemaps: ignoring the rest", origin, MAX_SITEMAPS)
            self._linker.refused["sitemap-files"] += 1
        named = [found for name in robots.rules.sitemaps if (found := urls.join(origin, name)) is not None]
        referrer = f"{origin}/robots.txt" if named else ""
        requests = [
            self._linker.sitemap(sitemap, origin=origin, level=0, referrer=referrer)
            for sitemap in dict.fromkeys(named or [f"{origin}{USUAL}"])
        ]
        return Discovery(requests, {_mark(url): robots.fetched_at})

    async def read(
        self, request: Request, response: Response | None, verdict: Verdict, memo: dict[str, Any]
    ) -> SitemapResult:
        """Return the result of a sitemap, or of a missing one."""
        before = request.state or {}
        if verdict.status != "done" or response is None:
            if request.referrer:
                log.warning("sitemap %s: %s", request.url, verdict.reason)
                return self._result(FAILED, before, {}, same=True)
            return self._result(NONE, before, {}, same=True, requests=self._second_location(request))
        if verdict.target:
            moved = self._linker.sitemap(verdict.target, **_standing(request), referrer=request.referrer)
            moved = msgspec.structs.replace(moved, hops=request.hops + 1)
            return self._result(READ, before, {}, same=False, requests=[moved])
        digest = hashlib.sha1(response.body, usedforsecurity=False).hexdigest()
        if response.status == 304 or digest == before.get("digest"):
            return self._result(READ, before, before, same=True)
        kind = response.header("content-type")
        if len(response.body) > _INLINE_BYTES:
            found = await asyncio.to_thread(parse, response.body, request.url, kind)
        else:
            found = parse(response.body, request.url, kind)
        if not found.kind and not request.referrer:
            return self._result(NONE, before, {"digest": digest}, same=True, requests=self._second_location(request))
        if response.cut:
            found.problems["cut"] = 1
        self._report(request, found)
        children, counted = self._children(request, found, int(before.get("children", 0)), memo)
        pages = await self._pages(request, found, memo)
        state = {
            "digest": digest,
            "etag": recrawl.validator(response.header("etag")),
            "modified": recrawl.validator(response.header("last-modified")),
            "listed": len(found.pages),
            "children": len(children),
        }
        return self._result(READ, before, state, same=False, requests=[*children, *pages], memo=counted)

    def _second_location(self, request: Request) -> list[Request]:
        """Return the second default location, if the sitemap at the first is missing and was not named by a
        robots.txt."""
        standing = _standing(request)
        url = f"{standing['origin']}{OTHER}"
        return [self._linker.sitemap(url, **standing, referrer="")] if request.url != url else []

    def _result(
        self,
        reason: str,
        before: dict[str, Any],
        state: dict[str, Any],
        *,
        same: bool,
        requests: Sequence[Request] = (),
        memo: dict[str, Any] | None = None,
    ) -> SitemapResult:
        """Return the result with the next visit: a changed sitemap after the usual interval, others after twice the
        last one."""
        settings = self._settings
        wait = min(2.0 * before.get("wait", settings.sitemap_seconds / 2), settings.revisit_seconds)
        wait = max(wait, settings.sitemap_seconds) if same else settings.sitemap_seconds
        state = {**state, "wait": wait, "seen_at": self._clock.epoch()}
        return SitemapResult(reason, requests, wait if settings.recrawl else None, state, memo)

    def _children(
        self, request: Request, found: Sitemap, before: int, memo: dict[str, Any]
    ) -> tuple[list[Request], dict[str, Any]]:
        """Return requests for the files of an index, and the site's number of files so far."""
        standing = _standing(request)
        inside = self._of_host(request, found.sitemaps)
        if not inside:
            return [], {}
        if standing["level"] >= MAX_LEVEL:
            self._linker.refused["sitemap-depth"] += len(inside)
            return [], {}
        so_far = int(memo.get(f"{_MARK}.count", 0))
        room = max(0, self._settings.max_sitemaps - so_far) + before
        if len(inside) > room:
            self._linker.refused["sitemap-files"] += len(inside) - room
        standing["level"] += 1
        children = [self._linker.sitemap(entry.url, **standing, referrer=request.url) for entry in inside[:room]]
        return children, {f"{_MARK}.count": so_far + max(0, len(children) - before)}

    async def _pages(self, request: Request, found: Sitemap, memo: dict[str, Any]) -> list[Request]:
        """Return requests for the pages that are in scope; between slices other tasks run.

        If most change times of a site's sitemaps were wrong, only a few are trusted, to see whether they still are."""
        now, source = self._clock.epoch(), f"{_standing(request)['origin']}/"
        inside = self._of_host(request, found.pages)
        trusted = recrawl.trusts_hints(memo)
        requests: list[Request] = []
        for number, entry in enumerate(inside):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            lastmod = entry.lastmod
            if lastmod is not None and (lastmod > now + FUTURE_SECONDS or not (trusted or number % _SAMPLE == 0)):
                lastmod = None
            made = self._linker.listed(entry.url, source=source, referrer=request.url, lastmod=lastmod)
            if made is not None:
                requests.append(made)
            for url in entry.alternates:
                if not self._is_of_host(request, url):
                    self._linker.refused["sitemap-host"] += 1
                elif (other := self._linker.listed(url, source=source, referrer=request.url)) is not None:
                    requests.append(other)
        return list({made.key: made for made in reversed(requests)}.values())[::-1]

    def _of_host(self, request: Request, entries: Sequence[SitemapEntry]) -> list[SitemapEntry]:
        """Return the entries that pass the cross-host rule: a sitemap may list its own host, and the host whose
        robots.txt led to it."""
        inside = [entry for entry in entries if self._is_of_host(request, entry.url)]
        if len(inside) < len(entries):
            self._linker.refused["sitemap-host"] += len(entries) - len(inside)
        return inside

    def _is_of_host(self, request: Request, url: str) -> bool:
        spoken_for = (_host(request.url), _host(f"{_standing(request)['origin']}/"))
        return _host(url) in spoken_for

    def _report(self, request: Request, found: Sitemap) -> None:
        if found.problems:
            self._linker.refused["sitemap-broken"] += sum(found.problems.values())
        if not _GRAVE.isdisjoint(found.problems):
            problems = ", ".join(f"{name} ({count})" for name, count in found.problems.items())
            log.warning("sitemap %s: %s", request.url, problems)


def _mark(url: str) -> str:
    return f"{_MARK}.{urls.origin(url)}"


def _host(url: str) -> str:
    """Return the host as the scope compares it: without `www.`."""
    return urls.host_port(url).removeprefix("www.")


def _standing(request: Request) -> dict[str, Any]:
    """Return the origin on whose behalf a sitemap is read, and the number of indexes before it."""
    meta = request.meta or {}
    return {"origin": str(meta.get("for") or urls.origin(request.url)), "level": int(meta.get("level", 0))}
