"""TLS with old servers: which work by default, which need `tls_min`, and the errors of the others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import warnings
from pathlib import Path

import pytest
import trustme

from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.errors import TlsRefused
from gossamer.model import Request, Response
from gossamer.settings import build

SUITES = [
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES256-SHA384",
    "ECDHE-RSA-AES128-SHA",
    "AES128-GCM-SHA256",
    "AES256-SHA256",
    "AES128-SHA",
]
"""By TLS 1.2: forward secrecy with AEAD, with CBC, and key exchange by RSA."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.RSA)


def fetched(authority: trustme.CA, folder: Path, context: ssl.SSLContext, **values: object) -> Response:
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert("old.test", key_type=trustme.KeyType.RSA).configure_cert(context)

    def serve(server: socket.socket) -> None:
        # asyncio's server would drop the connection before its alert has left.
        peer, _ = server.accept()
        try:
            with context.wrap_socket(peer, server_side=True) as secure:
                secure.recv(65536)
                secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        except OSError:
            # Until the client has read the alert, a reset would overtake it.
            peer.settimeout(5)
            with contextlib.suppress(OSError):
                peer.recv(65536)

    async def main(server: socket.socket) -> Response:
        settings = {"allow_private": True, "resolve": ["*.test=127.0.0.1"], "ca_file": str(folder / "ca.pem")}
        downloader = open_downloader(build({**settings, **values}), clock=SystemClock())
        try:
            url = f"https://old.test:{server.getsockname()[1]}/"
            return await downloader.fetch(Request(url=url, site="old.test"))
        finally:
            await downloader.aclose()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        return asyncio.run(main(server))


def server_of(version: ssl.TLSVersion, ciphers: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("suite", SUITES)
def test_openssl_default_tls_1_2_ciphers_are_supported(suite: str, authority: trustme.CA, tmp_path: Path) -> None:
    assert fetched(authority, tmp_path, server_of(ssl.TLSVersion.TLSv1_2, suite)).body == b"ok"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_tls_min_enables_old_versions(version: str, authority: trustme.CA, tmp_path: Path) -> None:
    number = {"1.0": ssl.TLSVersion.TLSv1, "1.1": ssl.TLSVersion.TLSv1_1}[version]
    with pytest.raises(TlsRefused) as refused:
        fetched(authority, tmp_path, server_of(number, "ALL"))
    assert "--tls-min" in refused.value.hint
    assert fetched(authority, tmp_path, server_of(number, "ALL"), tls_min=version).body == b"ok"
    sites = {"old.test": {"tls_min": version}}
    assert fetched(authority, tmp_path, server_of(number, "ALL"), sites=sites).body == b"ok"
    with pytest.raises(TlsRefused):
        fetched(authority, tmp_path, server_of(number, "ALL"), sites={"other.test": {"tls_min": version}})


def test_tls_min_may_require_a_newer_version(authority: trustme.CA, tmp_path: Path) -> None:
    old = server_of(ssl.TLSVersion.TLSv1_2, "ALL")
    with pytest.raises(TlsRefused):
        fetched(authority, tmp_path, old, tls_min="1.3")
    with pytest.raises(TlsRefused):
        fetched(authority, tmp_path, old, tls_min="1.0", sites={"old.test": {"tls_min": "1.3"}})
