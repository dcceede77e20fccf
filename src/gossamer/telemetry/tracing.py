"""Spans of OpenTelemetry: a trace per sampled page, and the exporter that the OTEL_* variables configure."""

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
    """Epoch seconds as spans have them."""
    return int(epoch * 1_000_000_000)


class PageSpan:
    """The span of one page, open until the page is stored, returned or given up."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)

    def current(self) -> AbstractContextManager[Span]:
        """What is traced inside belongs to this page; its end is not the block's."""
        return trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def part(self, name: str, began_ns: int, ended_ns: int) -> None:
        """A part of its life that is over."""
        span = self._tracer.start_span(name, self._context, start_time=began_ns)
        span.end(max(began_ns, ended_ns))

    def settled(self, outcome: str, reason: str) -> None:
        """What has become of the page."""
        self._span.set_attribute("gossamer.outcome", outcome)
        if reason:
            self._span.set_attribute("gossamer.reason", reason)
        if outcome == "failed":
            self._span.set_status(StatusCode.ERROR, reason)

    def end(self, at_ns: int | None = None) -> None:
        self._span.end(at_ns)


class Tracing:
    """Makes the spans of one worker, and knows the pages that wait to be stored."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer("gossamer", VERSION)
        self._waiting: dict[tuple[int, int], PageSpan] = {}
        self._mark = TraceMark()
        self._handlers = list(logging.getLogger().handlers)
        for handler in self._handlers:
            handler.addFilter(self._mark)

    def page(self, request: Request, lease: Lease, *, asked_ns: int) -> PageSpan | None:
        """The span of a page whose lease was asked for then; None if the page is not sampled."""
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
        """The page is handed over to be stored."""
        self._waiting[token, key] = page

    def take(self, token: int, key: int) -> PageSpan | None:
        """A page that is being stored."""
        return self._waiting.pop((token, key), None)

    def below(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> AbstractContextManager[Span]:
        """A span below the current one, for as long as the block lasts."""
        return self.tracer.start_as_current_span(name, kind=kind, record_exception=False)

    async def aclose(self) -> None:
        """Send what has not been sent yet; a collector that does not answer is waited for a few seconds, no more."""
        for page in self._waiting.values():
            page.settled("unstored", "")
            page.end()
        self._waiting.clear()
        for handler in self._handlers:
            handler.removeFilter(self._mark)
        loop, gone = asyncio.get_running_loop(), asyncio.Event()

        def leave() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(gone.set)

        threading.Thread(target=leave, name="gossamer-traces", daemon=True).start()
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await gone.wait()
        except TimeoutError:
            pass


class TraceMark(logging.Filter):
    """Puts the ids of the current trace into lines of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        current = trace.get_current_span().get_span_context()
        if current.is_valid and current.trace_flags.sampled:
            record.trace_id = trace.format_trace_id(current.trace_id)
            record.span_id = trace.format_span_id(current.span_id)
        return True


def is_traced() -> bool:
    """Whether what is done now belongs to a page that is sampled."""
    return trace.get_current_span().is_recording()


SHARE = 0.01
"""The share of pages that is traced unless OTEL_TRACES_SAMPLER says otherwise."""
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def open_tracing(environment: Mapping[str, str] = os.environ) -> Tracing:
    """Traces that go where the environment says. The SDK reads the rest of it: endpoint, headers, limits, queues."""
    sampler = None
    if not environment.get("OTEL_TRACES_SAMPLER"):
        sampler = ParentBased(TraceIdRatioBased(_share(environment)))
    # At the end of a process nobody waits for a collector: `Tracing.aclose` does, for a moment.
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
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG {text}: no share", hint="a number from 0 to 1, as in 0.01")
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
            raise ConfigError(f"OTLP by {protocol}: no such protocol here", hint=f"there are {', '.join(_PROTOCOLS)}")
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        try:
            exporter: SpanExporter = found.load()()
        except Exception as error:  # exporters come from other packages, and check their variables themselves
            raise ConfigError(
                f"traces cannot go to {name}: {error}", hint="see the OTEL_EXPORTER_* variables"
            ) from None
        return exporter
    package = f"opentelemetry-exporter-{name.replace('_', '-')}"
    raise ConfigError(f"{EXPORTER}: there is no exporter {name}", hint=f"is there a package {package}?")
