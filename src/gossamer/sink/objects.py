"""Pages as objects of S3 and other stores: files are written in a spool and put into the bucket when they are whole."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

from gossamer.clock import Clock, SystemClock
from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.model import Record
from gossamer.sink import disk
from gossamer.sink.base import SPOOL, Opening, Sink
from gossamer.sink.bucket import Bucket
from gossamer.sink.lines import LineFiles
from gossamer.sink.warc import WarcSink

log = logging.getLogger("gossamer.sink")
PROBE = ".gossamer"
OBJECT_SECONDS, SPOOL_BYTES = 300, 4_000_000_000
_OPEN, _LOCK, _NAME = ".open", "lock", "name"
_AT_ONCE, _LONGEST_WAIT_SECONDS = 4, 30.0


class BucketOptions(NamedTuple):
    """What may stand behind the ? of an address."""

    endpoint: str = ""
    region: str = ""
    object_bytes: int = 0
    """Size at which the next object begins; 0: the setting `archive_bytes`."""
    object_seconds: int = OBJECT_SECONDS
    """Age at which an object of lines is finished, with the page that comes next."""
    spool_bytes: int = SPOOL_BYTES
    """What may lie in the spool; more than that, and the crawl waits for the bucket."""


class ObjectSink:
    """Puts the files that another sink has finished into a bucket, and takes them out of the spool.

    A job of one machine has its frontier on the same disk as the spool: there, what is synced in the spool is stored,
    and the next run puts into the bucket what a killed one has left. A machine of a fleet may never come back: with
    `pieces`, `write` returns when the bucket has all of the call, as a small object of its own. The small ones are
    deleted when the whole file that they are part of is there."""

    patience_seconds = 60.0
    """How long it is tried at the end, when nothing comes through any more."""

    def __init__(
        self, inner: Sink, bucket: Bucket, spool: Path, *, home: Path, pieces: bool, spool_bytes: int = SPOOL_BYTES
    ) -> None:
        self._inner, self._bucket, self._spool, self._home = inner, bucket, spool, home
        self._pieces: dict[str, list[str]] | None = {} if pieces else None
        self._spool_bytes = spool_bytes
        self._sizes: dict[str, int] = {}
        self._turn = asyncio.Lock()
        self._shipping: asyncio.Task[None] | None = None
        self._fault: SinkError | None = None
        self._failing_since: float | None = None
        self._known = False
        self._lock = _locked(spool) if pieces else None
        self._clock: Clock = SystemClock()

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        async with self._turn:
            if self._fault is not None:
                raise self._fault
            if not self._known:
                await self._knock()
            # What is not finished yet can only become so by being written to.
            if self._spooled_bytes() > self._spool_bytes and self._finished():
                self._ship()
                raise SinkFull(
                    f"{self._spool} has more than {self._spool_bytes:,} bytes that {self._bucket.url} has not taken",
                    hint="is the store up, and fast enough? ?spool_bytes=N allows more",
                )
            marks = await self._inner.write(records)
            if self._pieces is not None:
                try:
                    await self._put_pieces(marks, self._pieces)
                except SinkError:
                    await self._inner.rewind(self._sizes)
                    raise
            self._sizes = dict(marks)
            self._ship()
            return marks

    async def _knock(self) -> None:
        """Find out with the first page, not after the first gigabyte, that nothing may be written there."""
        try:
            await self._bucket.put(PROBE, b"")
        except SinkFull:
            # Without pieces that is a matter of later.
            if self._pieces is not None:
                raise
        self._known = True

    async def _put_pieces(self, marks: Mapping[str, int], pieces: dict[str, list[str]]) -> None:
        for mark, end in marks.items():
            begin = self._sizes.get(mark, 0)
            if end > begin:
                path = self._home / mark
                stem, dot, suffix = path.name.partition(".")
                name = f"{stem}-piece-{begin:012}{dot}{suffix}"
                await self._bucket.put(name, await asyncio.to_thread(_read, path, begin, end))
                # Noted at once, so that it is deleted too if the next one fails.
                known = pieces.setdefault(path.name, [])
                if name not in known:
                    known.append(name)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        await self._inner.rewind(marks)
        self._sizes = {mark: marks.get(mark, 0) for mark in self._sizes}

    async def aclose(self) -> None:
        """Finish all files and put them into the bucket; SinkError if it does not take them."""
        async with self._turn:
            await self._inner.aclose()
            self._failing_since = None
            while self._fault is None and self._finished():
                self._ship()
                if self._shipping is not None:
                    await asyncio.wait({self._shipping}, timeout=1.0)
                if self._has_failed_for(self.patience_seconds):
                    break
            if self._shipping is not None:
                self._shipping.cancel()
                await asyncio.wait({self._shipping})
        left = self._finished()
        if not left:
            self._clear()
        elif self._pieces is None:
            raise self._fault or SinkError(
                f"{self._bucket.url} has not taken {len(left)} files, which are safe in {self._spool}",
                hint="the same command again puts them there",
            )
        else:
            self._clear()
            log.warning("%s has %d files in pieces: it did not take them whole", self._bucket.url, len(left))

    def _clear(self) -> None:
        """Leave no empty folder of a fleet's worker behind."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            shutil.rmtree(self._spool, ignore_errors=True)

    def _ship(self) -> None:
        """See to it that finished files are on their way."""
        if (self._shipping is None or self._shipping.done()) and self._finished():
            self._shipping = asyncio.create_task(self._put_finished())

    async def _put_finished(self) -> None:
        wait = 0.5
        while files := self._finished():
            some = files[:_AT_ONCE]
            done = await asyncio.gather(*map(self._put_whole, some), return_exceptions=True)
            faults = [fault for fault in done if fault is not None]
            final = [fault for fault in faults if not isinstance(fault, SinkFull)]
            if final:
                # Told by the next call.
                self._fault = _in_words(final[0])
                return
            if not faults:
                wait, self._failing_since = 0.5, None
                continue
            if self._failing_since is None:
                self._failing_since = self._clock.monotonic()
            log.warning("%d files wait in the spool: %s", len(files), faults[0])
            await self._clock.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_SECONDS)

    async def _put_whole(self, path: Path) -> None:
        await self._bucket.put(path.name, path)
        if self._pieces and (pieces := self._pieces.pop(path.name, [])):
            try:
                await self._bucket.delete(pieces)
            except SinkError as error:
                log.warning("%d pieces of %s stay beside it: %s", len(pieces), path.name, error)
        path.unlink()

    def _has_failed_for(self, seconds: float) -> bool:
        return self._failing_since is not None and self._clock.monotonic() - self._failing_since > seconds

    def _finished(self) -> list[Path]:
        """What is whole and has to go, an index after what it is of."""
        there = [path for path in self._spool.iterdir() if path.suffix not in (_OPEN, "") and path.name[0] != "."]
        return sorted(there, key=lambda path: (path.suffix == ".cdxj", path.name))

    def _spooled_bytes(self) -> int:
        total = 0
        for entry in os.scandir(self._spool):
            with suppress(FileNotFoundError):
                total += entry.stat().st_size
        return total


def open_objects(opening: Opening) -> ObjectSink:
    """The sinks named `s3://bucket/prefix` and `warc+s3://bucket/prefix`, and the same with gs, az and file."""
    form, _, scheme = opening.kind.rpartition("+")
    address, _, query = opening.target.partition("?")
    options = _options(query)
    bucket = Bucket(f"{scheme}:{address}".rstrip("/"), endpoint=options.endpoint, region=options.region)
    home = opening.folder.absolute()
    in_fleet = opening.marks is None
    spool, name = _new_spool(home) if in_fleet else _own_spool(home, opening)
    prefix = f"{re.sub(r'[^A-Za-z0-9_]+', '_', home.name)[:60]}-{name}"
    # Some of them have to find room in the spool.
    max_bytes = min(options.object_bytes or opening.settings.archive_bytes, options.spool_bytes // 4)
    inner: Sink
    if form == "warc":
        about = [("isPartOf", home.name), ("http-header-user-agent", opening.settings.user_agent)]
        inner = WarcSink(
            spool, opening.marks, prefix=prefix, max_bytes=max_bytes, about=about, home=home, moves_away=True
        )
    else:
        inner = LineFiles(
            spool,
            opening.marks,
            prefix=prefix,
            max_bytes=max_bytes,
            max_seconds=options.object_seconds,
            home=home,
        )
    return ObjectSink(inner, bucket, spool, home=home, pieces=in_fleet, spool_bytes=options.spool_bytes)


def _options(query: str) -> BucketOptions:
    given = dict(parse_qsl(query))
    if unknown := given.keys() - set(BucketOptions._fields):
        raise ConfigError(
            f"sink: no such options: {', '.join(sorted(unknown))}", hint=f"there are {', '.join(BucketOptions._fields)}"
        )
    try:
        return BucketOptions(
            **{  # type: ignore[arg-type]
                name: value if name in ("endpoint", "region") else int(value) for name, value in given.items()
            }
        )
    except ValueError:
        raise ConfigError("sink: sizes and times are whole numbers", hint="as in ?spool_bytes=1000000000") from None


def _own_spool(home: Path, opening: Opening) -> tuple[Path, str]:
    """The spool of a job of one machine, and the name of its objects: kept with it, so that no two jobs share one."""
    spool = home / SPOOL / _spool_name(f"{opening.kind}:{opening.target}")
    try:
        spool.mkdir(parents=True, exist_ok=True)
        named = set(map(_spool_name, opening.settings.sink))
        for other in (home / SPOOL).iterdir():
            if other.name not in named and any(path.suffix for path in other.iterdir()):
                log.warning("%s has files for a bucket that is not named any more; name its sink again", other)
        if not (spool / _NAME).exists():
            disk.replace(spool / _NAME, secrets.token_hex(4).encode())
            disk.sync_folder(spool)
        return spool, (spool / _NAME).read_text("ascii")
    except OSError as error:
        raise disk.in_words(error) from error


def _spool_name(sink: str) -> str:
    place = sink.partition("?")[0]
    return f"{sink.partition(':')[0]}-{blake2b(place.encode(), digest_size=4).hexdigest()}"


def _new_spool(home: Path) -> tuple[Path, str]:
    """A spool for this run of a fleet's worker. What killed ones of this machine left is in the bucket already."""
    machine, name = quote(os.uname().nodename, safe=""), secrets.token_hex(4)
    try:
        for other in (home / SPOOL).glob(f"{machine}-*"):
            if _is_dead(other):
                shutil.rmtree(other, ignore_errors=True)
        spool = home / SPOOL / f"{machine}-{name}"
        spool.mkdir(parents=True)
        return spool, name
    except OSError as error:
        raise disk.in_words(error) from error


def _locked(spool: Path) -> int:
    descriptor = os.open(spool / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    disk.hold(descriptor)
    return descriptor


def _is_dead(spool: Path) -> bool:
    try:
        descriptor = os.open(spool / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return disk.hold(descriptor)
    finally:
        os.close(descriptor)


def _in_words(fault: BaseException) -> SinkError:
    if isinstance(fault, SinkError):
        return fault
    if isinstance(fault, OSError):
        return disk.in_words(fault)
    raise fault


def _read(path: Path, begin: int, end: int) -> bytes:
    with path.with_name(path.name + _OPEN).open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)
