"""Helpers for command tests: run commands, read a terminal, and serve a small site with hostile texts."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyte

EVIL = "\x1b]0;owned\x07\x1b[2J\r\nERROR fake [bold red]markup[/] \u202e"
SITE = {
    "/": (
        "text/html",
        "<title>Home</title><h1>Home</h1><a href=/a>a</a><a href=/b>b</a><a href=http://else.where/>x</a>",
    ),
    "/a": ("text/html", "<title>A</title><p class=quote>one</p><a href=/gone>gone</a><a href=/b>b</a>"),
    "/b": ("text/html", f"<title>{EVIL}</title><p>{EVIL}</p>"),
    "/old": ("redirect", "/a"),
    "/secret": ("text/html", "<title>Secret</title>"),
    "/data": ("application/octet-stream", "\0\1\2"),
    "/robots.txt": ("text/plain", "User-agent: *\nDisallow: /secret\nSitemap: http://else.where/map.xml\n"),
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, text = SITE.get(self.path, ("", ""))
        body = b"" if kind == "redirect" else text.encode("utf-8")
        self.send_response(302 if kind == "redirect" else 200 if kind else 404)
        if kind == "redirect":
            self.send_header("Location", text)
        elif kind:
            self.send_header("Content-Type", kind)
        self.send_header("X-Evil", "\x9b2J[bold]x")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def small_site() -> Iterator[str]:
    """The URL of SITE, without its trailing slash."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(**changes: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    return {**own, "TERM": "xterm-256color", **changes}


def gossamer(*arguments: str, cwd: Path, stdin: str = "", **changes: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *arguments],
        cwd=cwd,
        input=stdin.encode(),
        capture_output=True,
        timeout=60,
        check=False,
        env=environment(**changes),
    )


class Terminal:
    """A foreground command on its own terminal, as started by a shell."""

    def __init__(self, *arguments: str, cwd: Path, columns: int = 80, lines: int = 24, term: str = "") -> None:
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, lines, history=5000)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            self._resize(columns, lines, 0)
            os.execve(
                sys.executable,
                [sys.executable, "-m", "gossamer", *arguments],
                environment(TERM=term or "xterm-256color"),
            )
        self._resize(columns, lines, self._fd)

    def _resize(self, columns: int, lines: int, descriptor: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self._resize(columns, lines, self._fd)
        self.screen.resize(lines, columns)

    def type(self, data: bytes) -> None:
        os.write(self._fd, data)

    def read(self, seconds: float) -> bool:
        """Read pending output; False once the other side is closed."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def everything(self) -> list[str]:
        """All lines, including those scrolled off the screen."""
        gone = ["".join(row[column].data for column in range(self.screen.columns)) for row in self.screen.history.top]
        return [line.rstrip() for line in (*gone, *self.screen.display)]

    def until(self, condition: Callable[[list[str]], Any], seconds: float = 40.0) -> list[str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition(self.shown()):
                return self.shown()
            if not self.read(0.1):
                break
        raise AssertionError("it was never shown:\n" + "\n".join(self.everything()))

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for the exit code, and read all output."""
        end = time.monotonic() + seconds
        while self.read(0.1):
            if time.monotonic() > end:
                raise AssertionError("it did not end:\n" + "\n".join(self.everything()))
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def hang_up(self) -> None:
        """Close the terminal under the command."""
        os.close(self._fd)
        self._fd = -1

    def close(self) -> None:
        try:
            if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass
        if self._fd >= 0:
            os.close(self._fd)


@contextmanager
def on_terminal(*arguments: str, cwd: Path, columns: int = 80, lines: int = 24, term: str = "") -> Iterator[Terminal]:
    terminal = Terminal(*arguments, cwd=cwd, columns=columns, lines=lines, term=term)
    try:
        yield terminal
    finally:
        terminal.close()
