"""Buckets that are away, slow or refuse, and writers that are killed in the middle of an upload."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gossamer.compression import zstd
from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.model import Rejected
from gossamer.settings import Settings
from gossamer.storage.objects import ObjectSink
from gossamer.storage.registry import fleet_sinks, open_sinks
from gossamer.testing.servers import BucketFault, BucketServer, FaultyStore
from gossamer.testing.sink_writer import WriterTask, command, visit


@pytest.fixture
def bucket(bucket_server: BucketServer) -> str:
    name = f"b{secrets.token_hex(6)}"
    bucket_server.make(name)
    return name


@pytest.fixture
def store(bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A way to the server that breaks, as the endpoint of the environment."""
    with FaultyStore(bucket_server.port) as proxy:
        for name, value in bucket_server.environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


def opened(folder: Path, name: str, *, fleet: bool = False, marks: dict[str, int] | None = None) -> ObjectSink:
    settings = Settings(sink=(name,))
    (sink,) = fleet_sinks(settings, folder, "one") if fleet else open_sinks(settings, folder, marks or {})
    assert isinstance(sink, ObjectSink)
    sink.patience_seconds = 0.5
    return sink


def pages(server: BucketServer, bucket: str) -> Counter[int]:
    """How often each page's line is in the bucket."""
    found: Counter[int] = Counter()
    for name, data in server.objects(bucket).items():
        if name.startswith("pages-"):
            whole = zstd.decompress(data)
            found.update(json.loads(line)["key"] - 1 for line in whole.splitlines())
    return found


@pytest.mark.parametrize("fault", ["503", *(pytest.param(one, marks=pytest.mark.long) for one in ("cut", "refuse"))])
def test_crawl_continues_without_its_bucket_and_the_next_run_uploads(
    tmp_path: Path,
    bucket_server: BucketServer,
    bucket: str,
    store: FaultyStore,
    fault: BucketFault,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F61. Data in the spool is durable; the first run that reaches the bucket uploads it, once."""
    marks: dict[str, int] = {}

    async def run() -> None:
        store.fault, store.after_bytes = fault, 100
        sink = opened(tmp_path, f"s3://{bucket}?object_seconds=0")
        for number in range(4):
            marks.update(await sink.write([visit(number)]))
        with pytest.raises(SinkError, match="kept in") as caught:
            await sink.aclose()
        assert not isinstance(caught.value, SinkFull)
        assert store.faults
        assert not pages(bucket_server, bucket)
        store.fault = ""
        # Another bucket does not get them, and that is said.
        await opened(tmp_path, f"file://{tmp_path}/other").aclose()
        assert "no longer a sink of the job" in caplog.text
        sink = opened(tmp_path, f"s3://{bucket}?object_seconds=0", marks=marks)
        await sink.write([visit(4)])
        await sink.aclose()

    asyncio.run(run())
    assert pages(bucket_server, bucket) == Counter(range(5))
    assert not list((tmp_path / "spool").rglob("*.zst*"))


@pytest.mark.parametrize("fault", ["refuse", pytest.param("503", marks=pytest.mark.long)])
def test_fleet_worker_commits_only_uploaded_data(
    tmp_path: Path, bucket_server: BucketServer, bucket: str, store: FaultyStore, fault: BucketFault
) -> None:
    """F61. Small objects at once, and one in their place when it is whole."""

    async def run() -> None:
        sink = opened(tmp_path, f"s3://{bucket}", fleet=True)
        await sink.write([visit(0)])
        assert pages(bucket_server, bucket) == Counter([0])
        store.fault = fault
        for _ in range(2):
            with pytest.raises(SinkFull):
                await sink.write([visit(1), visit(2)])
        store.fault = ""
        await sink.write([visit(1), visit(2)])
        assert pages(bucket_server, bucket) == Counter(range(3))
        assert len([name for name in bucket_server.objects(bucket) if "-piece-" in name]) == 4
        await sink.aclose()

    asyncio.run(run())
    assert pages(bucket_server, bucket) == Counter(range(3))
    assert not [name for name in bucket_server.objects(bucket) if "-piece-" in name]
    assert not list((tmp_path / "spool").iterdir())


def test_broken_upload_is_repeated_completely(
    tmp_path: Path, bucket_server: BucketServer, bucket: str, store: FaultyStore
) -> None:
    """F61. Also for multipart uploads; objects are complete, byte for byte."""
    order = WriterTask(0, 2, {}, 2_500_000, "gossamer.storage.objects:open_objects", "warc+s3")
    order = order._replace(target=f"//{bucket}?object_bytes=100000000", ending="close")
    store.fault, store.after_bytes = "cut", 3_000_000
    with subprocess.Popen(command(order, tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        (spool,) = (tmp_path / "spool").iterdir()
        for _ in range(600):
            if store.faults:
                break
            asyncio.run(asyncio.sleep(0.1))
        process.kill()
    assert store.faults
    (left,) = spool.glob("*.warc.gz")
    data = left.read_bytes()
    assert not [name for name in bucket_server.objects(bucket) if name.endswith(".gz")]
    store.fault = ""
    subprocess.run(command(order._replace(batches=0, marks=json.loads(lines[-1])), tmp_path), check=True)
    stored = bucket_server.objects(bucket)
    assert stored[left.name] == data
    assert len(data) > 19_000_000
    assert {name.partition(".")[2] for name in stored if name[0] != "."} == {"warc.gz", "cdxj"}


def test_crawl_waits_when_the_spool_is_full(
    tmp_path: Path, bucket_server: BucketServer, bucket: str, store: FaultyStore
) -> None:
    async def run() -> int:
        store.fault = "refuse"
        sink, number = opened(tmp_path, f"s3://{bucket}?spool_bytes=20000&object_seconds=0"), 0
        while True:
            try:
                await sink.write([visit(number, title=secrets.token_hex(1000))])
            except SinkFull:
                break
            number += 1
        assert 10 < number < 40
        store.fault = ""
        async with asyncio.timeout(30):
            while True:
                try:
                    await sink.write([visit(number)])
                    break
                except SinkFull:
                    await asyncio.sleep(0.1)
        await sink.aclose()
        return number

    number = asyncio.run(run())
    assert pages(bucket_server, bucket) == Counter(range(number + 1))


@pytest.mark.long
def test_slow_bucket_does_not_slow_the_crawl(
    tmp_path: Path, bucket_server: BucketServer, bucket: str, store: FaultyStore
) -> None:
    """Files go there while others are written."""
    store.latency_seconds = 0.2

    async def run() -> None:
        sink = opened(tmp_path, f"s3://{bucket}?object_seconds=0")
        for number in range(8):
            await sink.write([visit(number)])
        assert len(pages(bucket_server, bucket)) < 8
        await sink.aclose()

    asyncio.run(run())
    assert pages(bucket_server, bucket) == Counter(range(8))


def test_unwritable_bucket_is_reported_with_the_first_page(
    tmp_path: Path, bucket: str, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        sink = opened(tmp_path, "s3://no-such-bucket-here/x")
        with pytest.raises(SinkError, match="no-such-bucket-here") as caught:
            asyncio.run(sink.write([visit(0)]))
    assert not isinstance(caught.value, SinkFull)
    for wrong in ("s3://key:s3cr3t@bucket/x", f"s3://{bucket}?nosuch=1", f"s3://{bucket}?spool_bytes=many", "s3:///x"):
        with pytest.raises(ConfigError) as refused:
            opened(tmp_path, wrong)
        assert "s3cr3t" not in f"{refused.value} {refused.value.hint}"
    assert "hidden-from-logs" not in f"{caught.value} {caplog.text}"
    assert "s3cr3t" not in caplog.text


def test_a_folder_can_stand_for_a_bucket(tmp_path: Path) -> None:
    async def run() -> None:
        sink = opened(tmp_path / "job", f"file://{tmp_path}/there")
        odd = Rejected(url="http://e.example/", field="price", error="missing", item={"name": "x"})
        await sink.write([visit(0), msgspec.structs.replace(visit(1), rejected=(odd,))])
        await sink.aclose()

    asyncio.run(run())
    found = {path.name.partition("-")[0]: path for path in (tmp_path / "there").glob("*.zst")}
    assert sorted(found) == ["items", "pages", "rejected"]
    kept = json.loads(zstd.decompress(found["rejected"].read_bytes()))
    assert (kept["key"], kept["token"], kept["field"], kept["item"]) == (2, 5, "price", {"name": "x"})


def test_without_its_package_the_extra_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['obstore'] = None\nfrom gossamer.sink import open_sinks\n"
    code += "from gossamer.settings import Settings\nfrom pathlib import Path\n"
    code += "try: open_sinks(Settings(sink=('s3://b/x',)), Path('.'), {})\nexcept Exception as error: print(error.hint)"
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "gossamer[objects]" in said
