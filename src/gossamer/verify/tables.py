"""One statement to a database, on a connection of its own."""

from __future__ import annotations

from typing import Any

from gossamer import addresses
from gossamer.errors import ConfigError


async def ask(url: str, statement: str) -> list[Any]:
    """The rows of an answer; the address is one of PostgreSQL or of MySQL, as sinks and frontiers have it."""
    try:
        if url.startswith(("postgresql://", "postgres://")):
            return await _ask_postgresql(url, statement)
        return await _ask_mysql(url, statement)
    except ImportError as missing:
        raise ConfigError(
            "the driver of this database is not installed", hint="pip install 'gossamer[postgresql,mysql]'"
        ) from missing


async def _ask_postgresql(url: str, statement: str) -> list[Any]:
    import asyncpg

    connection = await asyncpg.connect(**addresses.postgresql(url, of="the database")[0], timeout=10.0)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


async def _ask_mysql(url: str, statement: str) -> list[Any]:
    import asyncmy

    place, _ = addresses.mysql(url, of="the database")
    connection = await asyncmy.connect(**place, charset="utf8mb4", connect_timeout=10, autocommit=True)
    try:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall()) if cursor.description else []
    finally:
        await connection.ensure_closed()
