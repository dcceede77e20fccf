"""Real database servers for tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from gossamer.engine.supervision import dies_with_us
from gossamer.errors import ConfigError
from gossamer.frontier.sql.database import Database
from gossamer.frontier.sql.record import dialect_of
from gossamer.testing.folder import MEMORY
from gossamer.testing.servers import free_port

_HOST = "127.0.0.1"
_DATABASE_START_SECONDS = 60.0
_ROOMY_BYTES = 4 * 2**30
_USER = "nobody"
TABLES = (
    "jobs", "shards", "counters", "sites", "notes", "leases", "seen", "queue", "done", "workers", "inbox", "boxes",
    "parcels",
)  # fmt: skip


class SqlServer:
    """A database server of its own, on a free port of the loopback and a socket; it dies with whoever started it.

    Options are those of the server's configuration file. The data lie in a folder that goes away at the end of the
    block, not with `kill`; `folder` may name another one, which stays. `in_memory` they are where no commit waits for a
    disk, if there is room for them."""

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
        """Where the server keeps its tables."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """The server's address, as a frontier takes it."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The address of a proxy before this server."""
        return f"{self.scheme}://{self.user}@{_HOST}:{port}/gossamer"

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        if os.geteuid() == 0:
            # These servers refuse to run as root.
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
        """Start it, on the port that it had before if it had one, and wait until it takes connections."""
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
        """Run a program of the server's and wait for it."""
        done = subprocess.run(words, capture_output=True, cwd=self.folder, check=False, **_as_nobody())
        if done.returncode:
            said = (done.stderr or done.stdout).decode("utf-8", "replace")[-800:]
            raise ConfigError(f"{words[0]} failed", hint=said)

    def revive(self) -> None:
        """Start it again if it has died by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGINT if self.scheme == "postgresql" else signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, of all its processes."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        # PostgreSQL's own children make themselves leaders of their groups.
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
        """kill -9, then start again with the data that it left."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing is answered."""
        for pid in (self.pid, *_children_of(self.pid)):
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        for pid in (self.pid, *_children_of(self.pid)):
            _signal(pid, signal.SIGCONT)

    def ask(self, text: str, *given: Any) -> list[Any]:
        """Run one statement as the tests' own client."""

        async def run() -> list[Any]:
            database = Database(dialect_of(self.url))
            try:
                return await database.run(lambda db: db.ask(text, *given), whole=False)
            finally:
                await database.aclose()

        return asyncio.run(run())


class PostgresServer(SqlServer):
    """PostgreSQL."""

    scheme = "postgresql"
    user = "postgres"

    @staticmethod
    def programs() -> Path | None:
        """The folder of the newest PostgreSQL that is installed."""
        if found := shutil.which("initdb"):
            return Path(found).resolve().parent
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        return versions[-1].parent if versions else None

    @classmethod
    def is_there(cls) -> bool:
        """Whether the programs are installed."""
        return cls.programs() is not None

    def _program(self, name: str) -> str:
        folder = self.programs()
        if folder is None:
            raise ConfigError("PostgreSQL is not installed", hint="scripts/services installs it")
        return str(folder / name)

    @property
    def socket_url(self) -> str:
        """The same server by its unix socket."""
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
        """Whether the programs are installed."""
        return _which("mariadbd") is not None and _which("mariadb-install-db") is not None

    @property
    def socket_url(self) -> str:
        """The same server by its unix socket."""
        return f"mysql://{self.user}@/gossamer?socket={self.folder}/socket"

    def _make(self) -> None:
        if not self.is_there():
            raise ConfigError("mariadbd is not installed", hint="scripts/services installs it")
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
