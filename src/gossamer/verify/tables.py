"""One statement to a database, on a connection of its own."""

from __future__ import annotations

from typing import Any

from gossamer import dsn
from gossamer.errors import SinkError
from gossamer.extras import unusable


async def ask(url: str, statement: str) -> list[Any]:
    """The rows of an answer; the address is one of PostgreSQL or of MySQL, as sinks and frontiers have it."""
    try:
        if url.startswith(("postgresql://", "postgres://")):
            return await _ask_postgresql(url, statement)
        return await _ask_mysql(url, statement)
    except ImportError as missing:
        kind = "postgresql" if url.startswith("postgres") else "mysql"
        raise unusable(kind, "this database", missing) from missing


async def _ask_postgresql(url: str, statement: str) -> list[Any]:
    import asyncpg

    place, server = dsn.postgresql(url, of="the database")
    try:
        connection = await asyncpg.connect(**place, timeout=10.0)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise SinkError(f"{server}: {error}") from error


async def _ask_mysql(url: str, statement: str) -> list[Any]:
    import asyncmy
    from asyncmy import errors as faults

    place, server = dsn.mysql(url, of="the database")
    try:
        connection = await asyncmy.connect(**place, charset="utf8mb4", connect_timeout=10, autocommit=True)
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(statement)
                return list(await cursor.fetchall()) if cursor.description else []
        finally:
            await connection.ensure_closed()
    except faults.MySQLError as error:
        raise SinkError(f"{server}: {error}") from error
