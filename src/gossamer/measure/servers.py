"""Scales for stores: how many bytes a server holds, and how much CPU it has used."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Protocol

from gossamer.verify.tables import ask

_POSTGRESQL_BYTES = (
    "SELECT SUM(pg_total_relation_size(c.oid)) FROM pg_class c"
    " WHERE c.relname LIKE 'gossamer\\_%' AND c.relkind = 'r' AND pg_table_is_visible(c.oid)"
)
_MYSQL_TABLES = ("seen", "queue", "done", "sites", "notes")
_MYSQL_BYTES = (
    "SELECT SUM(data_length + index_length) FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name LIKE 'gossamer\\_%'"
)


class Scales(Protocol):
    """One server."""

    async def weight(self) -> float:
        """Bytes that it holds of all jobs."""
        ...

    async def cpu_seconds(self) -> float | None:
        """CPU that it has used since it started; None if nobody can tell."""
        ...

    async def aclose(self) -> None: ...


def scales_of(url: str, pid: int = 0) -> Scales:
    """Scales for the server at this address; `pid` if it is a process of this machine."""
    if url.startswith("folder:"):
        return _Folder(Path(url.partition(":")[2].partition("?")[0]))
    if url.startswith(("postgresql://", "postgres://", "mysql://", "mariadb://")):
        return _Database(url, pid)
    return _Redis(url)


class _Redis:
    def __init__(self, url: str) -> None:
        from gossamer.frontier.redis_job import connect

        self._redis = connect(url)

    async def weight(self) -> float:
        return float((await self._redis.info("memory"))["used_memory"])

    async def cpu_seconds(self) -> float | None:
        used = await self._redis.info("cpu")
        return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])

    async def aclose(self) -> None:
        await self._redis.aclose()


class _Database:
    def __init__(self, url: str, pid: int) -> None:
        self._url = url
        self._pid = pid

    async def weight(self) -> float:
        if self._url.startswith("postgres"):
            rows = await ask(self._url, _POSTGRESQL_BYTES)
        else:
            # Without this the sizes are those of some time ago.
            await ask(self._url, f"ANALYZE TABLE {', '.join(f'gossamer_{name}' for name in _MYSQL_TABLES)}")
            rows = await ask(self._url, _MYSQL_BYTES)
        return float(rows[0][0] or 0)

    async def cpu_seconds(self) -> float | None:
        return cpu_of(self._pid) if self._pid and Path("/proc/self/stat").exists() else None

    async def aclose(self) -> None:
        pass


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def weight(self) -> float:
        return float(sum(path.stat().st_size for path in self._path.rglob("*") if path.is_file()))

    async def cpu_seconds(self) -> float | None:
        return 0.0

    async def aclose(self) -> None:
        pass


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of its children, those that have ended too."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parts[2]) == pid:
            total += sum(map(int, fields[11:15]))
        elif int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def resident_bytes() -> float:
    """Memory of this process: that of the embedded frontier is in it."""
    if sys.platform == "linux":
        return float(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
