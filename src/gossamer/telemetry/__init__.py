"""OpenTelemetry tracing: off, and not imported, unless the OTEL_* environment variables enable it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gossamer.extras import unusable

if TYPE_CHECKING:
    from gossamer.telemetry.tracing import Tracing

log = logging.getLogger("gossamer.telemetry")
EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def enabling_variable(environment: Mapping[str, str]) -> str:
    """The environment variable that enables tracing; empty if none does."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    exporter = environment.get(EXPORTER, "").strip().lower()
    if exporter:
        return "" if exporter == "none" else EXPORTER
    return next((name for name in ENDPOINTS if environment.get(name, "").strip()), "")


def begin(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Set up tracing if the environment enables it, and return None otherwise.

    If only an endpoint is set, possibly for all programs of the machine, a missing package logs a warning."""
    variable = enabling_variable(environment)
    if not variable:
        return None
    try:
        from gossamer.telemetry.tracing import open_tracing
    except ImportError as missing:
        error = unusable("telemetry", f"{variable}: tracing", missing)
        if variable == EXPORTER:
            raise error from missing
        log.warning("%s: %s", error, error.hint)
        return None
    return open_tracing(environment)
