"""The blocking downloader: like the HTTP/2 downloader, with each exchange on a thread of a bounded pool."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyreqwest.client import SyncClient, SyncClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.http import HeaderMap

from gossamer.clock import Clock
from gossamer.download.client import HttpCall, HttpReply
from gossamer.download.dns import NameResolver
from gossamer.download.http2 import Body, Http2Downloader, build_request
from gossamer.download.proxies import Proxy
from gossamer.settings import Settings

MAX_THREADS = 256


class ThreadDownloader(Http2Downloader):
    """Fetches with a blocking client. A cancelled request continues in its thread until its timeout."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        resolver: NameResolver | None = None,
        *,
        accepts_any_certificate: bool = False,
    ) -> None:
        super().__init__(settings, clock, resolver, accepts_any_certificate=accepts_any_certificate)
        self._pool = ThreadPoolExecutor(min(settings.concurrency, MAX_THREADS), thread_name_prefix="fetch")

    async def aclose(self) -> None:
        # Closing the clients wakes their threads, so that the process does not wait for their timeouts.
        await super().aclose()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _build(self, pins: dict[str, str], proxy: Proxy | None = None) -> Any:
        return self._configured(SyncClientBuilder(), pins, proxy).build()

    async def _close(self, client: Any) -> None:
        client.close()

    async def _ask(self, client: Any, call: HttpCall, headers: HeaderMap | None, seconds: float) -> HttpReply:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._exchange_blocking, client, call, headers, seconds)

    def _exchange_blocking(
        self, client: SyncClient, call: HttpCall, headers: HeaderMap | None, seconds: float
    ) -> HttpReply:
        builder = build_request(client, call, headers, seconds)
        with builder.streamed_read_buffer_limit(0).build_streamed() as response:
            body = Body(
                call,
                response,
                self._clock.monotonic(),
                truncates=self._accepts_cut(call.request.label, "max_body_bytes:?"),
            )
            try:
                while body.wants_more and (piece := response.body_reader.read_chunk()) is not None:
                    body.add(piece)
            except PyreqwestError as error:
                body.broke_off(error)
            return body.reply()
