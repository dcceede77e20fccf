"""Logs: one line an event, as text, key=value or JSON, levels per room, secrets masked, and never a reason to fail."""

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
"""What the options of the command line are called in the environment, by which worker processes get them too."""
_LEVELS = ("debug", "info", "warning", "error")
_SPACES = dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " ")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_MOST = 8000


def plain(text: str, limit: int = 2000) -> str:
    """Text from anywhere as one line that a terminal shows and does not obey: what cannot be printed is escaped.

    That covers control characters, escape sequences, line and paragraph ends, and signs that turn the direction."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text.translate(_SPACES))


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


class LogFormatter(logging.Formatter):
    """One record as one line, whatever text from the network is in it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}: {self.formatException(record.exc_info)}"
        message = message[: 2 * _MOST]
        if self._form == "text":
            told = "".join(f" {name}={value}" for name, value in _extras(record).items())
            return plain(masked(f"{record.levelname} {record.name}: {message}{told}"), _MOST)
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
    """Have the process log as its environment says; without a word of it, warnings go to stderr as text."""
    form = environment.get(VARIABLES["format"]) or "text"
    check(form, environment.get(VARIABLES["level"], ""))
    path = environment.get(VARIABLES["file"])
    handler = _to_file(path) if path else logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(form))
    logging.basicConfig(handlers=[handler], level=logging.ERROR if quiet and not path else logging.WARNING, force=True)
    for room, level in _levels(environment.get(VARIABLES["level"], "")).items():
        logging.getLogger(f"gossamer.{room}" if room else "gossamer").setLevel(level.upper())
    # A full disk or a reader that has left costs lines of the log, never the crawl.
    logging.raiseExceptions = False


def _to_file(path: str) -> logging.Handler:
    """A file that was moved away by a rotation is opened anew under its name."""
    from logging.handlers import WatchedFileHandler

    try:
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log-file {path}: {error.strerror}", hint="name a file that can be written") from None


def check(form: str, levels: str) -> None:
    """Refuse what is no format, or no list of levels."""
    if form not in FORMATS:
        raise ConfigError(f"--log-format {form}: no such format", hint=f"there are {', '.join(FORMATS)}")
    for level in _levels(levels).values():
        if level not in _LEVELS:
            raise ConfigError(
                f"--log-level {level}: no such level", hint="as in --log-level info, or --log-level warning,fetch=info"
            )


def _levels(text: str) -> dict[str, str]:
    """`warning,fetch=info` as room -> level; the empty room is all of them."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        room, equals, level = part.rpartition("=")
        found[room if equals else ""] = level.lower()
    return found
