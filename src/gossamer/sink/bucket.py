"""A bucket of an object store, or a folder that stands for one: objects are put there whole, or not at all."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.extras import unusable
from gossamer.sink import disk

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
    """A store and a prefix, as `scheme://bucket/prefix` names them; credentials are those of the environment."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in _ENDPOINTS or not (parts.netloc or parts.scheme == "file"):
            raise ConfigError("sink: no such object store", hint="there are s3://, gs://, az:// and file:///path")
        if "@" in parts.netloc:
            raise ConfigError(
                "sink: credentials do not belong into the address of a bucket",
                hint="export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=..., or what the store's own tools take",
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
            # What takes longer than this is tried again by who called, and said aloud.
            options["retry_config"] = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
        try:
            self._store = from_url(url, **options)
        except (faults.BaseError, ValueError) as error:
            raise ConfigError(f"sink {url}: {_said(error)}", hint="as in s3://bucket/prefix") from None

    async def put(self, name: str, source: Path | bytes) -> None:
        """Store an object, in several parts if it is large; returns when the store has all of it."""
        try:
            await obstore.put_async(self._store, name, source, chunk_size=_CHUNK_BYTES, max_concurrency=_PUTS_AT_ONCE)
            if self._folder is not None:
                await asyncio.to_thread(_sync, self._folder / name)
            if isinstance(source, Path):
                found = (await obstore.head_async(self._store, name))["size"]
                if found != source.stat().st_size:
                    raise SinkError(f"{self.url}/{name} has {found} bytes, and {source} {source.stat().st_size}")
        except (faults.BaseError, OSError) as error:
            raise self._in_words(error) from error

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there are no fault."""
        try:
            await obstore.delete_async(self._store, list(names))
        except FileNotFoundError:
            pass
        except (faults.BaseError, OSError) as error:
            raise self._in_words(error) from error

    def _in_words(self, error: Exception) -> SinkError:
        if isinstance(error, _STOPS):
            return SinkError(
                f"{self.url}: {_said(error)}", hint="is there such a bucket, and may these credentials write to it?"
            )
        return SinkFull(f"{self.url}: {_said(error)}", hint="is the store up, and reachable from here?")


def _sync(path: Path) -> None:
    # The library leaves that to the system's leisure.
    with path.open("rb") as file:
        os.fsync(file.fileno())
    disk.sync_folder(path.parent)


def _said(error: Exception) -> str:
    """The first line of an error, without what may be a signature."""
    return re.sub(r"\?\S+", "?...", (str(error).splitlines() or [""])[0])[:300]
