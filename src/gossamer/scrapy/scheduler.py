"""The scheduler for Scrapy: requests live in the frontier, and are done when Scrapy has handled them to the end."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapysOwn
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
from gossamer.scrapy.requests import TICKET, Unstorable, key_of, past_the_filter, restore, store
from gossamer.settings import Settings

log = logging.getLogger("gossamer.scrapy")
_TICK_SECONDS = 0.1
_LOOK_SECONDS = 0.01
_SLEEPERS = 15
"""Lanes that wait for their delay, per request that may be under way: they cost memory only."""
_MOST_UNSENT = 2_000
"""Parcels that may wait for the frontier before callbacks and `start` have to wait too."""
_MOST_LINKS = 5_000
"""Links of one page that wait for its end; further ones are stored as they come."""


class Scheduler(BaseScheduler):
    """`SCHEDULER = "gossamer.scrapy.Scheduler"`: one crawl for any number of Scrapy processes, which may be killed.

    A request is done when its callback, or errback, has run to its end and its items are through the pipelines; the
    requests that it yielded are stored in the same step. Site leases keep the delay over all processes."""

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
        self._courier = FrontierBridge(self._options, self, self._hooks.soon)
        self._lanes = Lanes()
        self._recent = RecentKeys(500_000)
        self._yielded: WeakKeyDictionary[Request, Ticket] = WeakKeyDictionary()
        self._secret = b""
        self._sent = self._written = 0
        self._finished = self._ended = False
        self._trouble: BaseException | None = None
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
        """The scheduler of a crawl; `scrapy shell` gets Scrapy's own, since nobody else can go on with what it asks."""
        if crawler.settings.getbool("KEEP_ALIVE"):
            return ScrapysOwn.from_crawler(crawler)
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None]:
        self._opening = Deferred()
        self._courier.start()
        return self._opening

    def close(self, reason: str) -> Deferred[None] | None:
        self._stop_tick()
        self._stop_due()
        if self._ended:
            return None
        self._reap()
        self._closing = Deferred()
        self._courier.finish()
        return self._closing

    def has_pending_requests(self) -> bool:
        self._reap()
        return self._sent != self._written or self._lanes.has_waiting()

    def enqueue_request(self, request: Request) -> bool:
        parent = self._yielded.pop(request, None)
        if parent is None and (parent := self._lanes.tickets.get(request.meta.get(TICKET, 0))) is not None:
            # A copy that a middleware made: a redirect, or another try, takes the place of an answer.
            parent.status, parent.reason = ("done", "") if not parent.code else (parent.status, parent.reason)
        key = self._key(request, parent)
        if not self._recent.unknown((key,)):
            self._stats.inc_value("dupefilter/filtered")
            return False
        try:
            kept = store(request, self._spider, key=key, site_by=self._settings.site_by)
        except Unstorable as error:
            self._refuse(error)
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
        self._reap()
        now = self._clock.monotonic()
        while (found := self._lanes.next(now)) is not None:
            lane, kept = found
            try:
                request = restore(kept, self._spider)
            except ValueError as error:
                log.error("%s cannot be handled by this spider and counts as failed: %s", kept.url, error)
                self._send(BridgeMessage(outcome=_unreadable(lane, kept, str(error))))
                self._lanes.skipped(lane)
                continue
            ticket = self._lanes.hand_out(lane, kept, request)
            request.meta[TICKET] = ticket.number
            self._stats.inc_value("scheduler/dequeued")
            self._stats.inc_value("scheduler/dequeued/gossamer")
            return request
        self._ask()
        return None

    def _key(self, request: Request, parent: Ticket | None) -> int:
        """What the request is known by. One that must not be filtered has a name of its own.

        That follows from its page, so that a page which is handled again after a crash queues nothing twice. Start
        requests are filtered, whatever they say: every process makes them, and so does every new start."""
        fingerprint = self._fingerprint(request)
        if self._filters and not request.dont_filter:
            return key_of(self._secret, fingerprint)
        if parent is not None:
            parent.alike[fingerprint] += 1
            return key_of(self._secret, fingerprint, past_the_filter(parent.kept.key, parent.alike[fingerprint]))
        if request.meta.get("is_start_request"):
            return key_of(self._secret, fingerprint)
        return key_of(self._secret, fingerprint, secrets.token_bytes(16))

    def _refuse(self, error: Unstorable) -> None:
        """End the crawl, and settle nothing that the request may come from: nothing is lost once it is mended."""
        log.error("%s; the crawl ends here, and goes on where it was when that is mended\nhint: %s", error, error.hint)
        self._stats.inc_value("gossamer/unstorable")
        for ticket in self._lanes.tickets.values():
            ticket.void = True
        self._hooks.close("gossamer_unstorable")

    def _send(self, parcel: BridgeMessage) -> None:
        self._sent += 1
        self._courier.send(parcel)

    def _reap(self) -> None:
        """Settle what Scrapy has handled to the end."""
        if not self._lanes.tickets:
            return
        under_way = self._hooks.in_progress()
        handled = [ticket for ticket in self._lanes.tickets.values() if ticket.request not in under_way]
        if handled:
            self._hooks.flush_feeds()
        for ticket in handled:
            self._lanes.settled(ticket)
            if not ticket.void and not ticket.lane.lost:
                self._send(BridgeMessage(outcome=ticket.outcome()))
        self._due()

    def _ask(self) -> None:
        """Have as many lanes leased as this process can use."""
        most, now = self._options.concurrency, self._clock.monotonic()
        self._courier.want(min(most - self._lanes.busy(now), most * (1 + _SLEEPERS) - len(self._lanes)))

    def _tick(self) -> None:
        self._stop_tick = self._hooks.later(_TICK_SECONDS, self._tick)
        self._reap()
        self._ask()

    def _due(self) -> None:
        """Wake the engine when the next request is due."""
        self._stop_due()
        self._stop_due = _nothing
        if (at := self._lanes.next_at()) is not None:
            wait = at - self._clock.monotonic()
            if wait <= 0:
                self._hooks.wake()
            else:
                self._stop_due = self._hooks.later(wait, self._hooks.wake)

    async def _process_spider_output(self, response: Response, result: Any, spider: Any = None) -> AsyncIterator[Any]:
        """Remember which page each request comes from; wait where the frontier cannot keep up."""
        ticket = self._lanes.tickets.get(response.meta.get(TICKET, 0)) if response.request is not None else None
        async for found in result:
            if isinstance(found, Request) and ticket is not None:
                self._yielded[found] = ticket
            await self._room()
            yield found

    async def _process_start(self, start: Any) -> AsyncIterator[Any]:
        async for found in start:
            await self._room()
            yield found

    async def _room(self) -> None:
        while self._sent - self._written > _MOST_UNSENT and not self._ended:
            await self._hooks.sleep(0.05)

    async def _process_request(self, request: Request, spider: Any = None) -> None:
        """Hold every request to a site that is ours until its delay is over, those for robots.txt among them."""
        ticket = self._lanes.tickets.get(request.meta.get(TICKET, 0))
        lane = self._lane_of(request) or (ticket.lane if ticket is not None else None)
        if lane is None:
            return
        while not lane.lost and (wait := self._wait(lane)) > 0:
            await self._hooks.sleep(min(wait, 1.0))
        if ticket is not None and ticket.lane.lost:
            raise IgnoreRequest("its lease has ended: another process fetches it")
        lane.on_wire = True

    def _wait(self, lane: ScrapyLane) -> float:
        """Seconds until a request may be sent, or until it is worth to look again; 0 for now."""
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
            self._ask()
            self._due()

    def _response_received(self, response: Response, request: Request, spider: Spider) -> None:
        if (ticket := self._lanes.tickets.get(request.meta.get(TICKET, 0))) is not None:
            ticket.code = response.status
            ticket.status, ticket.reason = (
                ("done", "") if response.status < 400 else ("failed", f"http-{response.status}")
            )

    def _spider_idle(self, spider: Spider) -> None:
        """This process has nothing to do; the crawl ends when nobody has."""
        if not self._finished and not self._ended:
            self._ask()
            raise DontCloseSpider

    def opened(self, secret: bytes, settings: Settings, known: int) -> None:
        """The frontier is open."""
        if settings.delay != self._settings.delay:
            log.info("the job has a delay of %g s, which counts, and not that of this project", settings.delay)
        self._secret, self._settings = secret, settings
        log.info("job %r on %s, %d requests known", self._options.job, self._options.shown, known)
        self._tick()
        if self._opening is not None:
            self._opening.callback(None)

    def arrived(self, grant: Grant, *, sent_at: float, written: int) -> None:
        """Leases came, or word of the job."""
        self._lanes.take(grant.leases, sent_at=sent_at)
        self._finished = grant.job == "finished" and written == self._sent and not self._lanes.tickets
        if grant.job in ("stopping", "missing"):
            log.info("job %r is %s", self._options.job, grant.job)
            self._hooks.close(f"gossamer_{grant.job}")
        if grant.leases:
            self._ask()
        self._hooks.wake()

    def renewed(self, ends: dict[int, float], lost: Sequence[int]) -> None:
        """Leases go on, or are lost."""
        self._lanes.renew(ends, lost)
        if lost:
            self._stats.inc_value("gossamer/leases_lost", len(lost))
            log.warning("%d leases are lost: what is left of them goes to other processes", len(lost))

    def written(self, count: int, keys: Sequence[int], stale: int) -> None:
        """Parcels are stored."""
        self._written = count
        self._recent.update(keys)
        self._stats.set_value("gossamer/stale", stale)
        if self._written == self._sent:
            self._hooks.wake()

    def away(self) -> None:
        """The frontier cannot be reached, or is another run of its store: it may lack what it acknowledged."""
        self._recent.clear()

    def failed(self, error: BaseException) -> None:
        """The frontier cannot be used."""
        self._trouble = error
        hint = f"\nhint: {error.hint}" if isinstance(error, GossamerError) and error.hint else ""
        log.error("%s%s", error, hint, exc_info=None if isinstance(error, GossamerError) else error)

    def closed(self) -> None:
        """Nothing more comes from the frontier."""
        self._ended = True
        self._stop_tick()
        if self._closing is not None:
            self._closing.callback(None)
        elif self._opening is not None and not self._opening.called:
            self._opening.errback(self._trouble or ConfigError("the frontier could not be opened"))
        else:
            self._hooks.close("gossamer_error")


def _nothing() -> None:
    """Stands for a timer that is not running."""


def _unreadable(lane: ScrapyLane, kept: model.Request, reason: str) -> Outcome:
    lease = lane.lease
    return Outcome(
        site=lease.site, lane=lease.lane, token=lease.token, key=kept.key, status="failed", reason=reason[:200]
    )
