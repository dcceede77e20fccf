"""The downloader that blocks: the same, with the exchange itself on a thread of a bounded pool."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import BytesIO
from typing import Any

from pyreqwest.client import SyncClient, SyncClientBuilder

from gossamer.clock import Clock
from gossamer.download.client import READ_BYTES, Call, HttpDownloader, Reply
from gossamer.download.dns import Names
from gossamer.download.heads import body_bytes, too_large
from gossamer.download.oddheaders import readable
from gossamer.download.proxies import Proxy
from gossamer.settings import Settings

MAX_THREADS = 256


class ThreadDownloader(HttpDownloader):
    """Fetches with a blocking client. What is cancelled goes on in its thread until its time is over."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        resolver: Names | None = None,
        *,
        accepts_any_certificate: bool = False,
    ) -> None:
        super().__init__(settings, clock, resolver, accepts_any_certificate=accepts_any_certificate)
        self._pool = ThreadPoolExecutor(min(settings.concurrency, MAX_THREADS), thread_name_prefix="fetch")

    async def aclose(self) -> None:
        # Closing the clients wakes their threads, so that the process need not wait for them to time out.
        await super().aclose()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _build(self, pins: dict[str, str], proxy: Proxy | None = None) -> Any:
        return self._configured(SyncClientBuilder(), pins, proxy).build()

    async def _close(self, client: Any) -> None:
        client.close()

    async def _exchange(self, client: Any, call: Call) -> Reply:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._exchange_blocking, client, call)

    def _exchange_blocking(self, client: SyncClient, call: Call) -> Reply:
        builder = client.request(call.method, call.url)
        if call.headers is not None:
            builder = builder.headers(call.headers)
        if call.body:
            builder = builder.body_bytes(call.body)
        if call.seconds is not None:
            builder = builder.timeout(timedelta(seconds=call.seconds))
        with builder.streamed_read_buffer_limit(0).build_streamed() as response:
            headers_at = self._clock.monotonic()
            status = response.status
            headers, odd = readable(response.headers)
            length = body_bytes(call.method, status, headers, call.max_bytes, may_be_cut=call.may_be_cut)
            if length is not None and length <= READ_BYTES:
                body = response.bytes().to_bytes()
            else:
                whole = BytesIO()
                while (piece := response.body_reader.read(READ_BYTES)) is not None:
                    room = call.max_bytes - whole.tell()
                    if len(piece) > room:
                        if not call.may_be_cut:
                            raise too_large(call.max_bytes)
                        whole.write(memoryview(piece)[:room])
                        break
                    whole.write(piece)
                body = whole.getvalue()
            return Reply(status, response.version, headers, odd, body, headers_at)
