"""Addresses of servers: what the drivers of databases take, and how a server is called where others may read it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gossamer.errors import ConfigError


def postgresql(url: str, *, of: str = "the frontier") -> tuple[dict[str, Any], str]:
    """What asyncpg takes, and the server's name without a password."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        host: str | None = options.pop("host", "") or unquote(parts.hostname or "") or None
        port = int(options.pop("port", 0)) or parts.port
        sslmode = options.pop("sslmode", "")
    except ValueError:
        # Said without its words: they may hold a piece of the password.
        raise ConfigError(
            f"{of}'s address is not one that PostgreSQL has",
            hint="write postgresql://user:password@host:port/database, with %2F for a / in the password",
        ) from None
    _refuse(options, "host, port and sslmode are", of)
    found: dict[str, Any] = {"database": unquote(parts.path.lstrip("/")) or None}
    if host:
        found["host"] = host
    if port:
        found["port"] = port
    if parts.username:
        found["user"] = unquote(parts.username)
    if parts.password:
        found["password"] = unquote(parts.password)
    if sslmode:
        found["ssl"] = sslmode
    return found, f"postgresql://{host or 'localhost'}{f':{port}' if port else ''}/{found['database'] or ''}"


def mysql(url: str, *, of: str = "the frontier") -> tuple[dict[str, Any], str]:
    """What asyncmy takes, and the server's name without a password."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        socket = options.pop("socket", "") or options.pop("unix_socket", "")
        port = parts.port or 3306
        host = unquote(parts.hostname or "") or "localhost"
        tls = options.pop("ssl", "")
    except ValueError:
        # Said without its words: they may hold a piece of the password.
        raise ConfigError(
            f"{of}'s address is not one that MySQL has",
            hint="write mysql://user:password@host:port/database, with %2F for a / in the password",
        ) from None
    _refuse(options, "socket and ssl are", of)
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise ConfigError(f"{of}'s address names no database", hint="write mysql://user:password@host/database")
    found: dict[str, Any] = {"database": database, "user": unquote(parts.username or "") or None}
    if parts.password:
        found["password"] = unquote(parts.password)
    if tls:
        found["ssl"] = {"ca": tls} if tls not in ("1", "true", "yes") else {"check_hostname": False}
    if socket:
        return {**found, "unix_socket": socket}, f"mysql://{socket}/{database}"
    return {**found, "host": host, "port": port}, f"mysql://{host}:{port}/{database}"


def _refuse(options: dict[str, str], known: str, of: str) -> None:
    if options:
        raise ConfigError(f"{of}'s address has options that are not known: {', '.join(sorted(options))}", hint=known)
