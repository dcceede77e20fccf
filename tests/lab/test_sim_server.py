from __future__ import annotations

import asyncio
import http.client
import signal
import socket
import ssl
import subprocess
import sys
from typing import Any

import pytest

from gossamer.errors import ConfigError
from gossamer.lab.simweb import log
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.server import SimConnection, SimServer
from gossamer.lab.simweb.site import WebPlan


class Stranger(asyncio.Transport):
    """A transport with settable addresses; a real one would need traffic beyond loopback."""

    def __init__(self, local: str, peer: str) -> None:
        super().__init__({"sockname": (local, 80), "peername": (peer, 4000)})
        self.aborted = False
        self.written = b""

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def writelines(self, parts: Any) -> None:
        self.written += b"".join(parts)


@pytest.mark.parametrize(
    ("local", "peer", "served"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.3.2.1", "127.0.0.1", True),
        ("192.168.1.5", "192.168.1.9", False),
        ("127.0.0.1", "10.0.0.1", False),
        ("10.0.0.1", "127.0.0.1", False),
        ("::1", "::1", False),
    ],
)
def test_only_loopback_is_served(local: str, peer: str, served: bool) -> None:
    async def ask() -> Stranger:
        stranger = Stranger(local, peer)
        connection = SimConnection(SimServer(WebPlan(port=80)), asyncio.get_running_loop())
        connection.connection_made(stranger)
        connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return stranger

    stranger = asyncio.run(ask())
    assert stranger.aborted != served
    assert stranger.written.startswith(b"HTTP/1.1 200") == served


def talk(web: SimWeb, data: bytes, *, host: str = "127.0.0.1") -> bytes:
    with socket.create_connection((host, web.plan.port), timeout=60) as plug:
        plug.sendall(data)
        found = b""
        while part := plug.recv(65_536):
            found += part
        return found


def test_requests_sent_ahead_are_answered_in_order() -> None:
    with (
        SimWeb(sites=1, pages_per_site=3, page_bytes=2000) as web,
        socket.create_connection(("127.0.0.1", web.plan.port), timeout=60) as plug,
    ):
        paths = [web.plan.path(0, page) for page in (1, 2, 0)]
        plug.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for path in paths))
        found = b""
        while found.count(b"</html>") < 3:
            found += plug.recv(65_536)
        assert found.count(b"HTTP/1.1 200 OK") == 3
        titles = [web.plan.title(0, page).replace("&", "&amp;").encode() for page in (1, 2, 0)]
        assert sorted(titles, key=lambda title: found.index(b"<title>%b</title>" % title)) == titles
        assert [entry.target for entry in web.log()] == paths


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/2\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 70_000, b"431"),
        (b"DELETE / HTTP/1.0\r\nHost: a\r\n\r\n", b"405"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
    ],
)
def test_bad_requests_are_refused_and_the_web_goes_on(data: bytes, status: bytes) -> None:
    with SimWeb(sites=1, pages_per_site=1, page_bytes=2000) as web:
        assert talk(web, data).split(b" ")[1] == status
        assert b" 200 OK" in talk(web, b"GET / HTTP/1.0\r\n\r\n")


def test_head_gives_the_headers_alone() -> None:
    with SimWeb(sites=1, pages_per_site=1, page_bytes=2000, links_per_page=5) as web:
        answer = talk(web, b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"Content-Length: 2000" in answer
        assert answer.endswith(b"\r\n\r\n")


def test_unknown_host_gets_an_error() -> None:
    with SimWeb(sites=1, pages_per_site=1, names=True) as web:
        answer = talk(web, b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 421")
        assert web.seeds[0].encode() in answer


def test_disconnected_client_is_logged_without_status() -> None:
    with SimWeb(sites=1, pages_per_site=1, page_bytes=20_000_000) as web:
        with socket.create_connection(("127.0.0.1", web.plan.port), timeout=60) as plug:
            plug.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert plug.recv(100).startswith(b"HTTP/1.1 200")
        assert b" 404 " in talk(web, b"GET /next HTTP/1.0\r\n\r\n")
        entries = {entry.target: entry.status for entry in web.log()}
        assert entries == {"/": 0, "/next": 404}


def test_times_in_the_log_are_in_order() -> None:
    with SimWeb(sites=1, pages_per_site=1, page_bytes=2000, latency_seconds=0.05) as web:
        talk(web, b"GET / HTTP/1.0\r\nUser-Agent: me/1 (+x)\r\n\r\n")
        (entry,) = web.log()
        assert entry.headers_at - entry.arrived_at >= 0.049
        assert entry.finished_at >= entry.headers_at
        assert (entry.method, entry.status, entry.agent, entry.url) == ("GET", 200, "me/1 (+x)", web.seeds[0])


def test_dark_site_resets_connections_until_it_is_lit() -> None:
    with SimWeb(sites=2, pages_per_site=1, page_bytes=2000) as web:
        request = b"GET / HTTP/1.0\r\n\r\n"
        web.darken(1)
        with pytest.raises(ConnectionResetError):
            talk(web, request, host=web.plan.host(1))
        assert b" 200 OK" in talk(web, request)
        web.lighten(1)
        assert b" 200 OK" in talk(web, request, host=web.plan.host(1))
        assert [entry.status for entry in web.log()] == [0, 200, 200]


@pytest.mark.parametrize("names", [True, False])
def test_tls_holds_for_every_host(names: bool) -> None:
    with SimWeb(sites=120, pages_per_site=1, page_bytes=40_000, tls=True, names=names) as web:
        trust = ssl.create_default_context(cafile=str(web.ca_file))
        for site in (0, 49, 50, 119):
            with (
                socket.create_connection(
                    ("127.0.0.1" if names else web.plan.host(site), web.plan.port), timeout=60
                ) as plug,
                trust.wrap_socket(plug, server_hostname=web.plan.host(site)) as secure,
            ):
                secure.sendall(f"GET / HTTP/1.0\r\nHost: {web.plan.host(site)}\r\n\r\n".encode())
                assert secure.makefile("rb").read().startswith(b"HTTP/1.1 200")
        assert log.fetched(web.log()) == {web.url(site): 1 for site in (0, 49, 50, 119)}


def test_port_in_use_is_an_error() -> None:
    with SimWeb(sites=1, pages_per_site=1) as web, pytest.raises(ConfigError, match=f"port {web.plan.port}"):
        SimWeb(web.plan).start()


def test_the_web_ends_with_the_process_that_started_it() -> None:
    script = (
        "import sys, signal; from gossamer.lab.simweb.process import SimWeb; web = SimWeb(sites=1); web.start(); "
        "print(web.plan.port, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert parent.stdout
    assert parent.stderr
    port = int(parent.stdout.readline())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    assert connection.getresponse().read()
    parent.send_signal(signal.SIGKILL)
    # The web holds the other end of this pipe, so its end is the end of the web.
    assert parent.stderr.read() == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    parent.wait()
    parent.stdout.close()
    parent.stderr.close()
    connection.close()
