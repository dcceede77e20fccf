"""Object stores (S3, Azure, Google, or a folder): files are written to a local spool, then uploaded.

An object cannot be appended to, so records are collected in a file of the spool. The file is uploaded when it reaches a
size or an age, and deleted after the store has confirmed it.

Invariants: a commit returns only when its records are durable, on the spool's disk or, for a fleet's worker, in the
bucket as a small part object; object names are unique to a job, so no job overwrites another's objects; the spool is
bounded.

Failure cases: while the bucket is unavailable, files wait in the spool, and a full spool stops writing (SinkFull). What
a crashed run left in the spool is truncated to its marks and uploaded by the next run. An upload that is repeated
replaces the object with equal content."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from gossamer.clock import Clock, SystemClock
from gossamer.compression import zstd_frame
from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.extras import unusable
from gossamer.model import Record, Rejected
from gossamer.storage import files
from gossamer.storage.base import SPOOL, Opening, Sink
from gossamer.storage.warc.sink import WarcSink

try:
    import obstore
    from obstore import exceptions as faults
    from obstore.store import from_url
except ImportError as missing:
    raise unusable("objects", "the sink in an object store", missing) from missing


_CHUNK_BYTES = 8 << 20
_PUTS_AT_ONCE = 4
_ENDPOINTS: Mapping[str, tuple[str, ...]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "file": (),
}
_STOPS = (
    faults.PermissionDeniedError, faults.UnauthenticatedError, faults.InvalidPathError, faults.NotSupportedError,
    faults.UnknownConfigurationKeyError, FileNotFoundError, PermissionError, NotADirectoryError,
)  # fmt: skip


class Bucket:
    """An object store and a prefix, named `scheme://bucket/prefix`; credentials come from the environment."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in _ENDPOINTS or not (parts.netloc or parts.scheme == "file"):
            raise ConfigError("sink: unknown object store", hint="use s3://, gs://, az:// or file:///path")
        if "@" in parts.netloc:
            raise ConfigError(
                "sink: credentials are not allowed in the address of a bucket",
                hint="export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=..., or what the store's own tools use",
            )
        self.url = url
        endpoint = endpoint or next((os.environ[name] for name in _ENDPOINTS[parts.scheme] if os.environ.get(name)), "")
        options: dict[str, Any] = {}
        self._folder = Path(parts.path) if parts.scheme == "file" else None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        else:
            config = {"endpoint": endpoint, "region": region}
            options["config"] = {name: value for name, value in config.items() if value}
            options["client_options"] = {
                "allow_http": endpoint.startswith("http://"), "connect_timeout": "10s", "timeout": "120s",
            }  # fmt: skip
            # Longer outages are retried by the caller, which logs them.
            options["retry_config"] = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
        try:
            self._store = from_url(url, **options)
        except (faults.BaseError, ValueError) as error:
            raise ConfigError(f"sink {url}: {_first_line(error)}", hint="use s3://bucket/prefix") from None

    async def put(self, name: str, source: Path | bytes) -> None:
        """Upload an object, in several parts if it is large; returns when the store has confirmed it."""
        try:
            await obstore.put_async(self._store, name, source, chunk_size=_CHUNK_BYTES, max_concurrency=_PUTS_AT_ONCE)
            if self._folder is not None:
                await asyncio.to_thread(_sync, self._folder / name)
            if isinstance(source, Path):
                found = (await obstore.head_async(self._store, name))["size"]
                if found != source.stat().st_size:
                    raise SinkError(f"{self.url}/{name} has {found} bytes, but {source} has {source.stat().st_size}")
        except (faults.BaseError, OSError) as error:
            raise self._translate_error(error) from error

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        try:
            await obstore.delete_async(self._store, list(names))
        except FileNotFoundError:
            pass
        except (faults.BaseError, OSError) as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> SinkError:
        if isinstance(error, _STOPS):
            return SinkError(
                f"{self.url}: {_first_line(error)}",
                hint="does the bucket exist, and do the credentials allow writing?",
            )
        return SinkFull(f"{self.url}: {_first_line(error)}", hint="is the store up, and reachable from here?")


def _sync(path: Path) -> None:
    # The library does not sync files.
    with path.open("rb") as file:
        os.fsync(file.fileno())
    files.sync_folder(path.parent)


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without a possible signature."""
    return re.sub(r"\?\S+", "?...", (str(error).splitlines() or [""])[0])[:300]


log = logging.getLogger("gossamer.sink")
SUFFIX, OPEN = ".jsonl.zst", ".open"
PAGES, ITEMS, REJECTED = "pages", "items", "rejected"
_encode = msgspec.json.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into


class ItemLine(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An item with its page."""

    key: int
    token: int
    url: str
    number: int
    item: dict[str, Any]


class RejectedLine(Rejected, frozen=True, gc=False, kw_only=True):
    """A rejected item with its page."""

    key: int
    token: int


class LineFiles:
    """`pages-NAME-00000.jsonl.zst`, `items-...`, and `rejected-...` in a private folder; open files end in `.open`.

    Each line has the key and token of its visit, and each call of `write` is a zstd frame. A file is finished at
    `max_bytes` or after `max_seconds`, by the call after the one that filled it: only then is the last one known to be
    committed. Files of a crashed run are truncated to their marks and finished."""

    def __init__(
        self,
        folder: Path,
        marks: Mapping[str, int] | None,
        *,
        prefix: str,
        max_bytes: int,
        max_seconds: float,
        home: Path,
        clock: Clock | None = None,
    ) -> None:
        self._folder, self._prefix, self._home = folder, prefix, home
        self._max_bytes, self._max_seconds = max_bytes, max_seconds
        self._clock = clock or SystemClock()
        self._files: dict[str, _File] = {}
        # A cancelled call leaves its thread writing: later calls wait for it.
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob(f"*{SUFFIX}{OPEN}")):
                _truncate_and_finish(path, (marks or {}).get(self._mark(path), 0))
            names = [*os.listdir(folder), *(Path(mark).name for mark in marks or ())]
        except OSError as error:
            raise files.translate_error(error) from error
        self._number = 1 + max(map(self._number_of, names), default=-1)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        return await asyncio.get_running_loop().run_in_executor(None, self._write, records)

    def _write(self, records: Sequence[Record]) -> dict[str, int]:
        pages, items, aside = bytearray(), bytearray(), bytearray()
        for record in records:
            pages += b'{"key":%d,"token":%d,' % (record.key, record.token)
            pages += _encode(record.page)[1:]
            pages += b"\n"
            for number, item in enumerate(record.items):
                line = ItemLine(key=record.key, token=record.token, url=record.page.url, number=number, item=item)
                _encode_into(line, items, len(items))
                items += b"\n"
            for one in record.rejected:
                rejected = RejectedLine(key=record.key, token=record.token, **msgspec.structs.asdict(one))
                _encode_into(rejected, aside, len(aside))
                aside += b"\n"
        with self._lock:
            sizes = {stream: file.size for stream, file in self._files.items()}
            try:
                for stream in [stream for stream, file in self._files.items() if self._is_full(file)]:
                    self._files[stream].finish()
                    del self._files[stream]
                for stream, lines in ((PAGES, pages), (ITEMS, items), (REJECTED, aside)):
                    if lines:
                        self._file(stream).append(zstd_frame(lines))
            except OSError as error:
                for stream, file in self._files.items():
                    file.truncate(sizes.get(stream, 0))
                raise files.translate_error(error) from error
            return {self._mark(file.path): file.size for file in self._files.values()}

    def _is_full(self, file: _File) -> bool:
        age = self._clock.monotonic() - file.begun_at
        return bool(file.size) and (file.size >= self._max_bytes or age >= self._max_seconds)

    def _file(self, stream: str) -> _File:
        if stream not in self._files:
            path = self._folder / f"{stream}-{self._prefix}-{self._number:05}{SUFFIX}"
            self._files[stream] = _File(path, self._clock.monotonic())
            self._number += 1
        return self._files[stream]

    async def rewind(self, marks: Mapping[str, int]) -> None:
        with self._lock:
            for file in self._files.values():
                file.truncate(marks.get(self._mark(file.path), 0))

    async def aclose(self) -> None:
        try:
            with self._lock:
                while self._files:
                    stream = next(iter(self._files))
                    self._files[stream].finish()
                    del self._files[stream]
        except OSError as error:
            # The lines are durable: the next start finishes the file.
            log.warning("%s: cannot finish the file: %s", self._folder, error.strerror)

    def _mark(self, path: Path) -> str:
        return str(path.relative_to(self._home)).removesuffix(OPEN)

    def _number_of(self, name: str) -> int:
        head, _, number = name.removesuffix(OPEN).removesuffix(SUFFIX).rpartition("-")
        return int(number) if number.isdigit() and head.endswith(f"-{self._prefix}") else -1


class _File:
    """A file that is being written."""

    def __init__(self, path: Path, begun_at: float) -> None:
        self.path, self.begun_at = path, begun_at
        self.size = 0
        self._open_path = path.with_name(path.name + OPEN)
        self._file = os.open(self._open_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            files.sync_folder(path.parent)
        except OSError:
            os.close(self._file)
            self._open_path.unlink()
            raise

    def append(self, data: bytes) -> None:
        files.write_at(self._file, data, self.size)
        files.sync(self._file)
        self.size += len(data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self.size = size

    def finish(self) -> None:
        _finish(self._open_path)
        os.close(self._file)


def _truncate_and_finish(path: Path, size: int) -> None:
    files.truncate(path, size)
    _finish(path)


def _finish(path: Path) -> None:
    """Rename a file to its final name, or delete it if it is empty."""
    path.rename(path.with_name(path.name.removesuffix(OPEN))) if path.stat().st_size else path.unlink()
    files.sync_folder(path.parent)


PROBE = ".gossamer"
OBJECT_SECONDS, SPOOL_BYTES = 300, 4_000_000_000
_OPEN, _LOCK, _NAME = ".open", "lock", "name"
_AT_ONCE, _LONGEST_WAIT_SECONDS = 4, 30.0


class BucketOptions(NamedTuple):
    """The query parameters of a bucket's address."""

    endpoint: str = ""
    region: str = ""
    object_bytes: int = 0
    """Size at which the next object starts; 0: the setting `archive_bytes`."""
    object_seconds: int = OBJECT_SECONDS
    """Age at which an object of lines is finished, with the next page."""
    spool_bytes: int = SPOOL_BYTES
    """Max size of the spool; beyond it, the crawl waits for the bucket."""


class ObjectSink:
    """Uploads the files that another sink has finished, and deletes them from the spool.

    On one machine, frontier and spool are on the same disk: a record that is synced in the spool is durable, and the
    next run uploads what a crashed one left. A machine of a fleet may never come back: with `part_objects`, `write`
    returns when the bucket has the data of the call as a small object of its own. These part objects are deleted
    after the upload of the file that contains them."""

    patience_seconds = 60.0
    """Seconds for which uploads are retried at the end without progress."""

    def __init__(
        self,
        inner: Sink,
        bucket: Bucket,
        spool: Path,
        *,
        home: Path,
        part_objects: bool,
        spool_bytes: int = SPOOL_BYTES,
    ) -> None:
        self._inner, self._bucket, self._spool, self._home = inner, bucket, spool, home
        self._part_objects: dict[str, list[str]] | None = {} if part_objects else None
        self._spool_bytes = spool_bytes
        self._sizes: dict[str, int] = {}
        self._turn = asyncio.Lock()
        self._shipping: asyncio.Task[None] | None = None
        self._fault: SinkError | None = None
        self._failing_since: float | None = None
        self._known = False
        self._lock = _locked(spool) if part_objects else None
        self._clock: Clock = SystemClock()

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        async with self._turn:
            if self._fault is not None:
                raise self._fault
            if not self._known:
                await self._check_access()
            # Only further writes can finish an open file.
            if self._spooled_bytes() > self._spool_bytes and self._finished():
                self._start_upload()
                raise SinkFull(
                    f"{self._spool} has more than {self._spool_bytes:,} bytes waiting for {self._bucket.url}",
                    hint="is the store up, and fast enough? Raise the limit with ?spool_bytes=N",
                )
            marks = await self._inner.write(records)
            if self._part_objects is not None:
                try:
                    await self._put_part_objects(marks, self._part_objects)
                except SinkError:
                    await self._inner.rewind(self._sizes)
                    raise
            self._sizes = dict(marks)
            self._start_upload()
            return marks

    async def _check_access(self) -> None:
        """Test write access with the first page, not after the first gigabyte."""
        try:
            await self._bucket.put(PROBE, b"")
        except SinkFull:
            # Without part objects, temporary faults are retried later.
            if self._part_objects is not None:
                raise
        self._known = True

    async def _put_part_objects(self, marks: Mapping[str, int], part_objects: dict[str, list[str]]) -> None:
        for mark, end in marks.items():
            begin = self._sizes.get(mark, 0)
            if end > begin:
                path = self._home / mark
                stem, dot, suffix = path.name.partition(".")
                name = f"{stem}-piece-{begin:012}{dot}{suffix}"
                await self._bucket.put(name, await asyncio.to_thread(_read, path, begin, end))
                # Recorded at once, so that it is also deleted if the next upload fails.
                known = part_objects.setdefault(path.name, [])
                if name not in known:
                    known.append(name)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        await self._inner.rewind(marks)
        self._sizes = {mark: marks.get(mark, 0) for mark in self._sizes}

    async def aclose(self) -> None:
        """Finish all files and upload them; SinkError if the bucket does not accept them."""
        async with self._turn:
            await self._inner.aclose()
            self._failing_since = None
            while self._fault is None and self._finished():
                self._start_upload()
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
        elif self._part_objects is None:
            raise self._fault or SinkError(
                f"{len(left)} files are not uploaded to {self._bucket.url}; they are kept in {self._spool}",
                hint="run the same command again to upload them",
            )
        else:
            self._clear()
            log.warning("%s has %d files only as part objects: their upload failed", self._bucket.url, len(left))

    def _clear(self) -> None:
        """Remove the empty folders of a fleet's worker."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            shutil.rmtree(self._spool, ignore_errors=True)

    def _start_upload(self) -> None:
        """Start uploading finished files, unless an upload is running."""
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
                # Reported by the next call.
                self._fault = _translate_error(final[0])
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
        if self._part_objects and (part_objects := self._part_objects.pop(path.name, [])):
            try:
                await self._bucket.delete(part_objects)
            except SinkError as error:
                log.warning("%d part objects of %s were not deleted: %s", len(part_objects), path.name, error)
        path.unlink()

    def _has_failed_for(self, seconds: float) -> bool:
        return self._failing_since is not None and self._clock.monotonic() - self._failing_since > seconds

    def _finished(self) -> list[Path]:
        """Return finished files to upload, an index after its file."""
        finished = [path for path in self._spool.iterdir() if path.suffix not in (_OPEN, "") and path.name[0] != "."]
        return sorted(finished, key=lambda path: (path.suffix == ".cdxj", path.name))

    def _spooled_bytes(self) -> int:
        total = 0
        for entry in os.scandir(self._spool):
            with suppress(FileNotFoundError):
                total += entry.stat().st_size
        return total


def open_objects(opening: Opening) -> ObjectSink:
    """Open the sinks `s3://bucket/prefix` and `warc+s3://bucket/prefix`, and the same with gs, az, and file."""
    form, _, scheme = opening.kind.rpartition("+")
    address, _, query = opening.target.partition("?")
    options = _options(query)
    bucket = Bucket(f"{scheme}:{address}".rstrip("/"), endpoint=options.endpoint, region=options.region)
    home = opening.folder.absolute()
    in_fleet = opening.marks is None
    spool, name = _new_spool(home) if in_fleet else _own_spool(home, opening)
    prefix = f"{re.sub(r'[^A-Za-z0-9_]+', '_', home.name)[:60]}-{name}"
    # Several files share the space of the spool.
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
    return ObjectSink(inner, bucket, spool, home=home, part_objects=in_fleet, spool_bytes=options.spool_bytes)


def _options(query: str) -> BucketOptions:
    given = dict(parse_qsl(query))
    if unknown := given.keys() - set(BucketOptions._fields):
        raise ConfigError(
            f"sink: unknown options: {', '.join(sorted(unknown))}", hint=f"use {', '.join(BucketOptions._fields)}"
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
    """Return a local job's spool and the name of its objects, stored in it, so that no two jobs share one."""
    spool = home / SPOOL / _spool_name(f"{opening.kind}:{opening.target}")
    try:
        spool.mkdir(parents=True, exist_ok=True)
        named = set(map(_spool_name, opening.settings.sink))
        for other in (home / SPOOL).iterdir():
            if other.name not in named and any(path.suffix for path in other.iterdir()):
                log.warning("%s has files for a bucket that is no longer a sink of the job; add its sink again", other)
        if not (spool / _NAME).exists():
            files.replace(spool / _NAME, secrets.token_hex(4).encode())
            files.sync_folder(spool)
        return spool, (spool / _NAME).read_text("ascii")
    except OSError as error:
        raise files.translate_error(error) from error


def _spool_name(sink: str) -> str:
    place = sink.partition("?")[0]
    return f"{sink.partition(':')[0]}-{blake2b(place.encode(), digest_size=4).hexdigest()}"


def _new_spool(home: Path) -> tuple[Path, str]:
    """Create a spool for this run of a fleet's worker. The data of crashed ones here are in the bucket already."""
    machine, name = quote(os.uname().nodename, safe=""), secrets.token_hex(4)
    try:
        for other in (home / SPOOL).glob(f"{machine}-*"):
            if _is_dead(other):
                shutil.rmtree(other, ignore_errors=True)
        spool = home / SPOOL / f"{machine}-{name}"
        spool.mkdir(parents=True)
        return spool, name
    except OSError as error:
        raise files.translate_error(error) from error


def _locked(spool: Path) -> int:
    descriptor = os.open(spool / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    files.lock(descriptor)
    return descriptor


def _is_dead(spool: Path) -> bool:
    try:
        descriptor = os.open(spool / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return files.lock(descriptor)
    finally:
        os.close(descriptor)


def _translate_error(fault: BaseException) -> SinkError:
    if isinstance(fault, SinkError):
        return fault
    if isinstance(fault, OSError):
        return files.translate_error(fault)
    raise fault


def _read(path: Path, begin: int, end: int) -> bytes:
    with path.with_name(path.name + _OPEN).open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)
