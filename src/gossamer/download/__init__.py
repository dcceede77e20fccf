"""Downloading: one request in, one response out, behind the address guard and within limits."""

from __future__ import annotations

from gossamer.clock import Clock
from gossamer.download.base import Downloader
from gossamer.download.client import HttpDownloader
from gossamer.download.dns import Names
from gossamer.download.threads import ThreadDownloader
from gossamer.settings import Settings

__all__ = ["Downloader", "HttpDownloader", "ThreadDownloader", "open_downloader"]


def open_downloader(settings: Settings, *, clock: Clock, resolver: Names | None = None) -> Downloader:
    """The downloader that the settings name; ConfigError if headers, proxies or certificates are not usable."""
    if settings.downloader == "threads":
        return ThreadDownloader(settings, clock, resolver)
    return HttpDownloader(settings, clock, resolver)
