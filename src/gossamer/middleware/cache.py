"""An HTTP cache in a folder, for development: write and rerun a spider without fetching each time."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from pathlib import Path

import msgspec

from gossamer.clock import Clock
from gossamer.errors import ConfigError
from gossamer.middleware import Fetch, Middleware
from gossamer.model import Request, Response


def cache(folder: Path, clock: Clock) -> Middleware:
    """Return cached responses from the folder, whatever their age, and store the others. For development only.

    The cache key is method, URL, and body; request headers and cookies are ignored. Not cached are 206 and 304, which
    depend on request headers, and 429 and 5xx, which are temporary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cache: {folder}: {error.strerror}", hint="name a writable folder") from None
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Response)

    def load(path: Path) -> Response | None:
        try:
            return decoder.decode(path.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def save(path: Path, response: Response) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        draft.write_bytes(encoder.encode(response))
        os.replace(draft, path)

    def wrap(fetch: Fetch) -> Fetch:
        async def fetch_or_recall(request: Request) -> Response:
            path = _path(folder, request)
            known = await asyncio.to_thread(load, path)
            if known is not None:
                return msgspec.structs.replace(known, from_cache=True, headers_at=clock.monotonic())
            response = await fetch(request)
            if response.status not in (206, 304, 429) and response.status < 500:
                await asyncio.to_thread(save, path, response)
            return response

        return fetch_or_recall

    return wrap


def _path(folder: Path, request: Request) -> Path:
    digest = hashlib.sha256(b"\0".join((request.method.encode(), request.url.encode(), request.body))).hexdigest()
    return folder / digest[:2] / f"{digest[2:]}.msgpack"
