"""Objects in Azure Blob Storage, on Azurite, Microsoft's emulator; skipped with a message where it is missing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from gossamer.engine.supervision import dies_with_us
from gossamer.settings import Settings
from gossamer.storage.registry import open_sinks
from gossamer.testing.servers import free_port
from gossamer.testing.sink_writer import visit

ACCOUNT = "devstoreaccount1"
# The key that everybody's Azurite has.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("azurite-blob") is None,
        reason="azurite-blob is not installed: az:// is not checked (npm install -g azurite)",
    ),
]


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    process = subprocess.Popen(
        ["azurite-blob", *options, "--skipApiVersionCheck", "--disableTelemetry"],
        stdout=subprocess.DEVNULL,
        preexec_fn=dies_with_us(),  # noqa: PLW1509
    )
    try:
        ends_at = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                assert time.monotonic() < ends_at, "it does not start"
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def ask(port: int, method: str, path: str, query: str) -> bytes:
    """A request with the signature that the store wants."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    named = "".join(f"\n{part.replace('=', ':', 1)}" for part in sorted(query.split("&")))
    place = f"/{ACCOUNT}/{ACCOUNT}{path}{named}"
    text = "\n".join((method, *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}", place))
    digest = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {ACCOUNT}:{digest}"}
    address = f"http://127.0.0.1:{port}/{ACCOUNT}{path}?{query}"
    with urlopen(Request(address, method=method, headers=headers), timeout=30) as answer:
        data: bytes = answer.read()
        return data


def test_lines_and_archives_are_uploaded_to_a_container(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(port, "PUT", "/crawls", "restype=container")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/{ACCOUNT}")

    async def run() -> None:
        for sink in open_sinks(Settings(sink=("az://crawls/lines", "warc+az://crawls/warcs")), tmp_path, {}):
            await sink.write([visit(number, size=3_000_000 if number == 3 else 1000) for number in range(4)])
            await sink.aclose()

    asyncio.run(run())
    listed = ask(port, "GET", "/crawls", "comp=list&restype=container").decode()
    sizes = dict(re.findall(r"<Name>(.*?)</Name>.*?<Content-Length>(\d+)", listed))
    kinds = {name.partition("/")[0] + "".join(Path(name).suffixes[-2:]): int(size) for name, size in sizes.items()}
    assert {"lines.jsonl.zst", "warcs.warc.gz", "warcs.cdxj"} <= set(kinds)
    assert kinds["warcs.warc.gz"] > 1_000_000
