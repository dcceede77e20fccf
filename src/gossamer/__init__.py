"""Gossamer: a web crawler that scales from a laptop to a cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from gossamer.api import AsyncJobHandle, JobHandle, Pages, Results, crawl, open_job
    from gossamer.errors import (
        ConfigError,
        ExtractError,
        FetchError,
        FrontierError,
        GossamerError,
        SeedsFailed,
        SinkError,
    )
    from gossamer.extract.page import Page
    from gossamer.extract.spider import Spider
    from gossamer.jobs.collected import CrawlSummary
    from gossamer.model import FailedPage, Request, Response, secret
    from gossamer.settings import Settings

# Loaded on first use: workers, parser processes, and the service import this package and need only parts of it.
_HOMES = {
    "AsyncJobHandle": "api",
    "ConfigError": "errors",
    "CrawlSummary": "jobs.collected",
    "ExtractError": "errors",
    "FailedPage": "model",
    "FetchError": "errors",
    "FrontierError": "errors",
    "GossamerError": "errors",
    "JobHandle": "api",
    "Page": "extract.page",
    "Pages": "api",
    "Request": "model",
    "Response": "model",
    "Results": "api",
    "SeedsFailed": "errors",
    "Settings": "settings",
    "SinkError": "errors",
    "Spider": "extract.spider",
    "crawl": "api",
    "open_job": "api",
    "secret": "model",
}
__all__ = [
    "AsyncJobHandle",
    "ConfigError",
    "CrawlSummary",
    "ExtractError",
    "FailedPage",
    "FetchError",
    "FrontierError",
    "GossamerError",
    "JobHandle",
    "Page",
    "Pages",
    "Request",
    "Response",
    "Results",
    "SeedsFailed",
    "Settings",
    "SinkError",
    "Spider",
    "crawl",
    "open_job",
    "secret",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from gossamer.settings import VERSION

        return VERSION
    if name in _HOMES:
        return getattr(import_module(f"gossamer.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'gossamer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
