"""Logging: one line per event as text, key=value, or JSON; a level per package; masked secrets."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from gossamer.errors import ConfigError
from gossamer.redact import masked

FORMATS = ("text", "kv", "json")
VARIABLES = {"format": "GOSSAMER_LOG_FORMAT", "file": "GOSSAMER_LOG_FILE", "level": "GOSSAMER_LOG_LEVEL"}
"""Environment variables of the logging options; worker processes inherit them."""
_LEVELS = ("debug", "info", "warning", "error")
_SPACES = dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " ")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_MOST = 8000


def plain(text: str, limit: int = 2000) -> str:
    """Untrusted text as one line that is safe to print: characters that are not printable are escaped.

    That covers control characters, terminal escape sequences, line and paragraph separators, and marks that change the
    text direction."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text.translate(_SPACES))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


class LogFormatter(logging.Formatter):
    """Formats a record as one line; text from the network is escaped and secrets are masked."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}: {self.formatException(record.exc_info)}"
        message = message[: 2 * _MOST]
        if self._form == "text":
            extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
            return plain(masked(f"{record.levelname} {record.name}: {message}{extras}"), _MOST)
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "room": record.name.removeprefix("gossamer."),
            "event": plain(masked(message), _MOST),
            "pid": record.process,
            **{name: _value(value) for name, value in _extras(record).items()},
        }
        if self._form == "json":
            return msgspec.json.encode(fields).decode()
        return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items())


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _value(value: object) -> object:
    return value if isinstance(value, (int, float)) else plain(masked(str(value)))


def _quoted(text: str) -> str:
    if text and re.search(r'[\s"=\\]', text) is None:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def start(*, quiet: bool = False, environment: Mapping[str, str] = os.environ) -> None:
    """Configure logging from the environment; by default, warnings go to stderr as text."""
    form = environment.get(VARIABLES["format"]) or "text"
    check(form, environment.get(VARIABLES["level"], ""))
    path = environment.get(VARIABLES["file"])
    handler = _to_file(path) if path else logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(form))
    logging.basicConfig(handlers=[handler], level=logging.ERROR if quiet and not path else logging.WARNING, force=True)
    for room, level in _levels(environment.get(VARIABLES["level"], "")).items():
        logging.getLogger(f"gossamer.{room}" if room else "gossamer").setLevel(level.upper())
    # A full disk or a closed pipe loses log lines, but does not stop the crawl.
    logging.raiseExceptions = False


def _to_file(path: str) -> logging.Handler:
    """A handler that reopens its file after a log rotation."""
    from logging.handlers import WatchedFileHandler

    try:
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log-file {path}: {error.strerror}", hint="choose a writable path") from None


def check(form: str, levels: str) -> None:
    """Raise ConfigError for an unknown format or an invalid list of levels."""
    if form not in FORMATS:
        raise ConfigError(f"--log-format {form}: unknown format", hint=f"use one of {', '.join(FORMATS)}")
    for level in _levels(levels).values():
        if level not in _LEVELS:
            raise ConfigError(
                f"--log-level {level}: unknown level",
                hint="for example: --log-level info, --log-level warning,fetch=info",
            )


def _levels(text: str) -> dict[str, str]:
    """Parse `warning,fetch=info` into package -> level; the empty name stands for all packages."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        room, equals, level = part.rpartition("=")
        found[room if equals else ""] = level.lower()
    return found
