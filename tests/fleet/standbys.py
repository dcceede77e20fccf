"""Database servers with an asynchronous standby that falls behind, and a way to them that can lead elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from typing import Literal, Self

from gossamer.testing.sqlservers import MariaServer, PostgresServer, SqlServer

_HOST = "127.0.0.1"
Mode = Literal["", "refuse", "hang up", "silent"]


class Switch:
    """A TCP proxy in a thread of its own: `lead` says where new connections go, `mode` what else becomes of them.

    `refuse`: nobody listens. `hang up`: connections are taken and ended. `silent`: they are taken, and nothing passes,
    neither on new ones nor on those that are open."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._mode: Mode = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._clear = asyncio.Event()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def lead(self, target: int, mode: Mode = "") -> None:
        """End all connections; new ones go to another port, or meet another fault."""
        self._do(self._lead(target, mode))

    def cut(self, mode: Mode) -> None:
        """Go on to the same port, with another fault. Only `silent` leaves connections open."""
        self._do(self._lead(self._target, mode))

    def _do(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)  # type: ignore[arg-type]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, _HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _lead(self, target: int, mode: Mode) -> None:
        was, self._target, self._mode = self._mode, target, mode
        if mode == "silent":
            self._clear.clear()
            return
        self._clear.set()
        for writer in list(self._open):
            writer.transport.abort()
        if mode == "refuse" and self._server is not None:
            self._server.close()
            self._server = None
        elif was == "refuse" and self._server is None:
            await self._listen()

    async def _end(self) -> None:
        await self._lead(self._target, "refuse")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        server: asyncio.StreamWriter | None = None
        try:
            if self._mode == "hang up":
                return
            if self._mode == "silent":
                await self._clear.wait()
                return
            answers, server = await asyncio.open_connection(_HOST, self._target)
            self._open.add(server)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, server))
                tasks.create_task(self._pass(answers, writer))
        except* (OSError, EOFError):
            pass
        finally:
            for one in (writer, server):
                if one is not None:
                    one.transport.abort()
                    self._open.discard(one)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            if self._mode == "silent":
                await self._clear.wait()
                raise EOFError
            sink.write(data)
            await sink.drain()
        raise EOFError


class Pair:
    """A primary and its asynchronous standby; workers come by `url`, which leads to whichever is the primary."""

    server: type[PostgresServer] | type[MariaServer]
    primary: SqlServer
    standby: SqlServer

    def __init__(self) -> None:
        self._replication: Switch | None = None

    def __enter__(self) -> Self:
        self._start()
        self.switch = Switch(self.primary.port).__enter__()
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
        """From now on the standby hears nothing of what the primary acknowledges."""
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
            self.switch.cut("refuse")
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
        self._replication = Switch(self.primary.port).__enter__()
        self.standby = _Copy(self.primary, self._replication.port).__enter__()
        _until_caught_up(lambda: bool(self.primary.ask("SELECT COUNT(*) FROM pg_stat_replication")[0][0]))

    def fall_behind(self) -> None:
        assert self._replication is not None
        self._replication.cut("refuse")

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
        options = {"log_bin": "binlog", "binlog_format": "ROW"}
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
