"""Recorded responses of hostile and odd servers, through the downloader: each ends with a typed result, in time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from score import Score, tally

from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.download.base import Downloader
from gossamer.errors import ConnectFailed, FetchError
from gossamer.model import Request, Response
from gossamer.settings import build

SHARED = Path(__file__).parents[2].parent / "shared"
SUITES = SHARED / "suites"
READS = ("http-curl", "http-wpt", "http-scrapy-compressed")
BODY = b"Fact: this is really forty-two bytes long."
LIMITS = {"connect_seconds": 5, "fetch_seconds": 10, "max_body_bytes": 1_000_000, "max_decoded_bytes": 2_000_000}
BROKEN = {1, 8, 18, 52, 56, 61}
"""Exits of curl that say that the answer was not a whole and good one."""
Found = Response | FetchError | None


def scores() -> list[Score]:
    """One score for each collection of replies."""
    with _server() as port:
        return asyncio.run(_scores(port))


async def _scores(port: int) -> list[Score]:
    (index,) = await _fetch_all(port, ["/index.json"])
    assert isinstance(index, Response)
    paths = json.loads(index.body)
    # What must be whole goes over connections of its own: odd replies may leave something behind on theirs.
    packed_paths = [path for path in paths if path.startswith("/bomb/")]
    odd_paths = [path for path in paths if not path.startswith(("/bomb/", "/live/"))]
    found = {
        path: answer
        for some in (packed_paths, odd_paths)
        for path, answer in zip(some, await _fetch_all(port, some), strict=True)
    }
    lengths = await _lengths()
    exits = {case["test"]: case["curl_exit"] for case in _json("http-curl/replies.json")}
    curl = {str(test): _ends_well(found[f"/curl/{test}"], broken=exits[test] in BROKEN) for test in exits}
    odd = {path: answer is not None for path, answer in found.items() if path.startswith("/asis/")}
    packed = {path: _unpacked(path, answer) for path, answer in found.items() if path.startswith("/bomb/")}
    return [
        tally("http-curl", curl),
        tally("http-wpt-parsing", odd),
        tally("http-wpt-content-length", lengths),
        tally("http-scrapy-compressed", packed),
    ]


def _ends_well(answer: Found, *, broken: bool) -> bool:
    """Whether it ended, and was not taken for a whole page where curl found it broken."""
    return answer is not None and not (
        broken and isinstance(answer, Response) and answer.status == 200 and not answer.cut
    )


def _unpacked(path: str, answer: Found) -> bool:
    if "/bomb-" in path:
        return isinstance(answer, Response) and answer.cut.startswith(("max_decoded_bytes:", "max_body_bytes:"))
    return isinstance(answer, Response) and answer.body.endswith(b"</html>\n")


async def _fetch_all(port: int, paths: Iterable[str]) -> list[Found]:
    downloader = open_downloader(build({"allow_private": True, **LIMITS}), clock=SystemClock())
    places = asyncio.Semaphore(40)

    async def get(path: str) -> Found:
        async with places:
            return await _ended(downloader, f"http://127.0.0.1:{port}{path}")

    try:
        return await asyncio.gather(*map(get, paths))
    finally:
        await downloader.aclose()


async def _ended(downloader: Downloader, url: str) -> Found:
    """Return the result of a fetch; None if it exceeds its timeout by more than a second."""
    found: Found = None
    for _ in range(2):
        try:
            async with asyncio.timeout(LIMITS["fetch_seconds"] + 1):
                return await downloader.fetch(Request(url))
        except ConnectFailed as error:
            # A kept-alive connection may close just when it is reused: retry once, like other clients.
            found = error
        except FetchError as error:
            return error
        except TimeoutError:
            return None
    return found


async def _lengths() -> dict[str, bool]:
    """Content-Length in every spelling, before a body of 42 bytes: so much of it is read, or the answer is refused."""
    cases = _json("http-wpt/fetch/content-length/resources/content-lengths.json")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1][1:])
        head = f"HTTP/1.1 200 OK\r\n{cases[number]['input']}\r\nContent-Type: text/plain\r\n\r\n"
        writer.write(head.encode("latin-1") + BODY)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = await _fetch_all(port, [f"/{number}" for number in range(len(cases))])
    server.close()
    results = {}
    for case, answer in zip(cases, found, strict=True):
        read = len(answer.body) if isinstance(answer, Response) else None
        results[repr(case["input"])] = read == case["output"]
    return results


@contextmanager
def _server() -> Iterator[int]:
    words = [sys.executable, str(SHARED / "tools" / "rawserver.py"), "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rsplit(":", 1)[1])
        finally:
            process.kill()


def _json(name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((SUITES / name).read_text("utf-8"))
    return found
