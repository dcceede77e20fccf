"""Values as PostgreSQL reads them, and what an address of such a server says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gossamer.errors import ConfigError


def transposed(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def array(values: list[Any]) -> Any:
    """Numbers as one text, which is far cheaper for the driver than an array; other lists as they are."""
    if values and not isinstance(values[0], (int, type(None))):
        return values
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


def literal(value: Any) -> str:
    """A value as it is written in a statement."""
    if isinstance(value, (list, tuple)):
        value = "{" + ",".join(map(element, value)) + "}"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else str(value)


def element(value: Any) -> str:
    """A value as it is written in a list."""
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)


def address(url: str) -> tuple[dict[str, Any], str]:
    """What the driver takes, and how the server is called where others may read it."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        host: str | None = options.pop("host", "") or unquote(parts.hostname or "") or None
        port = int(options.pop("port", 0)) or parts.port
        sslmode = options.pop("sslmode", "")
    except ValueError:
        # Said without its words: they may hold a piece of the password.
        raise ConfigError(
            "the frontier's address is not one that PostgreSQL has",
            hint="write postgresql://user:password@host:port/database, with %2F for a / in the password",
        ) from None
    if options:
        raise ConfigError(
            f"the frontier's address has options that are not known: {', '.join(sorted(options))}",
            hint="host, port and sslmode are",
        )
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
