"""Database servers with an asynchronous standby that lags, and an address that can fail over to it."""

from __future__ import annotations

import shutil
import time
from typing import Any, Self

from gossamer.testing.network import FaultyProxy
from gossamer.testing.servers import MariaServer, PostgresServer, SqlServer

_HOST = "127.0.0.1"


class Pair:
    """A primary and its asynchronous standby; workers come by `url`, which leads to whichever is the primary."""

    server: type[PostgresServer] | type[MariaServer]
    primary: SqlServer
    standby: SqlServer

    def __init__(self) -> None:
        self._replication: FaultyProxy | None = None

    def __enter__(self) -> Self:
        self._start()
        self.switch = FaultyProxy(self.primary.port).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.switch.__exit__()
        for server in (self.standby, self.primary):
            server.__exit__()
        if self._replication is not None:
            self._replication.__exit__()

    @property
    def url(self) -> str:
        """Where the workers go."""
        return self.primary.url_at(self.switch.port)

    def _start(self) -> None:
        raise NotImplementedError

    def fall_behind(self) -> None:
        """From now on the standby receives nothing that the primary acknowledges."""
        raise NotImplementedError

    def promote(self) -> None:
        """Have the standby take writes."""
        raise NotImplementedError

    def fail_over(self, seconds: float, *, at_once: bool = False) -> None:
        """A standby that lacks the last seconds takes the place of the primary, which is killed.

        `at_once`, so that workers find a server whenever they look; else there is none for a while."""
        self.fall_behind()
        time.sleep(seconds)
        if at_once:
            self.promote()
            self.switch.lead(self.standby.port)
            self.primary.kill()
        else:
            self.primary.kill()
            self.switch.fail("refuse")
            self.promote()
            self.switch.lead(self.standby.port)


class PostgresPair(Pair):
    """PostgreSQL with a physical standby."""

    server = PostgresServer

    def _start(self) -> None:
        self.primary = PostgresServer(
            in_memory=True, wal_level="replica", max_wal_senders="4", hot_standby="on"
        ).__enter__()
        rules = self.primary.data / "pg_hba.conf"
        rules.write_text(f"host replication all {_HOST}/32 trust\n" + rules.read_text())
        self.primary.ask("SELECT pg_reload_conf()")
        self._replication = FaultyProxy(self.primary.port).__enter__()
        self.standby = _Copy(self.primary, self._replication.port).__enter__()
        _until_caught_up(lambda: bool(self.primary.ask("SELECT COUNT(*) FROM pg_stat_replication")[0][0]))

    def fall_behind(self) -> None:
        assert self._replication is not None
        self._replication.fail("refuse")

    def promote(self) -> None:
        program = self.standby._program("psql")  # type: ignore[attr-defined]
        self.standby.run(
            program, "-qXh", str(self.standby.folder), "-p", str(self.standby.port), "-U", "postgres", "-d", "gossamer",
            "-c", "SELECT pg_promote(true, 60)",
        )  # fmt: skip


class _Copy(PostgresServer):
    """A standby that is made from a running primary."""

    def __init__(self, primary: PostgresServer, port: int) -> None:
        super().__init__(in_memory=True, hot_standby="on", wal_retrieve_retry_interval="200ms")
        self._primary_port = port

    def _make(self) -> None:
        self.run(
            self._program("pg_basebackup"), "-h", _HOST, "-p", str(self._primary_port), "-U", self.user, "-D",
            str(self.data), "-R", "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip

    def _make_database(self) -> None:
        """It is there."""


class MariaPair(Pair):
    """MariaDB with an asynchronous replica."""

    server = MariaServer

    def _start(self) -> None:
        options: dict[str, Any] = {"log_bin": "binlog", "binlog_format": "ROW"}
        self.primary = MariaServer(in_memory=True, server_id="1", **options).__enter__()
        self.standby = MariaServer(
            in_memory=True, server_id="2", log_slave_updates="ON", read_only="ON", replicate_do_db="gossamer", **options
        ).__enter__()
        self._as_root(
            f"CHANGE MASTER TO MASTER_HOST='{_HOST}', MASTER_PORT={self.primary.port}, MASTER_USER='gossamer',"
            " MASTER_USE_GTID=slave_pos; START SLAVE"
        )

    def _as_root(self, text: str) -> None:
        self.standby.run("mariadb", "--no-defaults", f"--socket={self.standby.folder}/socket", "-u", "root", "-e", text)

    def fall_behind(self) -> None:
        self._as_root("STOP SLAVE IO_THREAD")

    def promote(self) -> None:
        # What it has received it applies first.
        self._as_root("STOP SLAVE SQL_THREAD; START SLAVE SQL_THREAD")
        time.sleep(0.5)
        self._as_root("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF")


def _until_caught_up(is_so: object, seconds: float = 20.0) -> None:
    ends_at = time.monotonic() + seconds
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < ends_at, "the standby does not follow"
        time.sleep(0.1)


class Rewound:
    """A server whose data are set back to what they were a moment before: no standby is needed to forget."""

    def __init__(self, server: SqlServer) -> None:
        self._server = server
        self._kept = server.folder / "kept"

    def keep(self) -> None:
        """Remember the data as they are at this moment: the server stands still meanwhile."""
        self._server.pause()
        try:
            shutil.rmtree(self._kept, ignore_errors=True)
            self._server.run("cp", "-a", str(self._server.data), str(self._kept))
        finally:
            self._server.resume()

    def forget(self) -> None:
        """kill -9, and start with the data that were kept: all that was acknowledged since then is gone."""
        self._server.kill()
        shutil.rmtree(self._server.data)
        self._kept.rename(self._server.data)
        (self._server.data / "postmaster.pid").unlink(missing_ok=True)
        self._server.start()
