"""Certificates: ours, for the sites that ask for one, and theirs, where a crawl is to record even the bad ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import msgspec
from pyreqwest.client import ClientBuilder

from gossamer.clock import Clock
from gossamer.download.base import Downloader, Locates
from gossamer.errors import BadCertificate, ConfigError
from gossamer.model import Request, Response
from gossamer.redact import CREDENTIALS
from gossamer.settings import Settings
from gossamer.urls import host_port, origin

REMEMBERED_SECONDS = 600.0
MAX_REMEMBERED = 4096


def read_identity(client_cert: str) -> bytes:
    """A PEM file with a certificate and its key; empty for none, ConfigError if it is not usable."""
    if not client_cert:
        return b""
    try:
        found = Path(client_cert).expanduser().read_bytes()
    except OSError as error:
        hint = "name a PEM file that can be read"
        raise ConfigError(f"client_cert: {client_cert}: {error.strerror}", hint=hint) from None
    try:
        ClientBuilder().identity_pem(found).build()
    except Exception:  # whatever the library raises, the file is what is wrong
        hint = "a PEM file with the certificate, those of its issuers, and the key without a password"
        raise ConfigError(f"client_cert: {client_cert}: no certificate with its key in it", hint=hint) from None
    return found


def without_credentials(settings: Settings) -> Settings:
    """The settings for servers that could not prove who they are: nothing secret goes to them."""
    sites = {
        site: msgspec.structs.replace(own, headers=_public(own.headers), auth="", client_cert="")
        for site, own in settings.sites.items()
    }
    return msgspec.structs.replace(settings, headers=_public(settings.headers), sites=sites, secrets=(), client_cert="")


class SiteDownloaders:
    """Sends the requests of some sites by a downloader of their own: it alone has the certificate meant for them."""

    def __init__(self, common: Downloader, own: Mapping[str, Downloader]) -> None:
        self._common, self._own = common, own

    async def fetch(self, request: Request) -> Response:
        """Fetch as the site's own downloader, or that of all others, does."""
        return await self._own.get(request.site or host_port(request.url), self._common).fetch(request)

    async def address_of(self, request: Request) -> str:
        """Where the request will go, whoever sends it."""
        return await self._common.address_of(request) if isinstance(self._common, Locates) else ""

    async def aclose(self) -> None:
        """Close all of them."""
        for downloader in (self._common, *self._own.values()):
            await downloader.aclose()


class RecordingDownloader:
    """Fetches strictly; where the certificate is bad, once more without looking at it, and says so in the answer.

    Such a server may be anybody: it gets no credentials, and nothing is posted to it."""

    def __init__(self, strict: Downloader, lax: Downloader, clock: Clock) -> None:
        self._strict, self._lax, self._clock = strict, lax, clock
        self._bad: OrderedDict[str, tuple[float, str]] = OrderedDict()

    async def fetch(self, request: Request) -> Response:
        """The answer, with `tls_fault` set where it came from a server with a bad certificate."""
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
        headers = _public(request.headers or {}) or None
        response = await self._lax.fetch(msgspec.structs.replace(request, headers=headers, body=b""))
        return msgspec.structs.replace(response, tls_fault=fault)

    def _remember(self, home: str, fault: str) -> None:
        self._bad[home] = (self._clock.monotonic() + REMEMBERED_SECONDS, fault)
        self._bad.move_to_end(home)
        while len(self._bad) > MAX_REMEMBERED:
            self._bad.popitem(last=False)

    async def address_of(self, request: Request) -> str:
        """Where the request will go."""
        return await self._strict.address_of(request) if isinstance(self._strict, Locates) else ""

    async def aclose(self) -> None:
        """Close both."""
        await self._strict.aclose()
        await self._lax.aclose()


def _public(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in CREDENTIALS and "${" not in value}
