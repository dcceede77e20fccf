"""State shared by the service's request handlers: job registry, clock, tokens, read limits, and pagination cursors."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gossamer import job_folder
from gossamer.clock import Clock
from gossamer.errors import ConfigError
from gossamer.service.directory import Directory
from gossamer.service.events import Hub
from gossamer.service.monitor import Watch
from gossamer.service.routing import Part, Refused
from gossamer.service.security import Doorkeeper
from gossamer.settings import Settings

_AT_ONCE, _WAITING = 2, 16
Value = TypeVar("Value")
_Shape = TypeVar("_Shape")


class ReadLimiter:
    """A few at a time read whole files; more than some wait, and the rest is told to come back."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn."""
        if self._waiting >= _WAITING:
            raise Refused(503, "too many questions that read whole files at once", headers={"retry-after": "2"})
        self._waiting += 1
        try:
            async with self._gate:
                yield
        finally:
            self._waiting -= 1

    async def read(self, work: Callable[[], Value]) -> Value:
        """Read in a thread, in one's turn."""
        async with self.turn():
            return await asyncio.to_thread(work)


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """One service."""

    directory: Directory
    watch: Watch
    hub: Hub
    clock: Clock
    doorkeeper: Doorkeeper
    base: Settings
    """The operator's settings, which every job that is submitted begins with."""
    spiders: Mapping[str, str]
    """Name -> the file that the operator offers by it."""
    only: Part = ""
    reading: ReadLimiter = field(default_factory=ReadLimiter)


def sorted_out(given: Iterable[str]) -> tuple[list[str], list[str]]:
    """URLs made normal, and the texts that are none."""
    good: list[str] = []
    bad: list[str] = []
    for text in given:
        try:
            found = job_folder.read_seeds([text])
        except ConfigError:
            found = []
        (good if found else bad).extend(found or [text])
    return good, bad


def one_url(text: str) -> str:
    """A URL that is asked about, made normal."""
    good, _ = sorted_out([text])
    if not good:
        raise Refused(404, "no job can know that URL", hint="a URL looks like https://example.com/page")
    return good[0]


def cursor_of(position: Any) -> str:
    """A position as clients carry it."""
    return urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def position_of(cursor: str | None, kind: type[_Shape], first: _Shape) -> _Shape:
    """The position that a cursor stands for; the first where there is none."""
    if cursor is None:
        return first
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=kind)
    except (ValueError, msgspec.MsgspecError):
        raise Refused(404, "that cursor is not one of ours", hint="leave it out to begin anew") from None
