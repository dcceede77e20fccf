"""Whole crawls into WARC files: after kills and a full disk, they contain each page of pages.jsonl once."""

from __future__ import annotations

import asyncio
import hashlib
import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
from fastwarc import ArchiveIterator, WarcRecordType
from processes import command, crawl, environment, kill_tree, rows, start, until

from gossamer.clock import SystemClock
from gossamer.engine.commit import Committer, Result
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Outcome, PageRow, Receipt, Record
from gossamer.testing.sinks import small_disk

SINKS = ("--sink", "jsonl", "--sink", "warc", "--archive-bytes", "60000", "--delay", "0.01")


def archived(folder: Path) -> tuple[Counter[str], dict[str, str]]:
    """How often each URL stands in the archive, and the SHA-1 of its body; both checkers pass on every file."""
    counts: Counter[str] = Counter()
    digests = {}
    assert not list((folder / "archive").glob("*.open"))
    paths = sorted((folder / "archive").glob("*.warc.gz"))
    together = folder / "together.gz"
    together.write_bytes(b"".join(path.read_bytes() for path in paths))
    for tool, *options in (("warcio", "check"), ("fastwarc", "check", "-q", "-d", "gzip")):
        subprocess.run([Path(sys.executable).with_name(tool), *options, together], check=True)
    for path in paths:
        for record in ArchiveIterator(str(path), parse_http=True):
            url = record.headers.get("WARC-Target-URI") or ""
            if record.record_type in (WarcRecordType.response, WarcRecordType.revisit):
                counts[url] += 1
                digests[url] = hashlib.sha1(record.reader.read()).hexdigest()
                assert record.http_headers.status_code == 200
            elif record.record_type == WarcRecordType.request:
                assert record.http_headers["user-agent"].startswith("Gossamer/")
    lines = sum(len(path.read_bytes().splitlines()) for path in (folder / "archive").glob("*.cdxj"))
    assert lines == sum(counts.values())
    return counts, digests


def test_kills_and_resumes_leave_each_page_once_in_the_archive(tmp_path: Path) -> None:
    """F62. Workers send pages whole to the owner, which writes them; and the table of them says where each is."""
    folder = tmp_path / "job"
    sinks = (*SINKS, "--sink", "parquet", "--workers", "2", "--lease-seconds", "5")
    with SimWeb(sites=8, pages_per_site=40, page_bytes=4000, latency_seconds=0.01) as web:
        for _ in range(2):
            process = start(folder, web, *sinks)
            seen = size(folder)
            until(lambda seen=seen: size(folder) > seen)  # type: ignore[misc]
            kill_tree(process)
        done = crawl(folder, web, *sinks)
        assert done.returncode == 0, done.stderr
    pages = {row["url"]: row["digest"] for row in rows(folder / "pages.jsonl")}
    counts, digests = archived(folder)
    assert len(pages) == 320
    assert counts == Counter(pages.keys())
    assert digests == pages
    columns = "url, warc_file, warc_offset, warc_length, digest"
    with duckdb.connect() as database:
        table = database.sql(f"SELECT {columns} FROM '{folder}/parquet/pages/*.parquet'").fetchall()
    assert Counter(url for url, *_ in table) == counts
    for url, name, offset, length, digest in table:
        with (folder / name).open("rb") as file:
            file.seek(offset)
            record = next(iter(ArchiveIterator(io.BytesIO(file.read(length)), parse_http=True)))
            assert (record.headers["WARC-Target-URI"], hashlib.sha1(record.reader.read()).hexdigest()) == (url, digest)


def size(folder: Path) -> int:
    path = folder / "pages.jsonl"
    return path.stat().st_size if path.exists() else 0


def test_a_full_disk_pauses_the_crawl_until_the_archive_has_room(tmp_path: Path) -> None:
    """F60."""
    with small_disk(tmp_path / "disk", 3_000_000) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 2_500_000)
        with SimWeb(sites=8, pages_per_site=40, page_bytes=4000) as web:
            lines = command(tmp_path / "job", web.seeds, *SINKS)
            lines[lines.index("--job") + 1] = str(disk / "job")
            process = subprocess.Popen(lines, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment())
            try:
                assert process.stderr is not None
                assert any(b"waiting to store" in line for line in process.stderr)
                ballast.unlink()
                _, said = process.communicate(timeout=60)
            finally:
                process.kill()
                process.wait()
            assert process.returncode == 0, said
        pages = {row["url"]: row["digest"] for row in rows(disk / "job" / "pages.jsonl")}
        counts, digests = archived(disk / "job")
        assert len(pages) == 320
        assert counts == Counter(pages.keys())
        assert digests == pages


class Slow:
    """A store that commits when the test lets it."""

    def __init__(self) -> None:
        self.go = asyncio.Semaphore(0)
        self.largest = 0

    async def commit(self, results: list[Result], notes: object) -> Receipt:
        self.largest = max(self.largest, sum(len(result.record.body) for result in results if result.record))
        await self.go.acquire()
        return Receipt(accepted=len(results))


def test_large_pages_wait_before_they_fill_the_memory() -> None:
    """A store that is full must not make the worker collect 64 large bodies, nor send them in one piece."""
    body = b"x" * (20 << 20)

    async def run() -> None:
        store = Slow()
        committer = Committer(store, None, clock=SystemClock(), every=0.0, committed=lambda results, run: None)  # type: ignore[arg-type]
        running = asyncio.create_task(committer.run())
        results = [
            Result(
                Outcome(site="s", lane=0, token=1, key=key, status="done"),
                Record(key=key, token=1, page=PageRow(url=f"http://s/{key}"), body=body),
            )
            for key in range(10)
        ]
        putting = [asyncio.create_task(committer.put(result)) for result in results]
        await _settled()
        assert sum(task.done() for task in putting) == 3
        # One that is given up leaves its room to others.
        putting.pop().cancel()
        for _ in range(20):
            store.go.release()
        await asyncio.gather(*putting)
        await committer.finish()
        await running
        assert committer.accepted == 9
        assert store.largest <= 64 << 20

    asyncio.run(run())


def test_a_worker_has_few_results_that_are_not_stored() -> None:
    """What it has of them when it is killed is fetched again: one commit, and as much behind it."""

    async def run() -> None:
        store = Slow()
        committer = Committer(store, None, clock=SystemClock(), every=0.0, committed=lambda results, run: None)  # type: ignore[arg-type]
        running = asyncio.create_task(committer.run())
        outcomes = [Outcome(site="s", lane=0, token=1, key=key, status="done") for key in range(1000)]
        putting = [asyncio.create_task(committer.put(Result(outcome))) for outcome in outcomes]
        await _settled()
        assert sum(task.done() for task in putting) <= 2 * 64
        for _ in outcomes:
            store.go.release()
        await asyncio.gather(*putting)
        await committer.finish()
        await running
        assert committer.accepted == 1000

    asyncio.run(run())


def test_many_results_do_not_wait_for_the_time_of_a_commit() -> None:
    """At full speed a worker has a commit's worth of results long before its time: it must not stop fetching."""

    async def run() -> None:
        store = Slow()
        committer = Committer(store, None, clock=SystemClock(), every=3600.0, committed=lambda results, run: None)  # type: ignore[arg-type]
        running = asyncio.create_task(committer.run())
        for _ in range(1000):
            store.go.release()
        async with asyncio.timeout(60):
            for key in range(960):
                await committer.put(Result(Outcome(site="s", lane=0, token=1, key=key, status="done")))
            while committer.accepted < 900:
                await asyncio.sleep(0)
        running.cancel()

    asyncio.run(run())


async def _settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)
