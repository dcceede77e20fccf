"""A real server of buckets for tests, and a way to it that breaks."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Literal, Self
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from gossamer.engine.supervision import dies_with_us
from gossamer.errors import ConfigError
from gossamer.testing.servers import free_port

_HOST = "127.0.0.1"
_BUCKET_START_SECONDS = 60.0
BucketFault = Literal["", "refuse", "503", "cut"]


class BucketServer:
    """An S3 server (moto) of its own on a free port of the loopback, in memory; it dies with whoever started it."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for _ in range(5):
            self.port = free_port()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=dies_with_us(),  # noqa: PLW1509
            )
            if self._answers():
                return self
            self.__exit__()
        raise ConfigError("the server of buckets does not start", hint="pip install 'moto[server]'")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        ends_at = time.monotonic() + _BUCKET_START_SECONDS
        while time.monotonic() < ends_at and self._process.poll() is None:
            try:
                socket.create_connection((_HOST, self.port), 1.0).close()
                return True
            except OSError:
                time.sleep(0.05)
        return False

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def environment(self, port: int = 0) -> dict[str, str]:
        """What a client has to have in its environment; `port` is that of a proxy before this server."""
        return {
            "AWS_ENDPOINT_URL": f"http://{_HOST}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "hidden-from-logs",
            "AWS_REGION": "us-east-1",
        }

    def make(self, bucket: str) -> None:
        """Make a bucket."""
        self._ask("PUT", f"/{bucket}")

    def objects(self, bucket: str) -> Mapping[str, bytes]:
        """All that is in a bucket, by name, as any client gets it."""
        found, more = {}, ""
        while True:
            listing = ElementTree.fromstring(self._ask("GET", f"/{bucket}?list-type=2&encoding-type=url{more}"))  # noqa: S314
            space = listing.tag.removesuffix("ListBucketResult")
            for entry in listing.iter(f"{space}Contents"):
                name = unquote(entry.findtext(f"{space}Key", ""))
                found[name] = self._ask("GET", f"/{bucket}/{quote(name)}")
            token = listing.findtext(f"{space}NextContinuationToken")
            if not token:
                return found
            more = f"&continuation-token={quote(token, safe='')}"

    def unfinished(self, bucket: str) -> int:
        """How many uploads in several parts were begun and not ended."""
        return self._ask("GET", f"/{bucket}?uploads").count(b"<Upload>")

    def _ask(self, method: str, path: str) -> bytes:
        # The server looks at who asks, not at the signature.
        who = "AWS4-HMAC-SHA256 Credential=tester/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        request = Request(f"http://{_HOST}:{self.port}{path}", method=method, headers={"Authorization": who})
        with urlopen(request, timeout=30) as answer:  # noqa: S310
            data: bytes = answer.read()
            return data


class FaultyStore:
    """A way to a server of buckets, in a thread of its own: `port` is where clients connect.

    `refuse` takes no connections, `503` answers so to every request, `cut` ends a connection when `after_bytes` have
    come over it; every answer waits for `latency_seconds`. May be changed at any time: open connections then end."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.latency_seconds = 0.0
        self.after_bytes = 0
        self.faults = 0
        self._fault: BucketFault = ""
        self._server_port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def fault(self) -> BucketFault:
        """What is broken at the moment."""
        return self._fault

    @fault.setter
    def fault(self, fault: BucketFault) -> None:
        self._fault = fault
        self._loop.call_soon_threadsafe(self._abort)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _abort(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        self._abort()
        while self._open:
            await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._fault == "refuse":
                self.faults += 1
            elif self._fault == "503":
                self.faults += 1
                await reader.read(1 << 16)
                writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            else:
                await self._pass(reader, writer)
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._open.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection(_HOST, self._server_port)
        self._open.add(server)

        async def forward() -> None:
            seen = 0
            while data := await reader.read(1 << 16):
                seen += len(data)
                if self._fault == "cut" and seen > self.after_bytes:
                    self.faults += 1
                    writer.transport.abort()
                    break
                server.write(data)
                await server.drain()
            server.transport.abort()

        async def answer() -> None:
            while data := await answers.read(1 << 16):
                await asyncio.sleep(self.latency_seconds)
                writer.write(data)
                await writer.drain()
            writer.transport.abort()

        try:
            await asyncio.gather(forward(), answer(), return_exceptions=True)
        finally:
            server.transport.abort()
            self._open.discard(server)
