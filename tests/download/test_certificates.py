"""TLS certificates: client certificates are sent only to their sites, invalid ones are refused or recorded."""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.download.base import Downloader
from gossamer.errors import ConfigError, ConnectFailed, TlsRefused
from gossamer.jobs.local_run import LocalRun
from gossamer.model import Request
from gossamer.settings import build

KINDS = pytest.mark.parametrize("kind", ["async", "threads"])


class Web:
    """Returns the client certificate's name; stores the heads of requests."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self.heads: list[str] = []
        self.port = 0

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            shown = writer.get_extra_info("peercert")
            body = b"%d" % bool(shown)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nSet-Cookie: a=1\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def run(test: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            await test(stack)

    asyncio.run(main())


async def downloader(stack: AsyncExitStack, **values: Any) -> Downloader:
    common = {"allow_private": True, "resolve": ["*.test=127.0.0.1"]}
    made = open_downloader(build({**common, **values}), clock=SystemClock())
    stack.push_async_callback(made.aclose)
    return made


def context(authority: trustme.CA, *names: str, **more: Any) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **more).configure_cert(made)
    return made


@KINDS
def test_client_certificate_is_sent_to_its_site_only(kind: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("me@client.test").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "me.pem"))
    asking = context(authority, "in.test", "other.test")
    asking.verify_mode = ssl.CERT_OPTIONAL
    authority.configure_trust(asking)

    async def test(stack: AsyncExitStack) -> None:
        web = await stack.enter_async_context(Web(asking))
        common = {"downloader": kind, "ca_file": str(tmp_path / "ca.pem")}
        own = {f"in.test:{web.port}": {"client_cert": str(tmp_path / "me.pem")}}
        for values, found in (
            ({}, ["0", "0"]),
            ({"sites": own}, ["1", "0"]),
            ({"client_cert": str(tmp_path / "me.pem")}, ["1", "1"]),
        ):
            fetcher = await downloader(stack, **common, **values)
            answers = [await fetcher.fetch(Request(url=f"https://{host}.test:{web.port}/")) for host in ("in", "other")]
            assert [answer.body.decode() for answer in answers] == found

    run(test)


def test_invalid_certificate_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    for path in (tmp_path / "bad.pem", tmp_path / "none.pem"):
        for values in ({"client_cert": str(path)}, {"sites": {"a.test": {"client_cert": str(path)}}}):
            with pytest.raises(ConfigError, match="client_cert"):
                open_downloader(build(values), clock=SystemClock())


@KINDS
def test_invalid_certificates_are_recorded_and_get_no_secrets(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H28: off by default; a server without a valid certificate gets no credentials."""
    authority, yesterday = trustme.CA(), datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("TOKEN", "t0ken")
    cases = {
        "expired": context(authority, "bad.test", not_after=yesterday),
        "not valid for": context(authority, "wrong.test"),
        "issuer": context(trustme.CA(), "bad.test"),
    }

    async def test(stack: AsyncExitStack) -> None:
        good = await stack.enter_async_context(Web(context(authority, "good.test")))
        for said, tls in cases.items():
            web = await stack.enter_async_context(Web(tls))
            url = f"https://bad.test:{web.port}/"
            secret = {"auth": "me:${TOKEN}", "headers": {"X-Key": "${TOKEN}", "X-Plain": "yes"}}
            common = {
                "downloader": kind,
                "ca_file": str(tmp_path / "ca.pem"),
                "headers": {"Cookie": "t0ken"},
                "sites": {f"bad.test:{web.port}": secret},
            }
            strict = await downloader(stack, **common)
            with pytest.raises(TlsRefused):
                await strict.fetch(Request(url=url))
            lax = await downloader(stack, **common, bad_tls="record")
            for _ in range(2):
                answer = await lax.fetch(Request(url=url, headers={"Authorization": "t0ken", "x-own": "yes"}))
                assert answer.status == 200
                assert said in answer.tls_fault.lower()
            assert len(web.heads) == 2
            assert not [head for head in web.heads if "t0ken" in head or "bWU6dDBrZW4=" in head]
            assert all("x-plain: yes" in head.lower() and "x-own: yes" in head.lower() for head in web.heads)
            with pytest.raises(TlsRefused):
                await lax.fetch(Request(url=url, method="POST", body=b"t0ken"))
            trusted = await lax.fetch(Request(url=f"https://good.test:{good.port}/"))
            assert (trusted.tls_fault, trusted.status) == ("", 200)
            assert "t0ken" in good.heads[-1]

    run(test)


def test_page_record_has_the_certificate_fault(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    async def test(stack: AsyncExitStack) -> None:
        good = await stack.enter_async_context(Web(context(authority, "good.test")))
        bad = await stack.enter_async_context(Web(context(authority, "wrong.test")))
        values = {"allow_private": True, "resolve": ["*.test=127.0.0.1"], "robots": False, "cookies": True, "tries": 1}
        settings = build({**values, "ca_file": str(tmp_path / "ca.pem"), "bad_tls": "record", "delay": 0})
        seeds = [f"https://good.test:{good.port}/", f"https://bad.test:{bad.port}/", f"https://bad.test:{bad.port}/2"]
        summary = await LocalRun(tmp_path / "job", settings, seeds).run()
        assert (summary.counts.done, summary.counts.failed) == (3, 0)
        assert not [head for head in bad.heads if "cookie" in head.lower()]

    run(test)
    rows = [json.loads(line) for line in (tmp_path / "job" / "pages.jsonl").read_text().splitlines()]
    stamped = {row["url"].split("/")[2].split(":")[0]: "not valid for" in row.get("tls_fault", "") for row in rows}
    assert stamped == {"good.test": False, "bad.test": True}
    assert "tls_fault" not in next(row for row in rows if "good.test" in row["url"])


def _shake_hands(server: socket.socket, tls: ssl.SSLContext, times: int) -> None:
    """A server by blocking sockets: asyncio's drops the connection before the alert has left."""
    for _ in range(times):
        with tls.wrap_socket(server.accept()[0], server_side=True, do_handshake_on_connect=False) as peer:
            with pytest.raises(ssl.SSLError):
                peer.do_handshake()
            while socket.socket.recv(peer, 65536):
                pass


@KINDS
def test_missing_client_certificate_is_a_final_error(kind: str, tmp_path: Path) -> None:
    """With TLS 1.3 the alert comes after the handshake; it is a final error, not a connection fault."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    demanding = context(authority, "in.test")
    demanding.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(demanding)

    async def test(stack: AsyncExitStack) -> None:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        threading.Thread(target=_shake_hands, args=(server, demanding, 2), daemon=True).start()
        for bad_tls in ("refuse", "record"):
            values = {"downloader": kind, "ca_file": str(tmp_path / "ca.pem"), "bad_tls": bad_tls}
            fetcher = await downloader(stack, **values)
            with pytest.raises(TlsRefused) as refused:
                await fetcher.fetch(Request(url=f"https://in.test:{port}/"))
            assert "--client-cert" in refused.value.hint

    run(test)


@KINDS
def test_connection_closed_in_tls_handshake_is_retried_with_a_hint(kind: str) -> None:
    def hang_up(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            # Of the handshake no more than its first message: reading all of it leaves no reason for a reset.
            peer.recv(65536)

    async def test(stack: AsyncExitStack) -> None:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=hang_up, args=(server,), daemon=True).start()
        fetcher = await downloader(stack, downloader=kind)
        with pytest.raises(ConnectFailed) as failed:
            await fetcher.fetch(Request(url=f"https://in.test:{server.getsockname()[1]}/"))
        assert "--client-cert" in failed.value.hint
        assert "http" not in str(failed.value)

    run(test)
