"""Traced versions of a worker's parts: each wraps the original in a span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.trace import Span, SpanKind, StatusCode

from gossamer import urls
from gossamer.clock import Clock
from gossamer.download.dns import NameResolver, ResolvedName
from gossamer.engine.commit import FleetStore, OwnerStore, Result, Store
from gossamer.engine.links import Linker
from gossamer.engine.parsing import Aside, PageParser, PageProcessor, ProcessedPage
from gossamer.engine.verdict import Verdict
from gossamer.engine.visit import Visit, VisitContext
from gossamer.errors import FetchError
from gossamer.middleware import Fetch
from gossamer.model import Lease, Receipt, Request, Response, SiteNote
from gossamer.redact import masked_url
from gossamer.telemetry.tracing import Attributes, PageSpan, Tracing, is_traced, nanoseconds

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "QUERY"))
_PORTS = {"http": 80, "https": 443}


class TracedVisit(Visit):
    """A visit with a span per page, and child spans for the lease, the turn, robots.txt, and the delay."""

    def __init__(self, lease: Lease, context: VisitContext, *, sent_at: float, tracing: Tracing) -> None:
        super().__init__(lease, context, sent_at=sent_at)
        self._tracing = tracing
        self._page: PageSpan | None = None
        now, epoch = self._clock.monotonic(), self._clock.epoch()
        self._asked_ns, self._granted_ns = nanoseconds(epoch - (now - sent_at)), nanoseconds(epoch)

    async def _visit(self, request: Request) -> bool:
        page = self._page = self._tracing.page(request, self.lease, asked_ns=self._asked_ns)
        if page is None:
            return await super()._visit(request)
        page.part("lease", self._asked_ns, self._granted_ns)
        page.part("turn", self._granted_ns, nanoseconds(self._clock.epoch()))
        is_settled = False
        try:
            with page.current():
                is_settled = await super()._visit(request)
        finally:
            self._page = None
            if not is_settled:
                self._tracing.take(self.lease.token, request.key)
                page.set_outcome("returned", "")
                page.end()
        return is_settled

    async def _may_fetch(self, request: Request) -> bool:
        if self._page is None or not self._robots.is_due(request.url):
            return await super()._may_fetch(request)
        with self._tracing.child("robots"):
            return await super()._may_fetch(request)

    async def _sleep(self, seconds: float) -> None:
        if self._page is None:
            await super()._sleep(seconds)
            return
        with self._tracing.child("delay"):
            await super()._sleep(seconds)

    async def _settle(self, request: Request, verdict: Verdict, **known: Any) -> None:
        if self._page is not None:
            self._page.set_outcome(verdict.status, verdict.reason)
            self._tracing.wait(self.lease.token, request.key, self._page)
        await super()._settle(request, verdict, **known)


class TracedPageProcessor(PageProcessor):
    """A span per extraction; it includes the wait for a parser process."""

    def __init__(self, extractor: PageParser, linker: Linker, tracing: Tracing) -> None:
        super().__init__(extractor, linker)
        self.tracing = tracing

    async def process(
        self,
        request: Request,
        response: Response,
        *,
        made: Mapping[int, Request] | None = None,
        suspect: bool = False,
        aside: Aside | None = None,
    ) -> ProcessedPage:
        handling = super().process(request, response, made=made, suspect=suspect, aside=aside)
        if not is_traced():
            return await handling
        with self.tracing.child("extract") as span:
            handled = await handling
            span.set_attributes({"gossamer.links": len(handled.links), "gossamer.items": len(handled.page.items)})
            if handled.page.error:
                span.set_status(StatusCode.ERROR, handled.page.kind)
        return handled


class TracedStore:
    """A store that ends the spans of committed pages, with a child span for the sink if this process writes to it."""

    def __init__(self, store: Store, tracing: Tracing, clock: Clock) -> None:
        self._store = store
        self._tracing = tracing
        self._clock = clock
        self._sunk_ns = 0
        self._writes_records = isinstance(store, OwnerStore | FleetStore)
        if isinstance(store, OwnerStore | FleetStore):
            store.sunk = self._sunk

    def _sunk(self) -> None:
        self._sunk_ns = nanoseconds(self._clock.epoch())

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        began, self._sunk_ns = nanoseconds(self._clock.epoch()), 0
        receipt = await self._store.commit(results, notes)
        ended = nanoseconds(self._clock.epoch())
        for result in results:
            # Only after success: a failed commit is retried.
            page = self._tracing.take(result.outcome.token, result.outcome.key)
            if page is None:
                continue
            middle = min(max(began, self._sunk_ns), ended)
            if self._writes_records:
                page.part("sink", began, middle)
            page.part("complete", middle, ended)
            page.end(ended)
        return receipt


class TracedNameResolver:
    """A resolver with a span per DNS lookup."""

    def __init__(self, names: NameResolver, tracing: Tracing) -> None:
        self._names = names
        self._tracing = tracing

    async def resolve(self, host: str) -> ResolvedName:
        if not is_traced():
            return await self._names.resolve(host)
        with self._tracing.child("dns") as span:
            span.set_attribute("dns.question.name", host)
            answer = await self._names.resolve(host)
            span.set_attribute("dns.answers", answer.addresses)
            return answer

    async def aclose(self) -> None:
        await self._names.aclose()


def traced_fetch(fetch: Fetch, tracing: Tracing) -> Fetch:
    """Wrap `fetch` in an HTTP client span (semantic conventions). No trace headers are sent to sites."""

    async def fetch_in_span(request: Request) -> Response:
        if not is_traced():
            return await fetch(request)
        method = request.method if request.method in _METHODS else "HTTP"
        with tracing.child(method, SpanKind.CLIENT) as span:
            span.set_attributes(_request_attributes(request))
            try:
                response = await fetch(request)
            except FetchError as error:
                span.set_attribute("error.type", error.kind)
                raise
            _set_response_attributes(span, response)
            if not response.from_cache and response.fetched_at:
                _phases(tracing, response)
            return response

    return fetch_in_span


def _request_attributes(request: Request) -> Attributes:
    authority = urls.host_port(request.url)
    host, scheme = urls.host(authority), request.url.partition(":")[0]
    port = authority[len(host) + 1 :]
    attributes: Attributes = {
        "http.request.method": request.method if request.method in _METHODS else "_OTHER",
        "url.full": masked_url(request.url),
        "server.address": host.strip("[]"),
        "server.port": int(port) if port.isdigit() else _PORTS.get(scheme, 0),
    }
    if request.tries:
        attributes["http.request.resend_count"] = request.tries
    return attributes


def _set_response_attributes(span: Span, response: Response) -> None:
    span.set_attributes(
        {
            "http.response.status_code": response.status,
            "http.response.body.size": response.wire_bytes,
            "network.protocol.version": response.http_version.removeprefix("HTTP/").removesuffix(".0"),
        }
    )
    if response.address:
        span.set_attribute("network.peer.address", response.address)
    if response.from_cache:
        span.set_attribute("gossamer.from_cache", True)
    if response.status >= 400:
        span.set_attribute("error.type", str(response.status))
        span.set_status(StatusCode.ERROR)


def _phases(tracing: Tracing, response: Response) -> None:
    """Two child spans: until the headers (including the connect, which the client does not report), and the body."""
    sent, headers = response.fetched_at, response.fetched_at + response.latency
    for name, began, ended in (("wait", sent, headers), ("download", headers, sent + response.elapsed)):
        span = tracing.tracer.start_span(name, start_time=nanoseconds(began))
        span.end(max(nanoseconds(began), nanoseconds(ended)))
