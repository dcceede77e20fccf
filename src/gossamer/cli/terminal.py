"""Text on its way to people: foreign text made harmless, and writing that never ends a crawl."""

from __future__ import annotations

import logging
import os
import sys

_SPACES = dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " ")


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


def say(line: str) -> None:
    """One line for people, to stderr; that nobody can read it is no reason to fail."""
    if sys.stderr is None:
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError, UnicodeError):
        pass


def put(data: bytes) -> None:
    """Data to stdout; that its reader has left is no error, that it is lost otherwise is one."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        _silence_stdout()


class OneLine(logging.Formatter):
    """One record, one line, whatever text from the network is in it."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record), 8000)


def log_to_stderr(quiet: bool) -> None:
    """Have warnings, or with `quiet` only errors, written to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR if quiet else logging.WARNING, force=True)
    logging.raiseExceptions = False


def hold_standard_streams() -> None:
    """Put /dev/null where a standard stream was closed: the next file opened would take its number, and its output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)


def flush_output() -> OSError | None:
    """Write out what stdout still holds; the error if that cannot be done, after which nothing more fails at exit."""
    if sys.stdout is None:
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        _silence_stdout()
        return error
    return None


def _silence_stdout() -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stdout.fileno())
    os.close(silent)
