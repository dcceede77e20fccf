"""One site lease from start to end: robots, delay, fetch, verdict, spider, result; one request after another.

A `Visit` processes the batch of a lease. For each request, in this order:

1. Traps: refuse paths that have proved to be endless. Refused requests are skipped, and nothing is sent.
2. robots.txt, if that of the origin is due, under the same delay as pages; sitemaps that it names are queued. Requests
   that its rules forbid are skipped.
3. The delay. Visits sleep without a fetch slot, so that a slow site uses no slot of others.
4. The lease. After the end of the lease nothing may be sent, because another worker may have the site by then (P2, P5).
   It is checked when the slot is free, and once more by the downloader after DNS lookup and connect
   (`check_before_sending`): either may take long, and the machine may be suspended in between.
5. The fetch, and the verdict about its answer (`verdict`): done, failed, retry, or redirect.
6. The spider, for pages. Links that were sent with an earlier outcome of this lease are left out (`SentLinks`).
7. The result, handed to the committer with notes about the site.

Changes of the site state go before the outcome that caused them: a note with a hold, a new delay, or robots.txt is
committed in the same group as the outcome or in an earlier one. A note of hold or closing also ends the batch, since
the rest of it would only get the same answer. Cookies, sitemaps, and what the downloader learned are sent in notes as
well.

What ends a visit early, and what happens to the rest of its batch:

- A stop, a pause, or a hold: the lease is handed to the committer, and is returned once its outcomes are committed.
- A lost lease: nothing is handed in. The frontier has taken the requests back, or will.
- A failing proxy: the request is returned unchanged, and the site rests. Neither is to blame.
- An interrupted spider (`Interrupted`): the request counts as not fetched.
- A killed worker: other workers fetch again everything that was not committed (P9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.cut import CUT, counted, drops_text
from gossamer.download.base import LearnsSites, check_before_sending
from gossamer.engine import allocator
from gossamer.engine.budget import Interrupted
from gossamer.engine.commit import AddedRequests, Committer, Result
from gossamer.engine.concurrency import AddressLimits, Slots
from gossamer.engine.near_duplicates import NearDuplicates, text_digest
from gossamer.engine.parsing import Extracted, PageProcessor, answer_row, record_of
from gossamer.engine.politeness import Breaker, LaneDelay
from gossamer.engine.recrawl import NextVisit, PageFingerprint, RecrawlPlanner
from gossamer.engine.regions import RegionChooser, RegionContext
from gossamer.engine.robots import Rulebook, SiteRobots, SubresourceRobots
from gossamer.engine.sitemaps import CHUNK, Sitemaps
from gossamer.engine.traps import Paths
from gossamer.engine.verdict import (
    COOKIES,
    MAX_HOPS,
    Verdict,
    classify_error,
    classify_response,
    sets_cookie_and_returns,
)
from gossamer.errors import ConnectFailed, Disallowed, FetchError, Forbidden, ProxyFailed
from gossamer.middleware import Fetch
from gossamer.middleware.cookies import CookieJar
from gossamer.model import ROBOTS, SITEMAP, Lease, Outcome, PageRow, Request, Response, SiteNote
from gossamer.settings import Settings
from gossamer.storage.registry import keeps_pages
from gossamer.storage.request_log import RequestLog, SentRequest

_MOST = 2048
"""Max links in memory: older ones are mostly committed, and are in the memory that all visits share."""


class SentLinks:
    """The links that were sent with outcomes of this lease, by key.

    Pages of a site repeat their navigation, so most links of a batch need to be sent only once. Outcomes of a lease are
    committed in order and under one token: if a later one counts, the earlier ones have counted with their links. When
    the store may have lost data, the memory is cleared (`engine/run.py`)."""

    def __init__(self) -> None:
        self.made: dict[int, Request] = {}

    def new(self, links: Iterable[Request]) -> tuple[Request, ...]:
        """Return those of these links that were not sent yet."""
        return tuple(link for link in links if link.key not in self.made)

    def add(self, links: Iterable[Request]) -> None:
        """Record the links of an outcome that was handed to the committer."""
        if len(self.made) > _MOST:
            self.made.clear()
        self.made.update((link.key, link) for link in links)

    def clear(self) -> None:
        """Forget all links: the store may have lost them."""
        self.made.clear()


MEMO = "cookies"
"""Key of the cookies in a site's state; further lanes use `cookies.1` and so on."""


class SiteCookies:
    """Moves cookies between a worker's jar and the site state in the frontier, for one lease.

    A login on one host is often for another host of the domain, which any worker may lease. So the first link from this
    host to another, and every redirect, carries the cookies for the other host. Each lane has its own key in the site
    state: with a common key, two workers would overwrite each other's cookies."""

    def __init__(self, jar: CookieJar, lease: Lease) -> None:
        self._jar, self._site = jar, lease.site
        self._place = f"{MEMO}.{lease.lane}" if lease.lane else MEMO
        for name, others in lease.memo.items():
            if name.startswith(MEMO) and name != self._place:
                jar.load(lease.site, others)
        is_loaded = jar.load(lease.site, lease.memo.get(self._place))
        self._jar_revision = jar.revision(lease.site) if is_loaded else 0
        self._with_cookies: dict[str, int] = {}

    def news(self) -> dict[str, Any]:
        """Return the site's cookies if they have changed.

        They are committed no later than the outcome that brought them."""
        if self._jar_revision == (revision := self._jar.revision(self._site)):
            return {}
        self._jar_revision = revision
        return {self._place: self._jar.dump(self._site)}

    def take(self, request: Request) -> None:
        """Load the cookies that a request carries."""
        if request.meta and COOKIES in request.meta:
            self._jar.load(self._site, request.meta[COOKIES])

    def attach(self, links: Sequence[Request], *, always: bool = False) -> tuple[Request, ...]:
        """Return the links, with cookies on the first one to each other host; `always` repeats cookies sent before."""
        first: dict[str, int] = {}
        for place, link in enumerate(links):
            if link.site != self._site:
                known = first.setdefault(link.site, place)
                if link.priority > links[known].priority:
                    first[link.site] = place
        found = list(links)
        for site, place in first.items():
            revision = self._jar.revision(site)
            if (always or self._with_cookies.get(site) != revision) and (plain := self._jar.shared(self._site, site)):
                self._with_cookies[site] = revision
                meta = {**(found[place].meta or {}), COOKIES: plain}
                found[place] = msgspec.structs.replace(found[place], meta=meta)
        return tuple(found)


class LaneVisits:
    """The newest visit of each lane in this process.

    A lane is leased again while a visit of it is running only if the earlier lease expired, as after a suspension of
    the process. A request that had passed all checks by then is sent when the process continues. The frontier does not
    see that, so the new visit waits for it, and counts the delay from its answer (P5)."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], tuple[Visit, asyncio.Event]] = {}

    @asynccontextmanager
    async def take(self, visit: Visit) -> AsyncIterator[Visit | None]:
        """Mark the earlier visit of the lane as lost, wait for its end, and yield it; None if there is none."""
        place = visit.lease.site, visit.lease.lane
        earlier, found = self._newest.get(place), (visit, asyncio.Event())
        self._newest[place] = found
        try:
            if earlier is not None:
                earlier[0].lost = True
                await earlier[1].wait()
            yield None if earlier is None else earlier[0]
        finally:
            found[1].set()
            if self._newest.get(place) is found:
                del self._newest[place]


@dataclass(slots=True)
class VisitContext:
    """The parts of the engine that a visit uses."""

    settings: Settings
    clock: Clock
    fetch: Fetch
    processor: PageProcessor
    committer: Committer
    rules: Rulebook
    slots: Slots
    stopping: asyncio.Event
    went_to_sleep: Callable[[], None]
    places: RegionContext | None = None
    """Set where sites find their region automatically."""
    request_log: RequestLog | None = None
    """Set where there is a request log."""
    jar: CookieJar | None = None
    """Set where cookies are stored; they are part of the site state."""
    site_learner: LearnsSites | None = None
    """Set where the downloader learns about sites."""
    address_limits: AddressLimits | None = None
    """Set where fetches per address are limited."""
    subresource_robots: SubresourceRobots | None = None
    """Set where a browser loads pages, and robots.txt is obeyed."""
    paused: bool = False
    """Whether the job is paused: visits end after the request in hand, and the engine stays."""
    revisits: RecrawlPlanner = field(init=False)
    breaker: Breaker = field(init=False)
    sitemaps: Sitemaps = field(init=False)
    turns: LaneVisits = field(default_factory=LaneVisits)

    keeps_pages: bool = False
    """Whether a sink stores bodies and links."""

    def __post_init__(self) -> None:
        self.keeps_pages = keeps_pages(self.settings.sink)
        self.revisits = RecrawlPlanner(self.settings, self.clock)
        self.breaker = Breaker(self.clock)
        self.sitemaps = Sitemaps(self.settings, self.processor.linker, self.clock)


fetches = logging.getLogger("gossamer.fetch")
_ANYWHERE = nullcontext()
_REPEATS = 2
"""How often a request is sent again after the server has closed its kept-alive connection."""


class Visit:
    """Fetches the requests of one lease in turn, until they are done, the site has to rest, or the lease is lost.

    `lost` is set by the renewal loop, by a later visit of the lane, and by the checks before sending; it is never
    cleared. `sleeping` is true while the visit uses no fetch slot. `sent_links` need not be sent again."""

    def __init__(self, lease: Lease, context: VisitContext, *, sent_at: float) -> None:
        self.lease = lease
        self._context = context
        self.renewed(sent_at, lease.ttl)
        self.lost = False
        self.sleeping = False
        self._unsent = False
        self._settings = context.settings
        self._clock = context.clock
        self._robots = SiteRobots(lease.robots, context.settings, context.clock, rulebook=context.rules)
        self._memo = dict(lease.memo)
        self._paths = Paths(lease, self._memo, context.settings, context.clock)
        self._copies = NearDuplicates(lease) if context.settings.dedupe else None
        context.revisits.learn(lease)
        self._cookies = SiteCookies(context.jar, lease) if context.jar is not None else None
        self._delay = LaneDelay(lease, context.settings, context.clock)
        self._left_alone = False
        self._step: SentRequest | None = None
        """The last request, not in the request log yet: it is written once the cut of its page is known."""
        self.sent_links = SentLinks()
        if context.site_learner is not None:
            context.site_learner.recall(lease.site, lease.memo)
        if context.subresource_robots is not None:
            context.subresource_robots.learn(lease.robots)
        self._placing = (
            RegionChooser(lease, context.places) if context.places is not None and context.places.here else None
        )

    def renewed(self, sent_at: float, ttl: float) -> None:
        """Set the deadline for sending: the lease's end, counted from `sent_at`, less the time to look up and
        connect."""
        self.deadline = sent_at + ttl - min(self._context.settings.connect_seconds, ttl / 3)

    async def run(self) -> None:
        """Process the batch. The rest is returned to the frontier, unless the lease is lost."""
        check_before_sending.set(self._check)
        async with self._context.turns.take(self) as earlier:
            if earlier is not None:
                self._delay.follow(earlier._delay)
            await self._work()

    def _check(self) -> None:
        """Raise if the lease has ended, before a request is sent."""
        if self.lost or self._clock.monotonic() >= self.deadline:
            self.lost = self._unsent = True
            raise ConnectFailed("the lease expired before the request was sent")

    async def _work(self) -> None:
        """Fetch the requests in order; a lease with an incomplete batch is handed in after all its results."""
        undone = len(self.lease.requests)
        try:
            for request in self.lease.requests:
                if self._over() or not await self._visit(request):
                    break
                undone -= 1
        finally:
            self._write_log()
        if undone and not self.lost:
            await self._context.committer.put(self.lease)

    def _over(self) -> bool:
        return self.lost or self._left_alone or self._context.paused or self._context.stopping.is_set()

    async def _visit(self, request: Request) -> bool:
        """Complete one request; False if it was not completed, and the batch ends here.

        Errors of a fetch are results, which are committed like pages; only a lost lease and a failing proxy are not."""
        if self._cookies is not None:
            self._cookies.take(request)
        try:
            if request.label != SITEMAP and (refusal := self._paths.refuse(request)) != "":
                await self._skip(request, refusal)
                return True
            if self._settings.robots and not await self._may_fetch(request):
                return False
            if self._settings.sitemaps and request.label != SITEMAP:
                await self._discover(request.url)
            if self._settings.robots and not self._robots.allows(request.url):
                await self._skip(request, Disallowed.kind)
                return True
            response = await self._fetch(self._context.revisits.conditional(request))
            hops = request.hops
            while self._settings.cookies and hops < MAX_HOPS and sets_cookie_and_returns(request, response):
                response, hops = await self._fetch(request), hops + 1
        except _LeaseLost:
            return False
        except ProxyFailed as error:
            # The request is returned unchanged: neither it nor its site is to blame.
            self._left_alone = True
            await self._context.committer.put(self._note(hold=error.wait_seconds))
            return False
        except FetchError as error:
            if self._placing is not None:
                await self._move(self._placing.after_fault(error))
            await self._failed(request, error)
            return True
        if self._placing is not None:
            await self._move(self._placing.after_page())
        try:
            await self._answered(request, response)
        except Interrupted:
            return False
        allocator.trim_after(len(response.body))
        return True

    async def _skip(self, request: Request, reason: str) -> None:
        self._log_request(request, self._clock.epoch(), None, skipped=reason, referrer=request.referrer)
        await self._settle(request, Verdict("skipped", reason))

    async def _may_fetch(self, request: Request) -> bool:
        """Fetch the rules if they are due; False if they cannot be fetched and the site must rest.

        The rules are committed as a note, before any page that they allow. A robots.txt that cannot be fetched forbids
        everything for a time: the site is on hold, and after `site_failures` in a row it is closed, so that the job
        ends; a continuous crawl keeps trying."""
        if self._robots.is_due(request.url):
            try:
                robots = await self._robots.refresh(request.url, self._fetch)
            except _LeaseLost:
                return False
            delay = self._delay.apply_crawl_delay(self._robots.crawl_delay)
            learned = {urls.origin(request.url): robots.pack()}
            if self._context.subresource_robots is not None:
                self._context.subresource_robots.learn(learned)
            note = self._note(robots=learned, delay=delay)
            if robots.kind == "unreachable":
                self._left_alone = True
                hold = robots.good_until - self._clock.epoch()
                dark = robots.failures >= self._settings.site_failures and not self._settings.recrawl
                close = "robots-unreachable" if dark else None
                note = self._note(robots=note.robots, hold=hold, close=close)
                if self._placing is not None:
                    await self._move(self._placing.after_fault())
            await self._context.committer.put(note)
        elif self._robots.state(request.url).kind == "unreachable":
            self._left_alone = True
            hold = self._robots.state(request.url).good_until - self._clock.epoch()
            await self._context.committer.put(self._note(hold=max(hold, 0.0)))
        return not self._left_alone and not self._over()

    async def _discover(self, url: str) -> None:
        """Queue the sitemaps of this URL's origin, if they are not known yet.

        Requests go before the note about them."""
        sitemaps, committer = self._context.sitemaps, self._context.committer
        if not self._settings.robots:
            if sitemaps.has_looked_up(url, self._memo):
                return
            try:
                await self._robots.refresh(url, self._fetch)
            except FetchError:
                return
        if (found := sitemaps.discover(url, self._robots.state(url), self._memo)) is not None:
            await committer.put(AddedRequests(found.requests, self.lease.token))
            self._memo.update(found.memo)
            await committer.put(self._note(memo=found.memo))

    async def _fetch(self, request: Request) -> Response:
        """Send one request, no sooner than the site's delay allows, and only while the lease is held.

        The order matters: sleep out the delay first, without a slot; then get a slot, which may take long; then check
        the lease. The delay counts from the headers of the last answer, or from the end of a failed try, and is not
        checked again behind the slot: waiting can only make it longer."""
        context, site, repeats = self._context, self.lease.site, _REPEATS
        while True:
            # A timer may fire slightly early: check the clock again.
            while (wait := self._delay.wait()) > 0 or (wait := context.breaker.wait()) > 0:
                await self._sleep(wait)
            async with (
                self._address_slot(request) if context.address_limits is not None else _ANYWHERE,
                context.slots,
            ):
                if self.lost or self._clock.monotonic() >= self.deadline:
                    self.lost = True
                    raise _LeaseLost
                sent_at, began = self._clock.epoch(), self._clock.monotonic()
                rest = self._delay.rested(began)
                try:
                    response = await context.fetch(request)
                    break
                except asyncio.CancelledError:
                    self._log_request(
                        request, sent_at, rest, error="cancelled", latency=self._clock.monotonic() - began
                    )
                    raise
                except FetchError as error:
                    if self._unsent:
                        raise _LeaseLost from None
                    ended = self._clock.monotonic()
                    self._log_request(request, sent_at, rest, error=error.kind, latency=ended - began)
                    if not isinstance(error, Forbidden):
                        self._delay.answered(ended)
                    if isinstance(error, ConnectFailed) and error.was_kept and repeats:
                        repeats -= 1
                        continue
                    if not context.breaker.is_network_error(site, error, was_there=self._robots.was_answered):
                        raise
        if not response.from_cache:
            at, size = response.fetched_at or sent_at, len(response.body)
            self._log_request(request, at, rest, status=response.status, latency=response.latency, bytes=size)
            self._delay.answered(response.headers_at)
            context.breaker.answered(site)
            if self._placing is not None:
                self._placing.saw(response.latency, response.address)
        return response

    @asynccontextmanager
    async def _address_slot(self, request: Request) -> AsyncIterator[None]:
        """Hold a slot at the site's address for the block. A visit that waits for one uses no fetch slot."""
        address_limits = self._context.address_limits
        assert address_limits is not None
        address = await address_limits.locate(request)
        if address_limits.is_full(address):
            self.sleeping = True
            self._context.went_to_sleep()
        async with address_limits.at(address):
            self.sleeping = False
            yield

    def _log_request(
        self, request: Request, at: float, rest: float | None, *, latency: float = 0.0, **known: Any
    ) -> None:
        """Record a request for the request log and the log, where these are enabled."""
        self._write_log()
        if self._context.request_log is not None:
            self._step = SentRequest(
                url=request.url,
                at=round(at, 3),
                latency=round(latency, 4),
                delay=round(self._delay.rest_seconds, 3),
                lanes=self.lease.lanes,
                rest=None if rest is None else round(rest, 4),
                **known,
            )
            if "status" not in known or request.label == ROBOTS:
                self._write_log()
        if fetches.isEnabledFor(logging.INFO):
            about = {"request": f"{request.key:016x}-{request.tries}", "url": request.url, "site": self.lease.site}
            fetches.info("request", extra={**about, "seconds": round(latency, 4), **known})

    def _write_log(self, cut: str = "") -> None:
        """Write the pending request, if there is one, to the request log."""
        step, self._step = self._step, None
        if step is not None and self._context.request_log is not None:
            self._context.request_log.note(msgspec.structs.replace(step, cut=cut) if cut else step)

    async def _move(self, note: SiteNote | None) -> None:
        """Commit a note about the site's region. If the region changes, leave the rest of the batch to its workers."""
        if note is not None:
            await self._context.committer.put(note)
            self._left_alone = self._left_alone or (self._placing is not None and self._placing.leaves)

    async def _sleep(self, seconds: float) -> None:
        """Sleep without a fetch slot. A stop ends it: the request is returned unsent."""
        self.sleeping = True
        self._context.went_to_sleep()
        try:
            async with asyncio.timeout(seconds):
                await self._context.stopping.wait()
            raise _LeaseLost
        except TimeoutError:
            pass
        finally:
            self.sleeping = False

    def _release_slot(self, is_aside: bool) -> None:
        """Release the fetch slot while a page waits for a parser process."""
        self.sleeping = is_aside
        if is_aside:
            self._context.went_to_sleep()

    async def _failed(self, request: Request, error: FetchError) -> None:
        """Complete a request that got no answer."""
        now, was_there = self._clock.epoch(), self._robots.was_answered
        verdict = classify_error(request, error, self._memo, self._settings, now=now, was_there=was_there)
        if request.label == SITEMAP:
            await self._read_sitemap(request, None, verdict)
            return
        row = PageRow(
            url=request.url,
            depth=request.depth,
            fetched_at=round(self._clock.epoch(), 3),
            error=f"{error.kind}: {error}",
            referrer=request.referrer,
        )
        await self._settle(request, verdict, row=row)

    async def _answered(self, request: Request, response: Response) -> None:
        """Complete a request by its answer: sitemap, redirect, unchanged page, refusal, or a page for the spider."""
        settings = self._settings
        verdict = classify_response(request, response, self._memo, settings, now=self._clock.epoch())
        if settings.adaptive_delay and not response.from_cache:
            crawl_delay = self._robots.crawl_delay if settings.robots else 0.0
            if (delay := self._delay.adapt(response, crawl_delay=crawl_delay)) is not None:
                await self._context.committer.put(self._note(delay=delay))
        if request.label == SITEMAP:
            await self._read_sitemap(request, response, verdict)
        elif verdict.target and verdict.status == "done":
            links = self._with_cookies(self._context.processor.redirect(request, verdict.target, response), always=True)
            row = answer_row(request, response, location=verdict.target)
            seen = PageFingerprint(text_digest(verdict.target))
            await self._settle(request, verdict, response=response, row=row, links=links, seen=seen)
        elif response.status == 304 and request.state:
            # Unchanged: its links are known from the previous visit.
            row = answer_row(request, response, digest=str(request.state.get("digest", "")))
            await self._settle(request, verdict, response=response, row=row)
        elif verdict.status != "done":
            said = "" if verdict.reason.startswith("http-") else verdict.reason
            row = answer_row(request, response, location=verdict.target, error=said)
            await self._settle(request, verdict, response=response, row=row)
        else:
            handled = await self._context.processor.process(
                request, response, made=self.sent_links.made, suspect=self.lease.suspect, aside=self._release_slot
            )
            page, row, path_simhash = handled.page, handled.row, handled.page.path_simhash
            if self._copies is not None and (kept := self._copies.saw(request.key, page.compared)) is not None:
                row, path_simhash = msgspec.structs.replace(row, copy_of=f"{kept:016x}"), page.simhash
            if page.error:
                verdict = verdict._replace(status="failed", reason=page.kind)
            # A part of a page cannot be compared with the other pages of its path.
            path_simhash = None if drops_text(page.cut) else path_simhash
            paths = self._paths.saw(request, path_simhash, handled.links, query_simhash=page.query_simhash)
            verdict = verdict._replace(memo={**(verdict.memo or {}), **paths})
            self._memo.update(paths)
            links = self._with_cookies(
                self._paths.open(self.sent_links.new(handled.links), self._context.processor.linker.refused)
            )
            await self._settle(
                request,
                verdict,
                response=response,
                row=row,
                links=links,
                page=page,
                seen=PageFingerprint(page.digest, page.main, page.cut),
            )
            self.sent_links.add(links)

    async def _read_sitemap(self, request: Request, response: Response | None, verdict: Verdict) -> None:
        """Add the pages of a sitemap, then complete it.

        After a crash in between it is read again, which is harmless."""
        if verdict.status == "retry":
            await self._settle(request, verdict, response=response)
            return
        reading = await self._context.sitemaps.read(request, response, verdict, self._memo)
        for first in range(0, len(reading.requests), CHUNK):
            some = reading.requests[first : first + CHUNK]
            await self._context.committer.put(AddedRequests(some, self.lease.token, request.key))
        verdict = verdict._replace(
            status="skipped", reason=reading.reason, memo={**(verdict.memo or {}), **(reading.memo or {})}
        )
        await self._settle(request, verdict, response=response, plan=NextVisit(reading.again_in, reading.state))

    async def _settle(
        self,
        request: Request,
        verdict: Verdict,
        *,
        response: Response | None = None,
        row: PageRow | None = None,
        links: tuple[Request, ...] = (),
        page: Extracted | None = None,
        seen: PageFingerprint | None = None,
        plan: NextVisit | None = None,
    ) -> None:
        """Hand in the result of one request, after a note with all changes to the site state.

        The record goes with the outcome: the token decides at the commit whether both count."""
        lease, committer = self.lease, self._context.committer
        # A retry is not counted: the last try is.
        cut = (row.cut or "") if row is not None and verdict.status in ("done", "failed") else ""
        self._write_log(cut)
        plan = plan or self._context.revisits.plan(lease, self._memo, request, verdict, answer=response, seen=seen)
        memo = {**(verdict.memo or {}), **(plan.memo or {})}
        if cut:
            name = f"{CUT}{lease.lane}"
            memo[name] = counted(self._memo.get(name, {}), cut)
        if self._cookies is not None:
            memo.update(self._cookies.news())
        if self._copies is not None:
            memo.update(self._copies.note(request.key))
        if self._context.site_learner is not None:
            memo.update(self._context.site_learner.learned(lease.site) or {})
        if verdict.hold is not None or memo or verdict.close is not None:
            self._memo.update(memo)
            self._left_alone = self._left_alone or bool(verdict.hold) or verdict.close is not None
            await committer.put(self._note(hold=verdict.hold, memo=memo or None, close=verdict.close))
        outcome = Outcome(
            site=lease.site,
            lane=lease.lane,
            token=lease.token,
            key=request.key,
            status=verdict.status,
            code=response.status if response is not None else 0,
            again_in=plan.again_in,
            links=links,
            state=plan.state,
            reason=verdict.reason,
        )
        record = None
        if row is not None and verdict.status in ("done", "failed"):
            keeps = self._context.keeps_pages
            record = record_of(request, row, token=lease.token, page=page, response=response if keeps else None)
        await committer.put(Result(outcome, record))

    def _with_cookies(self, links: tuple[Request, ...], *, always: bool = False) -> tuple[Request, ...]:
        return self._cookies.attach(links, always=always) if self._cookies is not None else links

    def _note(self, **known: Any) -> SiteNote:
        return SiteNote(site=self.lease.site, lane=self.lease.lane, token=self.lease.token, **known)


class _LeaseLost(Exception):
    """The lease or the run ended before the request was sent: it is returned, and nothing is committed for it."""
