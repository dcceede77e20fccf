"""What is sent: the client's configuration and the headers of each request."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from pyreqwest.client import BaseClientBuilder
from pyreqwest.http import HeaderMap
from pyreqwest.proxy import ProxyBuilder

from gossamer.download.routes import IDLE_SECONDS
from gossamer.errors import ConfigError, Forbidden
from gossamer.model import Headers, Request
from gossamer.settings import MIB, Settings
from gossamer.urls import host_port

_DEFAULTS = {
    "accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "accept-language": "*",
    "accept-encoding": "gzip, br, zstd",
}
# The client frames messages and keeps connections: a header that says otherwise could make two requests of one.
_CLIENTS_OWN = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect")
)

B = TypeVar("B", bound=BaseClientBuilder)


class Outgoing:
    """The headers of a request: the job's, then those of its site, then its own; the later ones win."""

    def __init__(self, settings: Settings) -> None:
        self.everywhere = _headers("headers", {**_DEFAULTS, "user-agent": settings.user_agent})
        self.everywhere.update(_headers("headers", settings.headers))
        self._always = tuple(self.everywhere.items())
        self._sites = {
            site: _headers(f'sites."{site}".headers', own.headers)
            for site, own in settings.sites.items()
            if own.headers
        }

    def all_of(self, own: HeaderMap | None) -> Headers:
        """Every header of a request, but for those that the client adds itself."""
        if own is None:
            return self._always
        merged = self.everywhere.copy()
        merged.update(own)
        return tuple(merged.items())

    def for_request(self, request: Request) -> HeaderMap | None:
        """What to send beyond the headers that go everywhere; Forbidden if a header cannot stand in a request."""
        site = self._sites.get(request.site or host_port(request.url)) if self._sites else None
        if not request.headers:
            return site
        try:
            own = _headers("request", request.headers)
        except ConfigError as error:
            raise Forbidden(str(error)) from None
        if site is not None:
            merged = site.copy()
            merged.update(own)
            return merged
        return own


def configure(builder: B, settings: Settings, headers: HeaderMap, authorities: list[bytes]) -> B:
    """A builder of clients that follow nothing, decode nothing, remember nothing and look at no environment."""
    configured = (
        builder.no_proxy()
        .follow_redirects(False)
        .referer(False)
        .default_cookie_store(False)
        .gzip(False)
        .brotli(False)
        .zstd(False)
        .deflate(False)
        .default_headers(headers)
        .connect_timeout(timedelta(seconds=settings.connect_seconds))
        # Whatever is abandoned half-way ends with this at the latest.
        .timeout(timedelta(seconds=settings.fetch_seconds))
        .pool_idle_timeout(timedelta(seconds=IDLE_SECONDS))
        .pool_max_idle_per_host(settings.per_site + 1)
        .http2(True)
        .http2_initial_stream_window_size(MIB)
        .http2_initial_connection_window_size(4 * MIB)
        .http2_max_header_list_size(MIB // 4)
    )
    for authority in authorities:
        configured = configured.add_root_certificate_pem(authority)
    return configured


def read_authorities(ca_file: str) -> list[bytes]:
    """The certificates of a PEM file, one by one; ConfigError if there are none."""
    if not ca_file:
        return []
    try:
        text = Path(ca_file).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"ca_file: {ca_file}: {error.strerror}") from None
    end = b"-----END CERTIFICATE-----"
    found = [
        part[part.index(b"-----BEGIN CERT") :] + end + b"\n" for part in text.split(end) if b"-----BEGIN CERT" in part
    ]
    if not found:
        raise ConfigError(f"ca_file: {ca_file}: no certificate in it", hint="it must be in PEM form")
    return found


def read_proxies(addresses: tuple[str, ...]) -> list[ProxyBuilder]:
    """The proxies of the settings; ConfigError, without the password, if one is not an http(s) or socks5 URL."""
    try:
        return [ProxyBuilder.all(address) for address in addresses]
    except ValueError:
        hint = "for example http://user:password@host:port"
        raise ConfigError("proxy: one of the addresses is not a URL", hint=hint) from None


def _headers(source: str, values: Mapping[str, str]) -> HeaderMap:
    for name in values:
        if name.lower() in _CLIENTS_OWN:
            raise ConfigError(f"{source}: {name} is set by the client itself")
    try:
        return HeaderMap(values)
    except ValueError:
        raise ConfigError(f"{source}: a name or value that cannot stand in a header") from None
