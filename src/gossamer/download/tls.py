"""TLS of the asynchronous client: versions, ciphers, client certificates, and the meaning of failed handshakes."""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import msgspec
from pyreqwest.client import ClientBuilder

from gossamer.clock import Clock
from gossamer.download.base import AddressLookup, Downloader
from gossamer.download.headers import read_authorities
from gossamer.errors import BadCertificate, ConfigError, ConnectFailed, FetchError, TlsRefused
from gossamer.model import Request, Response
from gossamer.redact import CREDENTIALS
from gossamer.settings import Settings
from gossamer.urls import host_port, origin

VERSIONS = {
    "1.0": ssl.TLSVersion.TLSv1,
    "1.1": ssl.TLSVersion.TLSv1_1,
    "1.2": ssl.TLSVersion.TLSv1_2,
    "1.3": ssl.TLSVersion.TLSv1_3,
}
# OpenSSL's default, which is wider than Python's: with CBC and RSA key exchange, like curl.
_CIPHERS = "DEFAULT:!aNULL:!eNULL"
_OLD_CIPHERS = "ALL:!aNULL:!eNULL:@SECLEVEL=0"
_LEGACY_SERVER_CONNECT = 0x4
_NOT_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"))
_TOO_OLD = frozenset(
    (
        *("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "SSLV3_ALERT_HANDSHAKE_FAILURE"),
        *("TLSV1_ALERT_INSUFFICIENT_SECURITY", "DH_KEY_TOO_SMALL", "EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"),
        *("UNSAFE_LEGACY_RENEGOTIATION_DISABLED", "WRONG_SIGNATURE_TYPE", "LEGACY_SIGALG_DISALLOWED_OR_UNSUPPORTED"),
        *("WRONG_CIPHER_RETURNED", "NO_PROTOCOLS_AVAILABLE", "BAD_SIGNATURE", "VERSION_TOO_LOW"),
    )
)
_OUR_CERTIFICATE = frozenset(
    (
        *("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"),
        *("SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED", "TLSV1_ALERT_ACCESS_DENIED"),
        *("SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_NO_CERTIFICATE"),
    )
)
"""Alerts about our client certificate, or that none was sent; with TLS 1.3 they arrive after the handshake."""
END_HINT = "it may be overloaded, support old TLS only (--tls-min 1.0), or require a certificate: --client-cert FILE"


class Contexts:
    """The SSL contexts of a job, each built once: loading all authorities takes tens of milliseconds."""

    def __init__(self, settings: Settings, *, accepts_any_certificate: bool = False) -> None:
        self._settings, self._accepts_any_certificate = settings, accepts_any_certificate
        self._own = {site: own.tls_min for site, own in settings.sites.items() if own.tls_min}
        read_authorities(settings.ca_file)
        self._built: dict[str, ssl.SSLContext] = {}

    def of_site(self, site: str) -> ssl.SSLContext:
        """Return the context for a site, with its own `tls_min` if it has one."""
        lowest = self._own.get(site, self._settings.tls_min) if self._own else self._settings.tls_min
        found = self._built.get(lowest)
        if found is None:
            found = self._built[lowest] = self._build(lowest)
        return found

    def of_proxies(self) -> ssl.SSLContext:
        """Return the context for proxies that use TLS."""
        return self.of_site("")

    def _build(self, lowest: str) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        is_old = lowest in ("1.0", "1.1")
        context.set_ciphers(_OLD_CIPHERS if is_old else _CIPHERS)
        if is_old:
            context.options |= _LEGACY_SERVER_CONNECT
        context.minimum_version = VERSIONS[lowest]
        context.set_alpn_protocols(["http/1.1"])
        if self._accepts_any_certificate:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context.load_default_certs()
        if settings.ca_file:
            context.load_verify_locations(Path(settings.ca_file).expanduser())
        if settings.client_cert:
            context.load_cert_chain(Path(settings.client_cert).expanduser(), password=_no_password)
        return context


def check_identity(client_cert: str) -> None:
    """Raise ConfigError unless the file is PEM with a certificate and its key."""
    if not client_cert:
        return
    path = Path(client_cert).expanduser()
    try:
        path.read_bytes()
    except OSError as error:
        hint = "name a readable PEM file"
        raise ConfigError(f"client_cert: {client_cert}: {error.strerror}", hint=hint) from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, password=_no_password)
    except (OSError, ValueError):  # ssl.SSLError is one
        hint = "use a PEM file with the certificate, its issuers, and the key without a password"
        raise ConfigError(f"client_cert: {client_cert}: no certificate with its key in the file", hint=hint) from None


def translate_tls(error: ssl.SSLError, where: str) -> FetchError:
    """Return the FetchError for a failed handshake or an alert, by OpenSSL's reason code."""
    reason = error.reason or ""
    message = f"{where}: {reason.replace('_', ' ').lower() or error}" if where else reason.replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return BadCertificate(f"{where}: invalid peer certificate: {error.verify_message}")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ConnectFailed(f"{where}: closed the connection during the TLS handshake", hint=END_HINT)
    if reason in _NOT_TLS:
        return TlsRefused(message, hint="the port does not use TLS: try http://")
    if reason in _OUR_CERTIFICATE:
        return TlsRefused(message, hint="the server requires a client certificate: --client-cert FILE")
    if reason in _TOO_OLD:
        return TlsRefused(message, hint='if it supports old TLS only: --tls-min 1.0, or tls_min = "1.0" for its site')
    return TlsRefused(message)


def _no_password() -> str:
    return ""


FAULT_MEMORY_SECONDS = 600.0
MAX_FAULTS = 4096


def read_identity(client_cert: str) -> bytes:
    """Read a PEM file with a certificate and its key; empty for none, ConfigError if it is unusable."""
    if not client_cert:
        return b""
    try:
        found = Path(client_cert).expanduser().read_bytes()
    except OSError as error:
        hint = "name a readable PEM file"
        raise ConfigError(f"client_cert: {client_cert}: {error.strerror}", hint=hint) from None
    try:
        ClientBuilder().identity_pem(found).build()
    except Exception:  # whatever the library raises, the file is what is wrong
        hint = "use a PEM file with the certificate, its issuers, and the key without a password"
        raise ConfigError(f"client_cert: {client_cert}: no certificate with its key in the file", hint=hint) from None
    return found


def without_credentials(settings: Settings) -> Settings:
    """Return the settings without credentials, for servers that could not prove their identity."""
    sites = {
        site: msgspec.structs.replace(own, headers=_without_credentials(own.headers), auth="", client_cert="")
        for site, own in settings.sites.items()
    }
    return msgspec.structs.replace(
        settings, headers=_without_credentials(settings.headers), sites=sites, secrets=(), client_cert=""
    )


class SiteDownloaders:
    """Sends the requests of some sites through their own downloader, which alone has the site's client certificate."""

    def __init__(self, common: Downloader, own: Mapping[str, Downloader]) -> None:
        self._common, self._own = common, own

    async def fetch(self, request: Request) -> Response:
        """Fetch with the site's own downloader, or else with the common one."""
        return await self._own.get(request.site or host_port(request.url), self._common).fetch(request)

    async def address_of(self, request: Request) -> str:
        """Return the address that the request will connect to."""
        return await self._common.address_of(request) if isinstance(self._common, AddressLookup) else ""

    async def aclose(self) -> None:
        """Close all downloaders."""
        for downloader in (self._common, *self._own.values()):
            await downloader.aclose()


class RecordingDownloader:
    """Verifies certificates; where one is invalid, fetches again without verification and records that in the response.

    A server without a valid certificate may be anyone: it gets no credentials, and nothing is posted to it."""

    def __init__(self, strict: Downloader, lax: Downloader, clock: Clock) -> None:
        self._strict, self._lax, self._clock = strict, lax, clock
        self._bad: OrderedDict[str, tuple[float, str]] = OrderedDict()

    async def fetch(self, request: Request) -> Response:
        """Return the response, with `tls_fault` set if the server's certificate is invalid."""
        home = origin(request.url)
        may_repeat = request.method in ("GET", "HEAD")
        until, fault = self._bad.get(home, (0.0, ""))
        if until < self._clock.monotonic() or not may_repeat:
            try:
                return await self._strict.fetch(request)
            except BadCertificate as error:
                if not may_repeat:
                    raise
                fault = str(error)
                self._remember(home, fault)
        headers = _without_credentials(request.headers or {}) or None
        response = await self._lax.fetch(msgspec.structs.replace(request, headers=headers, body=b""))
        return msgspec.structs.replace(response, tls_fault=fault)

    def _remember(self, home: str, fault: str) -> None:
        self._bad[home] = (self._clock.monotonic() + FAULT_MEMORY_SECONDS, fault)
        self._bad.move_to_end(home)
        while len(self._bad) > MAX_FAULTS:
            self._bad.popitem(last=False)

    async def address_of(self, request: Request) -> str:
        """Return the address that the request will connect to."""
        return await self._strict.address_of(request) if isinstance(self._strict, AddressLookup) else ""

    async def aclose(self) -> None:
        """Close both."""
        await self._strict.aclose()
        await self._lax.aclose()


def _without_credentials(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in CREDENTIALS and "${" not in value}
