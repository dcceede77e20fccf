"""Text on its way to people: foreign text made harmless, and writing that never ends a crawl."""

from __future__ import annotations

import os
import sys

from gossamer.logs import plain

__all__ = ["flush_output", "hold_standard_streams", "plain", "put", "say"]


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
    if sys.stdin is None:
        # Python leaves it out where it was closed, and who asks for it expects a file, if an empty one.
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


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
