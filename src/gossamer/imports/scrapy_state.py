"""Reads the saved state of Scrapy (JOBDIR) and scrapy-redis: request queues and fingerprints."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossamer.errors import ConfigError, Unavailable
from gossamer.extras import unusable
from gossamer.imports.importer import Finding, ImportedFingerprint, ImportedRequest, Unread
from gossamer.imports.pickles import UnsafePickle, read_marshal, read_pickle

_SQLITE = b"SQLite format 3\0"
_PICKLE = b"\x80"
_AT_ONCE = 1000


def is_jobdir(path: Path) -> bool:
    """Whether the folder is a JOBDIR of Scrapy."""
    return (path / "requests.queue").is_dir() or (path / "requests.seen").is_file()


def read_jobdir(path: Path) -> Iterator[Finding]:
    """Read the queued requests of a JOBDIR, from any of Scrapy's disk queues, and its fingerprints.

    If Scrapy was killed, this finds more requests than Scrapy itself would."""
    queues = path / "requests.queue"
    for file in sorted(each for each in queues.rglob("*") if each.is_file()):
        if file.name not in ("active.json", "info.json"):
            for packed in _records(file):
                yield _request(packed, str(file.relative_to(path)))
    yield from map(ImportedFingerprint, _fingerprints(path / "requests.seen"))


def _records(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        head = opened.read(len(_SQLITE))
    if head == _SQLITE:
        return _rows(file)
    return _forwards(file) if (file.parent / "info.json").exists() or _is_chunk(file) else _backwards(file)


def _is_chunk(file: Path) -> bool:
    return len(file.name) == 6 and file.name[0] == "q" and file.name[1:].isdecimal()


def _rows(file: Path) -> Iterator[bytes]:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        for (item,) in database.execute("SELECT item FROM queue ORDER BY id"):
            yield item


def _forwards(file: Path) -> Iterator[bytes]:
    """Read a FIFO queue: sizes precede the records, and the file ends with the read position."""
    start = 0
    try:
        number, _, offset = json.loads((file.parent / "info.json").read_text("utf-8"))["tail"]
        start = int(offset) if file.name == f"q{number:05d}" else 0
    except (OSError, ValueError, KeyError, TypeError):
        # Scrapy was killed before it wrote the position: requests that it has read already are known by their keys.
        pass
    data = file.read_bytes()
    while start + 4 <= len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        if start + 4 + size > len(data):
            return
        yield data[start + 4 : start + 4 + size]
        start += 4 + size


def _backwards(file: Path) -> Iterator[bytes]:
    """Read a LIFO queue from its end: sizes follow the records. The count in its header is stale after a kill."""
    data = file.read_bytes()
    end = len(data)
    while end >= 8:
        size = int.from_bytes(data[end - 4 : end], "big")
        if size > end - 8:
            return
        yield data[end - 4 - size : end - 4]
        end -= 4 + size


def _fingerprints(file: Path) -> Iterator[bytes]:
    """Read fingerprints: length-prefixed, or as lines of hexadecimal digits from older versions."""
    data = file.read_bytes() if file.exists() else b""
    if data[:1].isalnum():
        for line in data.split():
            try:
                yield bytes.fromhex(line.decode("ascii"))
            except ValueError:
                continue
        return
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        if at + 2 + size > len(data):
            return
        yield data[at + 2 : at + 2 + size]
        at += 2 + size


def read_scrapy_redis(
    url: str, spider: str, *, queue: str = "", dupefilter: str = "", start: str = ""
) -> Iterator[Finding]:
    """Read the queue, the start URLs, and the dupefilter of a scrapy-redis spider; Redis stays unchanged."""
    try:
        import redis
    except ImportError as missing:
        raise unusable("redis", "Redis", missing) from missing
    names = queue or f"{spider}:requests", start or f"{spider}:start_urls", dupefilter or f"{spider}:dupefilter"
    try:
        with redis.Redis.from_url(url) as store:
            if not any(store.exists(name) for name in names):
                raise ConfigError(
                    f"Redis has none of the keys {', '.join(names)}",
                    hint="name other keys with --queue-key and --dupefilter-key; "
                    "scrapy-redis deletes its keys after a crawl unless SCHEDULER_PERSIST is set",
                )
            if queue and not store.exists(queue):
                # Without the queue, its requests would count as fetched, because the dupefilter contains them.
                raise ConfigError(f"Redis has no key {queue}", hint="name the queue with --queue-key")
            for packed in _members(store, names[0]):
                yield _request(packed, names[0])
            for line in _members(store, names[1]):
                yield _start(line)
            for digits in _members(store, names[2]):
                try:
                    yield ImportedFingerprint(bytes.fromhex(digits.decode("ascii")))
                except ValueError:
                    yield Unread(names[2], f"{digits[:40]!r} is not a fingerprint")
    except redis.RedisError as error:
        raise Unavailable(f"Redis: {error}") from error


def _members(store: Any, name: str) -> Iterator[bytes]:
    """Iterate over a list, a set, or a sorted set, in batches."""
    kind = store.type(name)
    if kind == b"list":
        for first in range(0, store.llen(name), _AT_ONCE):
            yield from store.lrange(name, first, first + _AT_ONCE - 1)
    elif kind == b"zset":
        for first in range(0, store.zcard(name), _AT_ONCE):
            yield from store.zrange(name, first, first + _AT_ONCE - 1)
    elif kind == b"set":
        yield from store.sscan_iter(name, count=_AT_ONCE)
    elif kind != b"none":
        raise ConfigError(f"{name} is a {kind.decode()} in Redis, not a queue of scrapy-redis")


def _start(line: bytes) -> Finding:
    """Read a start URL, or the JSON object that scrapy-redis accepts instead."""
    text = line.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return ImportedRequest(text)
    try:
        given = json.loads(text)
        unknown = set(given) - {"url", "meta", "method"}
        if unknown:
            return Unread(text[:80], f"{', '.join(sorted(unknown))}: only url, method, and meta can be imported")
        fields = {"url": given["url"], "method": given.get("method", "GET").upper(), "meta": given.get("meta", {})}
        return _found(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Unread(text[:80], f"not a start URL: {error!r}")


def _request(packed: bytes, place: str) -> Finding:
    try:
        if packed.startswith(_PICKLE) and packed[1:2] <= b"\x05":
            fields = read_pickle(packed)
        elif packed.startswith(b"{"):
            # Either JSON, or a marshal dict, which begins with the same byte.
            try:
                fields = json.loads(packed)
            except ValueError:
                fields = read_marshal(packed)
        elif packed[:1] in (b"\xfb", b"\xdb"):
            fields = read_marshal(packed)
        else:
            fields = read_pickle(packed)
        return _found(fields)
    except UnsafePickle as error:
        return Unread(error.url or f"a request in {place}", str(error), error.url)
    except (KeyError, TypeError, AttributeError) as error:
        return Unread(f"a request in {place}", str(error))


def _found(fields: dict[str, Any]) -> ImportedRequest:
    body = fields.get("body") or b""
    fields["body"] = body.encode() if isinstance(body, str) else bytes(body)
    priority = fields.get("priority", 0)
    return ImportedRequest(
        str(fields["url"]),
        str(fields.get("method", "GET")).upper(),
        fields["body"],
        priority if isinstance(priority, int) else 0,
        fields=fields,
    )
