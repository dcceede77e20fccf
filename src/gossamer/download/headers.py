"""Request headers, secrets in them, and the configuration of HTTP clients."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote_plus

from pyreqwest.client import BaseClientBuilder
from pyreqwest.http import HeaderMap

from gossamer.download.http1 import is_token
from gossamer.download.routes import IDLE_SECONDS
from gossamer.errors import ConfigError, Forbidden
from gossamer.model import SECRET, Headers, Request
from gossamer.settings import MIB, Settings, expand
from gossamer.urls import host, host_port

_DEFAULTS = {
    "accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "accept-language": "*",
    "accept-encoding": "gzip, br, zstd",
}
# The client frames messages and manages connections: overriding these headers could split one request into two.
_RESERVED = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect")
)
_INVALID_VALUE = re.compile(r"[\0-\x08\x0a-\x1f\x7f\ud800-\udfff]")

B = TypeVar("B", bound=BaseClientBuilder)


class RequestHeaders:
    """The headers of a request: those of the job, then of its site, then its own; later ones win.

    Environment variables are substituted only here, so that no stored request contains their values."""

    def __init__(self, settings: Settings) -> None:
        self.everywhere = _headers("headers", {**_DEFAULTS, "user-agent": settings.user_agent})
        self.everywhere.update(_headers("headers", _expanded("headers", settings.headers)))
        self._sites = {
            site: _headers(source, _expanded(source, own.headers))
            for site, own in settings.sites.items()
            if own.headers and (source := f'sites."{site}".headers')
        }
        self._auths = {
            site: _basic(expand(own.auth, source=f'sites."{site}".auth'))
            for site, own in settings.sites.items()
            if own.auth
        }
        self._secrets = {name: expand(f"${{{name}}}", source="secrets") for name in settings.secrets}
        written = [settings.headers, *(own.headers for own in settings.sites.values()), *settings.header_sets]
        self._hidden = {name.lower() for headers in written for name, value in headers.items() if "${" in value}
        if self._auths:
            self._hidden.add("authorization")
        self._always = self._masked(self.everywhere)

    def storable(self, own: Mapping[str, str] | None) -> Headers:
        """Return all headers of a request in a form that may be stored, without those that the client adds."""
        if own is None:
            return self._always
        return tuple((dict(self._always) | dict(self._masked(own))).items())

    def _masked(self, headers: Mapping[str, str]) -> Headers:
        secrets = [secret for secret in self._secrets.values() if secret]
        shown = []
        for name, value in headers.items():
            is_secret = name in self._hidden or any(secret in value for secret in secrets)
            shown.append((name, "withheld" if is_secret else value))
        return tuple(shown)

    def for_request(self, request: Request) -> dict[str, str] | None:
        """Return the headers to add to the common ones; Forbidden if a header is not valid in a request."""
        name = request.site or host_port(request.url) if self._sites or self._auths else ""
        site = self._sites.get(name)
        own = request.headers
        auth = self._auths.get(name)
        if auth and (request.url.startswith("https:") or host(name) != name):
            own = {"authorization": auth, **{key.lower(): value for key, value in (own or {}).items()}}
        if not own:
            return site
        try:
            made = _headers("request", {key: self._with_secrets(value, str) for key, value in own.items()})
        except ConfigError as error:
            raise Forbidden(str(error)) from None
        return made if site is None else site | made

    def body(self, request: Request) -> bytes:
        """Return the body with its secrets substituted and escaped for its content type."""
        if b"${secret:" not in request.body:
            return request.body
        kind = next((value for key, value in (request.headers or {}).items() if key.lower() == "content-type"), "")
        text = request.body.decode("latin-1")
        return self._with_secrets(text, _writer(kind)).encode("latin-1")

    def _with_secrets(self, text: str, write: Callable[[str], str]) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in self._secrets:
                raise Forbidden(
                    f"the setting secrets does not list {match[1]}", hint=f"allow it with --secrets {match[1]}"
                )
            return write(self._secrets[match[1]])

        return SECRET.sub(value, text) if "${secret:" in text else text


def _writer(kind: str) -> Callable[[str], str]:
    """Return how to escape a text for a body of this content type; the result is one character per byte."""
    if kind.startswith("application/x-www-form-urlencoded"):
        return quote_plus
    if "json" in kind:
        return lambda text: json.dumps(text)[1:-1]
    return lambda text: text.encode().decode("latin-1")


def _basic(credentials: str) -> str:
    return "Basic " + b64encode(credentials.encode()).decode()


def configure(builder: B, settings: Settings, headers: Mapping[str, str], authorities: list[bytes]) -> B:
    """Configure an HTTP client: no redirects, no decoding, no cookies, and no proxies from the environment."""
    configured = (
        builder.no_proxy()
        .follow_redirects(False)
        .referer(False)
        .default_cookie_store(False)
        .gzip(False)
        .brotli(False)
        .zstd(False)
        .deflate(False)
        .default_headers(HeaderMap(headers))
        .connect_timeout(timedelta(seconds=settings.connect_seconds))
        # An upper bound for requests that are abandoned half-way.
        .timeout(timedelta(seconds=settings.fetch_seconds))
        .pool_idle_timeout(timedelta(seconds=IDLE_SECONDS))
        .pool_max_idle_per_host(settings.per_site + 1)
        # A folded header value: RFC 9112 has user agents replace the fold by spaces.
        .http1_allow_obsolete_multiline_headers_in_responses(True)
        .http2(True)
        .http2_initial_stream_window_size(MIB)
        .http2_initial_connection_window_size(4 * MIB)
        .http2_max_header_list_size(MIB // 4)
    )
    for authority in authorities:
        configured = configured.add_root_certificate_pem(authority)
    return configured


def read_authorities(ca_file: str) -> list[bytes]:
    """Read the certificates of a PEM file one by one; ConfigError if there are none."""
    if not ca_file:
        return []
    try:
        text = Path(ca_file).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"ca_file: {ca_file}: {error.strerror}", hint="name a readable PEM file") from None
    end = b"-----END CERTIFICATE-----"
    found = [
        part[part.index(b"-----BEGIN CERT") :] + end + b"\n" for part in text.split(end) if b"-----BEGIN CERT" in part
    ]
    if not found:
        raise ConfigError(f"ca_file: {ca_file}: no certificate in the file", hint="the file must be in PEM format")
    return found


def _expanded(source: str, values: Mapping[str, str]) -> dict[str, str]:
    return {name: expand(value, source=f"{source}.{name}") for name, value in values.items()}


def _headers(source: str, values: Mapping[str, str]) -> dict[str, str]:
    made = {}
    for name, value in values.items():
        lowered = name.lower()
        if lowered in _RESERVED:
            raise ConfigError(f"{source}: the client sets {name} itself", hint=f"remove {name}")
        if not is_token(name) or _INVALID_VALUE.search(value):
            hint = "a name has letters, digits and -; a value is one line"
            raise ConfigError(f"{source}: invalid header name or value", hint=hint)
        made[lowered] = value.strip(" \t")
    return made
