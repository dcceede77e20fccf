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
from gossamer.service.directory import JobDirectory
from gossamer.service.events import EventHub
from gossamer.service.monitor import Monitor
from gossamer.service.routing import ApiError, Part
from gossamer.service.security import Authenticator
from gossamer.settings import Settings

_AT_ONCE, _WAITING = 2, 16
Value = TypeVar("Value")
_Shape = TypeVar("_Shape")


class ReadLimiter:
    """Limits concurrent reads of whole files: a few run, some wait, and further ones get 503 with Retry-After."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free slot; ApiError 503 if too many wait already."""
        if self._waiting >= _WAITING:
            raise ApiError(503, "too many concurrent requests that read whole files", headers={"retry-after": "2"})
        self._waiting += 1
        try:
            async with self._gate:
                yield
        finally:
            self._waiting -= 1

    async def read(self, work: Callable[[], Value]) -> Value:
        """Run `work` in a thread once a slot is free."""
        async with self.slot():
            return await asyncio.to_thread(work)


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """State shared by the request handlers."""

    directory: JobDirectory
    monitor: Monitor
    hub: EventHub
    clock: Clock
    authenticator: Authenticator
    base: Settings
    """The operator's settings: the defaults of every submitted job."""
    spiders: Mapping[str, str]
    """Spider name -> its file, as offered with `--offer`."""
    only: Part = ""
    reading: ReadLimiter = field(default_factory=ReadLimiter)


def split_valid_urls(given: Iterable[str]) -> tuple[list[str], list[str]]:
    """Normalize URLs; returns the valid ones, and the texts that are not URLs."""
    good: list[str] = []
    bad: list[str] = []
    for text in given:
        try:
            found = job_folder.read_seeds([text])
        except ConfigError:
            found = []
        (good if found else bad).extend(found or [text])
    return good, bad


def parse_url(text: str) -> str:
    """Normalize the URL of a query; ApiError 404 if it is not one."""
    good, _ = split_valid_urls([text])
    if not good:
        raise ApiError(404, "not a URL that a job can crawl", hint="write it as https://example.com/page")
    return good[0]


def encode_cursor(position: Any) -> str:
    """Encode a position as an opaque pagination cursor."""
    return urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode_cursor(cursor: str | None, kind: type[_Shape], first: _Shape) -> _Shape:
    """Decode a pagination cursor; `first` if there is none, ApiError 404 if it is invalid."""
    if cursor is None:
        return first
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=kind)
    except (ValueError, msgspec.MsgspecError):
        raise ApiError(404, "invalid cursor", hint="omit it to start from the first page") from None
