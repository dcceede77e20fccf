"""OpenTelemetry spans: one trace per sampled page, sent by the exporter that the OTEL_* variables configure."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from gossamer.errors import ConfigError
from gossamer.model import Lease, Request
from gossamer.redact import masked_url
from gossamer.settings import VERSION
from gossamer.telemetry import EXPORTER

Attributes = dict[str, AttributeValue]
_LAST_SECONDS = 5.0


def nanoseconds(epoch: float) -> int:
    """Convert epoch seconds to nanoseconds."""
    return int(epoch * 1_000_000_000)


class PageSpan:
    """The span of one page, open until the page is stored, returned, or dropped."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)

    def current(self) -> AbstractContextManager[Span]:
        """Make this the current span for a block, without ending it after the block."""
        return trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def part(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Add a finished child span."""
        span = self._tracer.start_span(name, self._context, start_time=began_ns)
        span.end(max(began_ns, ended_ns))

    def set_outcome(self, outcome: str, reason: str) -> None:
        """Set the outcome of the page."""
        self._span.set_attribute("gossamer.outcome", outcome)
        if reason:
            self._span.set_attribute("gossamer.reason", reason)
        if outcome == "failed":
            self._span.set_status(StatusCode.ERROR, reason)

    def end(self, at_ns: int | None = None) -> None:
        self._span.end(at_ns)


class Tracing:
    """Creates the spans of one worker, and keeps those of pages that wait to be stored."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer("gossamer", VERSION)
        self._waiting: dict[tuple[int, int], PageSpan] = {}
        self._mark = TraceContextFilter()
        self._handlers = list(logging.getLogger().handlers)
        for handler in self._handlers:
            handler.addFilter(self._mark)

    def page(self, request: Request, lease: Lease, *, asked_ns: int) -> PageSpan | None:
        """Start the span of a page whose lease was requested at `asked_ns`; None if the page is not sampled."""
        span = self.tracer.start_span("page", context=Context(), start_time=asked_ns)
        if not span.is_recording():
            return None
        span.set_attributes(
            {
                "url.full": masked_url(request.url),
                "gossamer.request": f"{request.key:016x}-{request.tries}",
                "gossamer.site": lease.site,
                "gossamer.depth": request.depth,
                "gossamer.tries": request.tries,
            }
        )
        return PageSpan(self.tracer, span)

    def wait(self, token: int, key: int, page: PageSpan) -> None:
        """Keep the span of a page that waits to be stored."""
        self._waiting[token, key] = page

    def take(self, token: int, key: int) -> PageSpan | None:
        """Remove and return the span of a page that waits to be stored."""
        return self._waiting.pop((token, key), None)

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> AbstractContextManager[Span]:
        """A child of the current span, for the duration of a block."""
        return self.tracer.start_as_current_span(name, kind=kind, record_exception=False)

    async def aclose(self) -> None:
        """Export the remaining spans; waits at most five seconds for the collector."""
        for page in self._waiting.values():
            page.set_outcome("unstored", "")
            page.end()
        self._waiting.clear()
        for handler in self._handlers:
            handler.removeFilter(self._mark)
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="gossamer-traces", daemon=True).start()
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await done.wait()
        except TimeoutError:
            pass


class TraceContextFilter(logging.Filter):
    """Adds `trace_id` and `span_id` of the current trace to log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        current = trace.get_current_span().get_span_context()
        if current.is_valid and current.trace_flags.sampled:
            record.trace_id = trace.format_trace_id(current.trace_id)
            record.span_id = trace.format_span_id(current.span_id)
        return True


def is_traced() -> bool:
    """Whether the current span belongs to a sampled page."""
    return trace.get_current_span().is_recording()


SHARE = 0.01
"""Default share of pages to trace; OTEL_TRACES_SAMPLER overrides it."""
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def open_tracing(environment: Mapping[str, str] = os.environ) -> Tracing:
    """Set up the sampler and the exporters. The SDK reads the other variables: endpoint, headers, limits, queues."""
    sampler = None
    if not environment.get("OTEL_TRACES_SAMPLER"):
        sampler = ParentBased(TraceIdRatioBased(_share(environment)))
    # Do not wait for the collector at exit: `Tracing.aclose` waits, with a timeout.
    provider = TracerProvider(sampler, Resource.create(_about(environment)), shutdown_on_exit=False)
    for name in (environment.get(EXPORTER) or "otlp").split(","):
        if (name := name.strip().lower()) not in ("", "none"):
            provider.add_span_processor(BatchSpanProcessor(_exporter(name, environment)))
    return Tracing(provider)


def _share(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_TRACES_SAMPLER_ARG", "")
    try:
        share = float(text) if text else SHARE
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER_ARG={text}: not a share",
            hint="use a number from 0 to 1, as in OTEL_TRACES_SAMPLER_ARG=0.01",
        )
    return share


def _about(environment: Mapping[str, str]) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "service.version": VERSION,
        "host.name": os.uname().nodename,
        "process.pid": os.getpid(),
    }
    if (
        "service.name=" not in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        and "OTEL_SERVICE_NAME" not in environment
    ):
        about["service.name"] = "gossamer"
    return about


def _exporter(name: str, environment: Mapping[str, str]) -> SpanExporter:
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((text for variable in variables if (text := environment.get(variable))), "http/protobuf")
        name = _PROTOCOLS.get(protocol, "")
        if not name:
            raise ConfigError(f"unsupported OTLP protocol {protocol}", hint=f"use one of: {', '.join(_PROTOCOLS)}")
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        try:
            exporter: SpanExporter = found.load()()
        except Exception as error:  # exporters are third-party, and validate their variables with any exception
            raise ConfigError(
                f"cannot create the trace exporter {name}: {error}", hint="check the OTEL_EXPORTER_* variables"
            ) from None
        return exporter
    package = f"opentelemetry-exporter-{name.replace('_', '-')}"
    raise ConfigError(f"{EXPORTER}: unknown exporter {name}", hint=f"pip install {package}")
