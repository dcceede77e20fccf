"""Traces by OpenTelemetry: off, and not even imported, unless the environment asks for them."""

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


def requested_by(environment: Mapping[str, str]) -> str:
    """The variable that asks for traces; empty if none does."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    exporter = environment.get(EXPORTER, "").strip().lower()
    if exporter:
        return "" if exporter == "none" else EXPORTER
    return next((name for name in ENDPOINTS if environment.get(name, "").strip()), "")


def begin(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Traces as the environment asks for them; None if it does not.

    Where only an endpoint is set, perhaps for all programs of a machine, a missing package is no reason to fail."""
    asked = requested_by(environment)
    if not asked:
        return None
    try:
        from gossamer.telemetry.tracing import open_tracing
    except ImportError as missing:
        error = unusable("telemetry", f"{asked}: tracing", missing)
        if asked == EXPORTER:
            raise error from missing
        log.warning("%s: %s", error, error.hint)
        return None
    return open_tracing(environment)
