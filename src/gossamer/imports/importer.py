"""Imports requests and fingerprints from other crawlers into the frontier of a job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.engine.links import Linker, RecentKeys
from gossamer.frontier.base import Adopting, Frontier
from gossamer.frontier.placement import shard_of
from gossamer.imports.pickles import in_json
from gossamer.model import Outcome, Request
from gossamer.settings import Settings


class ImportedRequest(NamedTuple):
    """A request from an import source; `is_done` if it has been fetched."""

    url: str
    method: str = "GET"
    body: bytes = b""
    priority: int = 0
    is_done: bool = False
    fetched_at: float | None = None
    """Epoch seconds of the fetch, if known."""
    fields: dict[str, Any] | None = None
    """All fields of a Scrapy request, from `Request.to_dict`."""
    is_sitemap: bool = False
    """Whether the URL is that of a sitemap, not of a page."""


class ImportedFingerprint(NamedTuple):
    """The fingerprint of a request that was queued before; the request cannot be derived from it."""

    fingerprint: bytes


class Unread(NamedTuple):
    """An entry that cannot be imported, and why; `url` if it is a queued request."""

    what: str
    why: str
    url: str = ""


Finding = ImportedRequest | ImportedFingerprint | Unread

_TOGETHER = 2000
_MOST_SHOWN = 20
_LANES = 500
SEEN_SITE = "seen.invalid"
"""The site of fingerprints, which have none: the TLD `.invalid` is reserved."""


class Maker(Protocol):
    """Converts imported requests and fingerprints to requests, as the workers of the job would create them."""

    changed: Counter[str]
    """Conversions that changed a value, with the number of times each occurred."""

    def request(self, found: ImportedRequest) -> Request | str:
        """Convert to a request, or return why that is not possible."""
        ...

    def seen(self, seen: ImportedFingerprint, shards: int) -> list[Request] | str:
        """Placeholder requests for a fingerprint, one per shard, or why there are none."""
        ...


class ImportCounts:
    """The result of an import: counts, unread entries, and changed values."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.unread: list[Unread] = []
        self.changed: Counter[str] = Counter()

    def refuse(self, what: str, why: str) -> None:
        self.counts["refused"] += 1
        if len(self.unread) < _MOST_SHOWN:
            self.unread.append(Unread(what, why))


class PageMaker:
    """Makes requests for Gossamer's workers: a callback's name becomes the label, plain values become the meta."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        self._linker = Linker(settings, secret, RecentKeys(2))
        self._secret = secret
        self.changed: Counter[str] = Counter()

    def request(self, found: ImportedRequest) -> Request | str:
        url = urls.normal(found.url if "://" in found.url else f"https://{found.url}")
        if url is None:
            return "not a URL that can be crawled"
        if found.is_sitemap:
            return self._linker.sitemap(url, origin=urls.origin(url), level=0, referrer="")
        fields = found.fields or {}
        changes: set[str] = set()
        try:
            meta = in_json(fields.get("meta") or {}, "meta", changes)
        except ValueError as error:
            return str(error)
        if not isinstance(meta, dict):
            return "meta is not a dictionary"
        self.changed.update(changes)
        callback = fields.get("callback") or ""
        return Request(
            url,
            urls.key_of(self._secret, url, found.method, found.body),
            self._linker.site(url),
            max(-1000, min(1000, found.priority)),
            _depth(meta.pop("depth", 0)),
            label="" if callback == "parse" else str(callback),
            meta=meta or None,
            method=found.method,
            headers=_headers(fields.get("headers")),
            body=found.body,
        )

    def seen(self, seen: ImportedFingerprint, shards: int) -> list[Request] | str:
        return "a Scrapy fingerprint contains no URL: its page is fetched again if another page links to it"


def _depth(value: object) -> int:
    return max(0, min(1_000_000, value)) if isinstance(value, int) else 0


def _headers(headers: object) -> dict[str, str] | None:
    """The first value of each header, without the referrer, which comes from the link."""
    found = {}
    for name, values in headers.items() if isinstance(headers, dict) else ():
        first = values[0] if isinstance(values, list | tuple) and values else values
        key, value = (part.decode("latin-1") if isinstance(part, bytes) else str(part) for part in (name, first))
        if key.lower() != "referer":
            found[key] = value
    return found or None


def stand_ins(key: int, name: str, shards: int) -> list[Request]:
    """Placeholder requests with this key, for one site per shard: each shard has its own seen set."""
    places: dict[int, str] = {}
    number = 0
    while len(places) < shards:
        site = SEEN_SITE if not number else f"{number}.{SEEN_SITE}"
        places.setdefault(shard_of(site, shards), site)
        number += 1
    return [Request(f"http://{site}/{name}", key, site, hops=1) for site in places.values()]


class Importer:
    """Writes imported entries to a frontier; no worker may use it meanwhile."""

    def __init__(self, frontier: Frontier, settings: Settings, maker: Maker, *, clock: Clock, shards: int = 1) -> None:
        self._frontier = frontier
        self._settings = settings
        self._maker = maker
        self._clock = clock
        self._shards = shards
        self._waiting: set[int] = set()
        """Keys of queued requests that could not be read: their fingerprints do not mean that they were fetched."""
        self.tally = ImportCounts()

    async def take(self, findings: Iterable[Finding]) -> ImportCounts:
        """Import all entries."""
        async for some in _batches(iter(findings)):
            done: dict[int, tuple[Request, float | None]] = {}
            seen: dict[tuple[int, str], Request] = {}
            new: dict[int, Request] = {}
            for finding in some:
                self._sort(finding, done, seen, new)
            for key in new:
                # A dupefilter also contains the requests that are still queued.
                for place in [each for each in seen if each[0] == key]:
                    del seen[place]
            await self._queue([request for key, request in new.items() if key not in done])
            await self._settle([(request, None) for request in seen.values()], "seen")
            await self._settle(list(done.values()), "done")
        self.tally.changed = self._maker.changed
        return self.tally

    def _sort(
        self,
        finding: Finding,
        done: dict[int, tuple[Request, float | None]],
        seen: dict[tuple[int, str], Request],
        new: dict[int, Request],
    ) -> None:
        if isinstance(finding, Unread):
            self.tally.refuse(finding.what, finding.why)
            if finding.url and isinstance(request := self._maker.request(ImportedRequest(finding.url)), Request):
                self._waiting.add(request.key)
        elif isinstance(finding, ImportedFingerprint):
            made = self._maker.seen(finding, self._shards)
            if isinstance(made, str):
                self.tally.counts["lost"] += 1
                self.tally.counts["fingerprints"] += 1
            else:
                seen.update({(each.key, each.site): each for each in made if each.key not in self._waiting})
        else:
            request = self._maker.request(finding)
            if isinstance(request, str):
                self.tally.refuse(finding.url[:200], request)
            elif finding.is_done:
                known = done.get(request.key)
                at = max(
                    (at for at in (finding.fetched_at, known[1] if known else None) if at is not None), default=None
                )
                done[request.key] = (msgspec.structs.replace(request, hops=1), at)
            else:
                new[request.key] = request

    async def _queue(self, requests: Sequence[Request]) -> None:
        for first in range(0, len(requests), _TOGETHER):
            added = await self._frontier.add(requests[first : first + _TOGETHER])
            self.tally.counts["queued"] += added
            self.tally.counts["known"] += len(requests[first : first + _TOGETHER]) - added

    async def _settle(self, done: list[tuple[Request, float | None]], word: str) -> None:
        """Record requests as done: queue them at the head of their sites, lease them, and complete them."""
        frontier, settings = self._frontier, self._settings
        if not done:
            return
        if isinstance(frontier, Adopting):
            await frontier.adopt([request for request, _ in done])
            self.tally.counts[word] += len(done)
            return
        times = {(request.key, request.site): at for request, at in done}
        left = await frontier.add([request for request, _ in done])
        self.tally.counts[word] += left
        self.tally.counts["known"] += len(done) - left
        seconds = max(settings.lease_seconds, 2.0 * _TOGETHER * settings.delay * settings.per_site)
        while left > 0:
            grant = await frontier.lease(_LANES, batch=_TOGETHER, seconds=seconds)
            outcomes = [
                self._outcome(lease.site, lease.lane, lease.token, request, times[request.key, request.site])
                for lease in grant.leases
                for request in lease.requests
                if (request.key, request.site) in times
            ]
            receipt = await frontier.complete(outcomes) if outcomes else None
            left -= receipt.accepted + receipt.repeated if receipt is not None else 0
            if grant.leases:
                await frontier.release(grant.leases)
            elif left > 0:
                await self._clock.sleep(min(max(grant.wait or 0.05, 0.01), 1.0))

    def _outcome(self, site: str, lane: int, token: int, request: Request, fetched_at: float | None) -> Outcome:
        settings, again_in, state = self._settings, None, None
        if fetched_at is not None:
            state = {"seen_at": fetched_at}
        if settings.recrawl and not site.endswith(SEEN_SITE):
            age = self._clock.epoch() - fetched_at if fetched_at is not None else 0.0
            again_in = max(0.0, settings.revisit_seconds - age)
        return Outcome(
            site=site,
            lane=lane,
            token=token,
            key=request.key,
            status="skipped",
            reason="imported",
            again_in=again_in,
            state=state,
        )


async def _batches(findings: Iterator[Finding]) -> AsyncIterator[list[Finding]]:
    """Read entries in batches, in a thread: files and servers may be slow."""

    def some() -> list[Finding]:
        return [finding for _, finding in zip(range(_TOGETHER), findings)]

    while batch := await asyncio.to_thread(some):
        yield batch
