"""What passes between a replay and its processes."""

from __future__ import annotations

from typing import Any

import msgspec

from gossamer.storage.warc.reader import ReadPart


class Setup(msgspec.Struct, frozen=True):
    """What a process is told first."""

    settings: dict[str, Any]
    warcs: list[str]
    trees: list[tuple[str, str]]
    drafts: str
    """Folder with the indexes that were made."""
    where: list[str] = []
    """Conditions that a page must meet."""


class ReplayTask(msgspec.Struct, frozen=True):
    """One part to work through."""

    part: ReadPart
    careful: bool = False
    """Whether each page is named before the spider sees it, because a process died of one."""
    fatal: list[int] = []
    """Places of pages that processes died of."""
    costly: list[int] = []
    """Places of pages at which processes were killed, because they did not come to an end."""


class At(msgspec.Struct, tag="at", frozen=True):
    """The page that comes next."""

    offset: int
    url: str


class Closing(msgspec.Struct, tag="closing", frozen=True):
    """No page is in hand any more; the spider is being closed."""


class Left(msgspec.Struct, tag="left", frozen=True):
    """The last message: the spider is closed, or why it could not be opened or closed."""

    error: str = ""
    hint: str = ""


class Done(msgspec.Struct, tag="done", frozen=True, kw_only=True):
    """What a part gave: lines of files, and figures."""

    pages: bytes = b""
    items: bytes = b""
    rejected: bytes = b""
    page_count: int = 0
    item_count: int = 0
    rejected_count: int = 0
    dropped_count: int = 0
    request_count: int = 0
    failed_count: int = 0
    unread_count: int = 0
    body_bytes: int = 0
    failures: list[tuple[str, str]] = []
    """Some of the pages that failed, and why."""
    unread: list[str] = []
    """Some of what could not be read."""
    fields: dict[str, int] = {}
    """Rejected items by the field that is wrong."""
