"""Pages as files that any tool can read: htmls/HOST/KEY, links/HOST/KEY and errs/HOST/KEY."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from gossamer.model import Record
from gossamer.sink import disk
from gossamer.sink.base import Opening

KINDS = HTMLS, LINKS, ERRS = "htmls", "links", "errs"
_LONGEST_NAME = 200
_THREADS = 8


class TreePaths(NamedTuple):
    """Where a URL's files are: the same names below each of the three folders."""

    host: str
    key: str


def place_of(url: str) -> TreePaths:
    """The netloc of a URL, and the first 24 hexadecimal digits of its SHA-224."""
    host = url.split("/", 3)[2] if url.count("/") >= 2 else ""
    if not host.strip(".") or len(host) > _LONGEST_NAME or "\0" in host:
        # Such names lead out of the folder, or nowhere.
        host = "_" + hashlib.sha224(host.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return TreePaths(host, hashlib.sha224(url.encode("utf-8", "surrogatepass")).hexdigest()[:24])


class TreeSink:
    """Keeps each page in a file of its own. A page's links are there before it is, so a page that is there is whole.

    Workers may share it: two that fetched the same page write the same file, and the last one stays."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            for kind in KINDS:
                (folder / kind).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk.in_words_of(folder, error) from error
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gossamer-tree")

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._store, record) for record in records))
        return {}

    def _store(self, record: Record) -> None:
        place = place_of(record.page.url)
        found = record.found
        if record.page.location:
            found = (record.page.location,)
        try:
            if record.page.status == 304 or record.page.copy_of is not msgspec.UNSET:
                # The page that is there is still the page; and of a copy another page is kept.
                return
            if record.page.status == 0 or record.page.status >= 400 or record.page.error:
                self._put(ERRS, place, b"")
            else:
                self._put(LINKS, place, msgspec.json.encode(found or ()))
                self._put(HTMLS, place, record.body)
                (self._folder / ERRS / place.host / place.key).unlink(missing_ok=True)
        except OSError as error:
            raise disk.in_words_of(self._folder, error) from error

    def _put(self, kind: str, place: TreePaths, data: bytes) -> None:
        target = self._folder / kind / place.host / place.key
        temporary = target.with_name(f".{place.key}-{secrets.token_hex(6)}")
        try:
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileNotFoundError:
                self._make(kind, place.host)
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def _make(self, kind: str, host: str) -> None:
        """The folder of a host. Where all that was there is gone, another file system is: nothing is made in that."""
        if not any((self._folder / name).is_dir() for name in KINDS):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        (self._folder / kind / host).mkdir(parents=True, exist_ok=True)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Nothing to do: a page that is fetched again takes the place of the one that did not count."""

    async def aclose(self) -> None:
        self._threads.shutdown(wait=True)


def open_tree(opening: Opening) -> TreeSink:
    """The sink named `folder:/path`."""
    return TreeSink(Path(opening.target))


class Tree:
    """A tree of pages that is there already, whoever made it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host = ""
        self._names: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return (self._folder / HTMLS).is_dir() or (self._folder / LINKS).is_dir()

    def has(self, url: str) -> bool:
        """Whether the URL was fetched, well or not. Questions about one host after another are cheap."""
        place = place_of(url)
        if place.host != self._host:
            self._host = place.host
            self._names = frozenset(self._list(HTMLS, place.host)) | frozenset(self._list(ERRS, place.host))
        return place.key in self._names

    def links(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each host, with the links of one of its pages; what is no list of links is passed over."""
        for host in self._list(LINKS, ""):
            for name in self._list(LINKS, host):
                try:
                    found = msgspec.json.decode((self._folder / LINKS / host / name).read_bytes(), type=list[str])
                except (OSError, msgspec.MsgspecError):
                    continue
                yield host, tuple(found)

    def _list(self, kind: str, host: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder / kind / host) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
