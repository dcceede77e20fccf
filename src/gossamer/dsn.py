"""Database addresses: turns a URL into driver arguments, and names a server without its password."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gossamer.errors import ConfigError


def postgresql(url: str, *, of: str = "the frontier") -> tuple[dict[str, Any], str]:
    """Return asyncpg's arguments and the server's name without a password; several hosts count as one server."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        hosts, ports = hosts_of(parts.netloc.rpartition("@")[2])
        hosts = [host for host in options.pop("host", "").split(",") if host] or hosts
        ports = [int(port) for port in options.pop("port", "").split(",") if port] or ports
        sslmode, wanted = options.pop("sslmode", ""), options.pop("target_session_attrs", "")
        # Workers write, so of several hosts they need the one that accepts writes.
        wanted = wanted or ("read-write" if len(hosts) > 1 else "any")
        if (len(ports) not in (0, 1, len(hosts)) and hosts) or wanted not in ("any", "read-write", "primary"):
            raise ValueError
    except ValueError:
        # Without the parser's message, which may contain a part of the password.
        raise ConfigError(
            f"{of}'s address is not a valid PostgreSQL address",
            hint="write postgresql://user:password@host:port/database, with %2F for a / in the password",
        ) from None
    _refuse(options, "host, port, sslmode and target_session_attrs are", of)
    found: dict[str, Any] = {"database": unquote(parts.path.lstrip("/")) or None}
    if hosts:
        found["host"] = hosts if len(hosts) > 1 else hosts[0]
    if ports:
        found["port"] = ports if len(ports) > 1 else ports[0]
    if parts.username:
        found["user"] = unquote(parts.username)
    if parts.password:
        found["password"] = unquote(parts.password)
    if sslmode:
        found["ssl"] = sslmode
    if wanted != "any":
        found["target_session_attrs"] = wanted
    names = hosts or ["localhost"]
    each = ports * len(names) if len(ports) == 1 else ports
    if each:
        names = [f"{host}:{port}" for host, port in zip(names, each)]
    return found, f"postgresql://{','.join(names)}/{found['database'] or ''}"


def hosts_of(text: str) -> tuple[list[str], list[int]]:
    """Return the hosts of an address without its user, and their ports if any is given."""
    hosts, ports = [], []
    for place in text.split(","):
        host, colon, port = place.rpartition(":")
        if not colon or place.endswith("]"):
            host, port = place, ""
        hosts.append(unquote(host) if host.startswith("/") else unquote(host.strip("[]").lower()))
        ports.append(int(port) if port else 0)
    return [host for host in hosts if host], [port or 5432 for port in ports] if any(ports) else []


def mysql(url: str, *, of: str = "the frontier") -> tuple[dict[str, Any], str]:
    """Return asyncmy's arguments and the server's name without a password."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        socket = options.pop("socket", "") or options.pop("unix_socket", "")
        port = parts.port or 3306
        host = unquote(parts.hostname or "") or "localhost"
        tls = options.pop("ssl", "")
    except ValueError:
        # Without the parser's message, which may contain a part of the password.
        raise ConfigError(
            f"{of}'s address is not a valid MySQL address",
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
        raise ConfigError(f"{of}'s address has unknown options: {', '.join(sorted(options))}", hint=known)
