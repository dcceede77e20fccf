"""Scrapy scheduler on a Gossamer frontier: a request is done once Scrapy has processed it completely."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.http import Response
from twisted.internet.defer import Deferred

from gossamer import model, urls
from gossamer.clock import SystemClock
from gossamer.engine.links import RecentKeys
from gossamer.errors import ConfigError, GossamerError
from gossamer.model import Grant, Outcome
from gossamer.scrapy.bridge import BridgeMessage, FrontierBridge
from gossamer.scrapy.hooks import Hooks
from gossamer.scrapy.lanes import Lanes, ScrapyLane, Ticket
from gossamer.scrapy.options import read_options
from gossamer.scrapy.requests import TICKET, Unstorable, key_of, restore, store, unfiltered_nonce
from gossamer.settings import Settings

log = logging.getLogger("gossamer.scrapy")
_TICK_SECONDS = 0.1
_LOOK_SECONDS = 0.01
_SLEEPERS = 15
"""Lanes that wait for their delay, per concurrent request: they cost only memory."""
_MOST_UNSENT = 2_000
"""Maximum number of unsent messages; beyond it, callbacks and `start` wait."""
_MOST_LINKS = 5_000
"""Maximum number of links kept until their page is done; further ones are stored immediately."""


class Scheduler(BaseScheduler):
    """`SCHEDULER = "gossamer.scrapy.Scheduler"`: one crawl for any number of Scrapy processes, safe against kill -9.

    A request is done when its callback or errback has finished and its items have passed the pipelines; the requests
    that it yielded are stored in the same step. Site leases keep the delay across all processes."""

    def __init__(self, crawler: Crawler) -> None:
        if crawler.spider is None or crawler.stats is None or crawler.request_fingerprinter is None:
            raise ConfigError("gossamer.scrapy.Scheduler needs a crawler with a spider")
        self._spider: Spider = crawler.spider
        self._stats = crawler.stats
        self._fingerprint = crawler.request_fingerprinter.fingerprint
        self._filters = str(crawler.settings.get("DUPEFILTER_CLASS")) != "scrapy.dupefilters.BaseDupeFilter"
        self._options = read_options(crawler.settings, self._spider.name)
        self._settings = self._options.settings
        self._clock = SystemClock()
        self._hooks = Hooks(crawler)
        self._bridge = FrontierBridge(self._options, self, self._hooks.soon)
        self._lanes = Lanes()
        self._recent = RecentKeys(500_000)
        self._yielded: WeakKeyDictionary[Request, Ticket] = WeakKeyDictionary()
        self._secret = b""
        self._sent = self._written = 0
        self._finished = self._ended = False
        self._error: BaseException | None = None
        self._opening: Deferred[None] | None = None
        self._closing: Deferred[None] | None = None
        self._stop_tick: Callable[[], object] = _nothing
        self._stop_due: Callable[[], object] = _nothing
        self._hooks.install(
            output=self._process_spider_output,
            start=self._process_start,
            request=self._process_request,
            exception=self._process_exception,
        )
        connect = crawler.signals.connect
        connect(self._response_received, signals.response_received)
        connect(self._left_downloader, signals.request_left_downloader)
        connect(self._spider_idle, signals.spider_idle)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BaseScheduler:  # type: ignore[override]
        """Create the scheduler of a crawl; `scrapy shell` gets Scrapy's own scheduler."""
        if crawler.settings.getbool("KEEP_ALIVE"):
            return ScrapyScheduler.from_crawler(crawler)
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None]:
        self._opening = Deferred()
        self._bridge.start()
        return self._opening

    def close(self, reason: str) -> Deferred[None] | None:
        self._stop_tick()
        self._stop_due()
        if self._ended:
            return None
        self._complete_finished()
        self._closing = Deferred()
        self._bridge.finish()
        return self._closing

    def has_pending_requests(self) -> bool:
        self._complete_finished()
        return self._sent != self._written or self._lanes.has_waiting()

    def enqueue_request(self, request: Request) -> bool:
        parent = self._yielded.pop(request, None)
        if parent is None and (parent := self._lanes.tickets.get(request.meta.get(TICKET, 0))) is not None:
            # A copy made by a middleware, such as a redirect or a retry, replaces the response.
            parent.status, parent.reason = ("done", "") if not parent.code else (parent.status, parent.reason)
        key = self._key(request, parent)
        if not self._recent.unknown((key,)):
            self._stats.inc_value("dupefilter/filtered")
            return False
        try:
            kept = store(request, self._spider, key=key, site_by=self._settings.site_by)
        except Unstorable as error:
            self._stop_unstorable(error)
            return False
        self._stats.inc_value("scheduler/enqueued")
        self._stats.inc_value("scheduler/enqueued/gossamer")
        self._finished = False
        if parent is None or len(parent.links) >= _MOST_LINKS:
            self._send(BridgeMessage(requests=(kept,)))
        else:
            parent.links.append(kept)
        return True

    def next_request(self) -> Request | None:
        self._complete_finished()
        now = self._clock.monotonic()
        while (found := self._lanes.next(now)) is not None:
            lane, kept = found
            try:
                request = restore(kept, self._spider)
            except ValueError as error:
                log.error("this spider cannot handle %s, which counts as failed: %s", kept.url, error)
                self._send(BridgeMessage(outcome=_unreadable(lane, kept, str(error))))
                self._lanes.skipped(lane)
                continue
            ticket = self._lanes.hand_out(lane, kept, request)
            request.meta[TICKET] = ticket.number
            self._stats.inc_value("scheduler/dequeued")
            self._stats.inc_value("scheduler/dequeued/gossamer")
            return request
        self._request_leases()
        return None

    def _key(self, request: Request, parent: Ticket | None) -> int:
        """The key of a request; one with `dont_filter` gets a unique key.

        That key is derived from its page, so a page that is processed again after a crash queues nothing twice. Start
        requests are always filtered, because every process and every restart yields them again."""
        fingerprint = self._fingerprint(request)
        if self._filters and not request.dont_filter:
            return key_of(self._secret, fingerprint)
        if parent is not None:
            parent.alike[fingerprint] += 1
            return key_of(self._secret, fingerprint, unfiltered_nonce(parent.kept.key, parent.alike[fingerprint]))
        if request.meta.get("is_start_request"):
            return key_of(self._secret, fingerprint)
        return key_of(self._secret, fingerprint, secrets.token_bytes(16))

    def _stop_unstorable(self, error: Unstorable) -> None:
        """End the crawl without completing any request in progress, so that nothing is lost once this is fixed."""
        log.error("%s; the crawl stops, and resumes once this is fixed\nhint: %s", error, error.hint)
        self._stats.inc_value("gossamer/unstorable")
        for ticket in self._lanes.tickets.values():
            ticket.void = True
        self._hooks.close("gossamer_unstorable")

    def _send(self, message: BridgeMessage) -> None:
        self._sent += 1
        self._bridge.send(message)

    def _complete_finished(self) -> None:
        """Send the outcomes of requests that Scrapy has finished."""
        if not self._lanes.tickets:
            return
        in_progress = self._hooks.in_progress()
        handled = [ticket for ticket in self._lanes.tickets.values() if ticket.request not in in_progress]
        if handled:
            self._hooks.flush_feeds()
        for ticket in handled:
            self._lanes.finish(ticket)
            if not ticket.void and not ticket.lane.lost:
                self._send(BridgeMessage(outcome=ticket.outcome()))
        self._schedule_wake()

    def _request_leases(self) -> None:
        """Request as many lanes as this process can use."""
        most, now = self._options.concurrency, self._clock.monotonic()
        self._bridge.want(min(most - self._lanes.busy(now), most * (1 + _SLEEPERS) - len(self._lanes)))

    def _tick(self) -> None:
        self._stop_tick = self._hooks.later(_TICK_SECONDS, self._tick)
        self._complete_finished()
        self._request_leases()

    def _schedule_wake(self) -> None:
        """Schedule a wake-up of the engine for the next due request."""
        self._stop_due()
        self._stop_due = _nothing
        if (at := self._lanes.next_at()) is not None:
            wait = at - self._clock.monotonic()
            if wait <= 0:
                self._hooks.wake()
            else:
                self._stop_due = self._hooks.later(wait, self._hooks.wake)

    async def _process_spider_output(self, response: Response, result: Any, spider: Any = None) -> AsyncIterator[Any]:
        """Record the page of each yielded request; wait if the frontier cannot keep up."""
        ticket = self._lanes.tickets.get(response.meta.get(TICKET, 0)) if response.request is not None else None
        async for found in result:
            if isinstance(found, Request) and ticket is not None:
                self._yielded[found] = ticket
            await self._wait_for_room()
            yield found

    async def _process_start(self, start: Any) -> AsyncIterator[Any]:
        async for found in start:
            await self._wait_for_room()
            yield found

    async def _wait_for_room(self) -> None:
        while self._sent - self._written > _MOST_UNSENT and not self._ended:
            await self._hooks.sleep(0.05)

    async def _process_request(self, request: Request, spider: Any = None) -> None:
        """Delay every request to a leased site until its delay is over, including requests for robots.txt."""
        ticket = self._lanes.tickets.get(request.meta.get(TICKET, 0))
        lane = self._lane_of(request) or (ticket.lane if ticket is not None else None)
        if lane is None:
            return
        while not lane.lost and (wait := self._wait(lane)) > 0:
            await self._hooks.sleep(min(wait, 1.0))
        if ticket is not None and ticket.lane.lost:
            raise IgnoreRequest("its lease has expired: another process fetches it")
        lane.on_wire = True

    def _wait(self, lane: ScrapyLane) -> float:
        """Seconds until a request can be sent, or until the next check; 0 for now."""
        now = self._clock.monotonic()
        return _LOOK_SECONDS if lane.on_wire or now >= lane.deadline else lane.free_at - now

    def _process_exception(self, request: Request, exception: Exception, spider: Any = None) -> None:
        if (ticket := self._lanes.tickets.get(request.meta.get(TICKET, 0))) is not None:
            ticket.status = "skipped" if isinstance(exception, IgnoreRequest) else "failed"
            ticket.reason = type(exception).__name__

    def _lane_of(self, request: Request) -> ScrapyLane | None:
        address = urls.normal(request.url)
        return None if address is None else self._lanes.of_site(urls.site(address, by=self._settings.site_by))

    def _left_downloader(self, request: Request, spider: Spider) -> None:
        ticket = self._lanes.tickets.get(request.meta.get(TICKET, 0))
        lane = self._lane_of(request) or (ticket.lane if ticket is not None else None)
        if lane is None:
            return
        lane.on_wire = False
        lane.free_at = self._clock.monotonic() + lane.lease.delay
        if ticket is not None and ticket.lane.ticket is ticket:
            self._lanes.returned(ticket.lane)
            self._request_leases()
            self._schedule_wake()

    def _response_received(self, response: Response, request: Request, spider: Spider) -> None:
        if (ticket := self._lanes.tickets.get(request.meta.get(TICKET, 0))) is not None:
            ticket.code = response.status
            ticket.status, ticket.reason = (
                ("done", "") if response.status < 400 else ("failed", f"http-{response.status}")
            )

    def _spider_idle(self, spider: Spider) -> None:
        """This process is idle; the crawl ends when all processes are."""
        if not self._finished and not self._ended:
            self._request_leases()
            raise DontCloseSpider

    def opened(self, secret: bytes, settings: Settings, known: int) -> None:
        """The frontier is open."""
        if settings.delay != self._settings.delay:
            log.info("using the job's delay of %g s instead of this project's", settings.delay)
        self._secret, self._settings = secret, settings
        log.info("job %r on %s, %d requests known", self._options.job, self._options.shown, known)
        self._tick()
        if self._opening is not None:
            self._opening.callback(None)

    def arrived(self, grant: Grant, *, sent_at: float, written: int) -> None:
        """Handle a grant: add its leases, and follow the state of the job."""
        self._lanes.take(grant.leases, sent_at=sent_at)
        self._finished = grant.job == "finished" and written == self._sent and not self._lanes.tickets
        if grant.job in ("stopping", "missing"):
            log.info("job %r is %s", self._options.job, grant.job)
            self._hooks.close(f"gossamer_{grant.job}")
        if grant.leases:
            self._request_leases()
        self._hooks.wake()

    def renewed(self, ends: dict[int, float], lost: Sequence[int]) -> None:
        """Update renewed leases, and drop lost ones."""
        self._lanes.renew(ends, lost)
        if lost:
            self._stats.inc_value("gossamer/leases_lost", len(lost))
            log.warning("lost %d leases: other processes fetch their remaining requests", len(lost))

    def written(self, count: int, keys: Sequence[int], stale: int) -> None:
        """Messages are stored."""
        self._written = count
        self._recent.update(keys)
        self._stats.set_value("gossamer/stale", stale)
        if self._written == self._sent:
            self._hooks.wake()

    def away(self) -> None:
        """The frontier is unreachable, or its store has restarted and may have lost acknowledged writes."""
        self._recent.clear()

    def failed(self, error: BaseException) -> None:
        """The frontier has failed."""
        self._error = error
        hint = f"\nhint: {error.hint}" if isinstance(error, GossamerError) and error.hint else ""
        log.error("%s%s", error, hint, exc_info=None if isinstance(error, GossamerError) else error)

    def closed(self) -> None:
        """The bridge has ended."""
        self._ended = True
        self._stop_tick()
        if self._closing is not None:
            self._closing.callback(None)
        elif self._opening is not None and not self._opening.called:
            self._opening.errback(self._error or ConfigError("cannot open the frontier"))
        else:
            self._hooks.close("gossamer_error")


def _nothing() -> None:
    """Placeholder for a timer that is not running."""


def _unreadable(lane: ScrapyLane, kept: model.Request, reason: str) -> Outcome:
    lease = lane.lease
    return Outcome(
        site=lease.site, lane=lease.lane, token=lease.token, key=kept.key, status="failed", reason=reason[:200]
    )
