"""Downloaders: each turns one request into one response, within limits and behind the address guard."""

from __future__ import annotations

import msgspec

from gossamer.clock import Clock
from gossamer.download.base import AddressLookup, Downloader, LearnsSites
from gossamer.download.client import HttpDownloader
from gossamer.download.dns import NameResolver
from gossamer.download.tls import RecordingDownloader, SiteDownloaders, without_credentials
from gossamer.errors import ConfigError
from gossamer.settings import Settings

__all__ = [
    "AddressLookup",
    "Downloader",
    "HttpDownloader",
    "LearnsSites",
    "open_downloader",
]


def open_downloader(settings: Settings, *, clock: Clock, resolver: NameResolver | None = None) -> Downloader:
    """Return the downloader that the settings name; ConfigError if headers, proxies or certificates are unusable."""
    if settings.downloader in ("browser", "auto"):
        if settings.bad_tls == "record" or any(special.client_cert for special in settings.sites.values()):
            raise ConfigError(
                f"the downloader {settings.downloader} does not support bad_tls = record or a site's own client_cert",
                hint="use --downloader async",
            )
        # Few crawls need a browser: do not import its driver for the others.
        from gossamer.download.auto import AutoDownloader
        from gossamer.download.browser import BrowserDownloader

        return (BrowserDownloader if settings.downloader == "browser" else AutoDownloader)(settings, clock, resolver)
    lowest = {settings.tls_min, *(special.tls_min or "1.2" for special in settings.sites.values())}
    if settings.downloader in ("http2", "threads") and lowest != {"1.2"}:
        raise ConfigError(
            f"the downloader {settings.downloader} does not support tls_min", hint="use --downloader async"
        )
    kind = _kind(settings.downloader)
    found: Downloader = kind(settings, clock, resolver)
    own: dict[str, Downloader] = {
        site: kind(msgspec.structs.replace(settings, client_cert=special.client_cert), clock, resolver)
        for site, special in settings.sites.items()
        if special.client_cert
    }
    if own:
        found = SiteDownloaders(found, own)
    if settings.bad_tls == "record":
        lax = kind(without_credentials(settings), clock, resolver, accepts_any_certificate=True)
        found = RecordingDownloader(found, lax, clock)
    return found


def _kind(name: str) -> type[HttpDownloader]:
    # Most crawls use the default downloader: do not import the libraries of the others.
    if name == "http2":
        from gossamer.download.http2 import Http2Downloader

        return Http2Downloader
    if name == "threads":
        from gossamer.download.threads import ThreadDownloader

        return ThreadDownloader
    return HttpDownloader
