"""The source of traces: sampler, exporter and resource, as the OTEL_* variables say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from gossamer.errors import ConfigError
from gossamer.settings import VERSION
from gossamer.telemetry import EXPORTER
from gossamer.telemetry.tracing import Tracing

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
