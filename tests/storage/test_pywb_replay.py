"""Archives as others see them: played back by a real pywb, from our files and our index as they are."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from gossamer.model import Exchange, Headers, PageRow, Record
from gossamer.storage.warc.sink import WarcSink

ROOT = Path(__file__).parents[2]
HTML: Headers = (("content-type", "text/html; charset=utf-8"), ("content-encoding", "zstd"))


@pytest.fixture(scope="session")
def pywb() -> Path:
    """The environment of pywb, created if missing; skipped with a message where it cannot be, which CI refuses."""
    place = Path(sys.prefix) / "pywb"
    made = subprocess.run(
        [ROOT / "scripts" / "pywb", place],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": ""},
    )
    if made.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"pywb cannot be installed: playback is not checked ({made.stderr.strip()[-200:]})")
    assert made.returncode == 0, made.stderr
    return place


@contextmanager
def playing(pywb: Path, archive: Path, folder: Path) -> Iterator[str]:
    """pywb over an archive; the address of the collection."""
    (folder / "config.yaml").write_text(
        f"collections:\n  job:\n    index: {archive}/\n    archive_paths: {archive}/\nenable_auto_fetch: false\n"
    )
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    log = (folder / "pywb.log").open("wb")
    process = subprocess.Popen(
        [pywb / "bin" / "wayback", "-b", "127.0.0.1", "-p", str(port)],
        cwd=folder,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": ""},
    )
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, (folder / "pywb.log").read_text()
                assert time.monotonic() < end, "pywb does not answer"
                time.sleep(0.1)
        yield f"{address}/job"
    finally:
        process.kill()
        process.wait()
        log.close()


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **more: object) -> None:
        return None


def get(url: str) -> tuple[int, bytes, dict[str, str]]:
    try:
        answer = urllib.request.build_opener(_Stay).open(quote(url, safe=":/?&=%#+"), timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()}


def page(number: int, url: str, body: bytes, *, status: int = 200, headers: Headers = HTML, digest: str = "") -> Record:
    # A day apart, so that each has a time of its own.
    row = PageRow(url=url, status=status, fetched_at=1_700_000_000.0 + 86_400 * number, digest=digest)
    exchange = Exchange(version="HTTP/2.0", address="192.0.2.1", headers=headers, wire_bytes=len(body) // 3)
    return Record(key=number, token=1, page=row, body=body, exchange=exchange)


@pytest.mark.timeout(400)
def test_pywb_replays_every_capture(tmp_path: Path, pywb: Path) -> None:
    body = "<html><head></head><body>Grüße, <a href='/x'>x</a></body></html>".encode()
    digest = hashlib.sha1(body).hexdigest()
    records = [
        page(0, "https://www.site.example/Path/?b=2&a=%C3%BC", body),
        page(1, "http://other.example:8080/copy", body),
        page(2, "https://www.site.example/Path/?b=2&a=%C3%BC", b"", status=304, digest=digest),
        page(3, "http://127.0.0.9:81/a;b,c/%7Euser", b"plain", headers=(("content-type", "text/plain"),)),
        page(4, "http://site.example/moved", b"", status=302, headers=(("location", "http://site.example/there"),)),
        page(5, "http://site.example/gone", b"gone " * 9, status=410),
        page(6, "http://site.example/evil", b"WARC/1.1\r\n\r\n", headers=(("x-evil", "a\r\n\r\nWARC/1.1\r\n"),)),
    ]

    async def write() -> None:
        sink = WarcSink(tmp_path / "archive", {}, prefix="job", max_bytes=1_000)
        for record in records:
            await sink.write([record])
        await sink.aclose()

    asyncio.run(write())
    with playing(pywb, tmp_path / "archive", tmp_path) as collection:
        for record in records:
            stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(record.page.fetched_at))
            status, played, headers = get(f"{collection}/{stamp}id_/{record.page.url}")
            expected = body if record.page.status == 304 else record.body
            assert (status, played) == (200 if record.page.status == 304 else record.page.status, expected), record.page
        assert headers["memento-datetime"].startswith("Mon, 20 Nov 2023")
        rewritten = get(f"{collection}/mp_/{records[0].page.url}")[1].decode()
        assert "Grüße" in rewritten
        # Links lead to the archive, not to the web.
        assert "mp_/https://www.site.example/x" in rewritten
        _, listed, _ = get(f"{collection}/cdx?url=https://site.example/path?a=%C3%BC%26b=2")
        assert len(listed.splitlines()) == 1
