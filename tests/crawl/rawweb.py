"""A web server on loopback that answers with arbitrary bytes, and records every request."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self

Answer = bytes | Callable[["Asked"], bytes]


class Asked(NamedTuple):
    """One request, as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.headers.get('host', '')}{self.target}"


def reply(body: str | bytes = "", *, status: str = "200 OK", headers: Iterable[str] = ()) -> bytes:
    """A whole answer with a page, or whatever the headers make of it."""
    content = body.encode() if isinstance(body, str) else body
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(content)}",
        "Content-Type: text/html; charset=utf-8",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def page(*hrefs: str, title: str = "") -> bytes:
    """An HTML page with links."""
    return reply(f"<title>{title}</title>" + "".join(f'<a href="{href}">x</a>' for href in hrefs))


def redirect(location: str, *headers: str, status: str = "302 Found") -> bytes:
    """A redirect; the location goes out as it is."""
    return reply(status=status, headers=(f"Location: {location}", *headers))


class RawWeb:
    """Serves `answers` by path, or by host and path, while the block lasts; what nobody gave is a 404."""

    def __init__(self, *, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, Answer] = {}
        self.log: list[Asked] = []
        web = self

        class Conversation(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    while (asked := self._read()) is not None:
                        web.log.append(asked)
                        host = asked.headers.get("host", "")
                        answer = web.answers.get(host + asked.target) or web.answers.get(asked.target)
                        answer = answer or reply("no such page", status="404 Not Found")
                        sent = answer(asked) if callable(answer) else answer
                        self.wfile.write(sent)
                        if b"Connection: close\r\n" in sent:
                            return
                except (OSError, ValueError):
                    pass

            def _read(self) -> Asked | None:
                first = self.rfile.readline().decode("latin-1").split(" ")
                if len(first) != 3:
                    return None
                headers = {}
                while (line := self.rfile.readline().decode("latin-1").strip()) != "":
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = self.rfile.read(int(headers.get("content-length", 0)))
                return Asked(first[0], first[1], headers, body, web.port)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

            def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
                connection, peer = super().get_request()
                connection.settimeout(20)
                return (tls.wrap_socket(connection, server_side=True) if tls else connection), peer

            def handle_error(self, request: object, client_address: object) -> None: ...

        self._server = Server((address, 0), Conversation)
        self.port = self._server.server_address[1]
        self.site = f"{address}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, path: str = "/", *, scheme: str = "http") -> str:
        return f"{scheme}://{self.site}{path}"

    def targets(self) -> list[str]:
        """The paths that were asked for, robots.txt aside, in order."""
        return [asked.target for asked in self.log if asked.target != "/robots.txt"]
