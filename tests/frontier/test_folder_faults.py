"""A failing shared folder: injected errors of network file systems, and real mounts."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import SchemaMismatch, Unavailable
from gossamer.frontier.folder.files import SharedFolder
from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.frontier.folder.links import Inbox
from gossamer.frontier.folder.record import place_of
from gossamer.settings import Settings
from gossamer.testing.harness import keys, outcomes, page, pages
from gossamer.testing.harnesses import JOB, MachineClock, TimedShare

LEASE = 10.0
CODES = (errno.ESTALE, errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ETIMEDOUT, errno.EACCES)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: these tests sync thousands of times."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gossamer-", dir="/dev/shm") as name:
        yield Path(name)


class BadShare(TimedShare):
    """A folder whose operations fail when the test says so."""

    def __init__(self, root: Path, clock: MachineClock) -> None:
        super().__init__(root, clock)
        self.fails: Callable[[str, str], int] = lambda what, name: 0

    def touched(self, what: str, name: str) -> None:
        code = self.fails(what, name)
        if code:
            raise OSError(code, os.strerror(code))


async def insist(call: Callable[[], Awaitable[Any]], clock: MachineClock) -> Any:
    """Try again as the engine does."""
    for _ in range(500):
        try:
            return await call()
        except Unavailable:
            clock.advance(0.1)
    raise AssertionError("it never came back")


async def crawl(frontier: FolderFrontier, clock: MachineClock) -> list[int]:
    """Fetch 3 seeds and what they lead to; the keys that were accepted."""
    await insist(lambda: frontier.add([page(n, f"{n}.example") for n in range(3)]), clock)
    done: list[int] = []
    while True:
        grant = await insist(lambda: frontier.lease(2, batch=2, seconds=LEASE), clock)
        if grant.job == "finished":
            return done
        for lease in grant.leases:
            links = tuple(page(key * 10 + n + 3, f"{n}.example") for key in keys(lease) if key < 10 for n in range(3))
            receipt = await insist(
                lambda lease=lease, links=links: frontier.complete(outcomes(lease, links=links)),  # type: ignore[misc]
                clock,
            )
            assert receipt.stale == 0
            done += keys(lease)
        clock.advance(0.2)


def wanted() -> list[int]:
    found = set(range(3))
    for _ in range(3):
        found |= {key * 10 + n + 3 for key in found if key < 10 for n in range(3)}
    return sorted(found)


async def opened(tmp_path: Path, clock: MachineClock, worker: str = "one") -> tuple[FolderFrontier, BadShare]:
    url = f"folder:{tmp_path}?shards=5"
    share = BadShare(place_of(url, JOB)[0], clock)
    settings = Settings(delay=0.0, lease_seconds=LEASE)
    return await open_folder(url, JOB, settings, worker=worker, clock=clock, share=share, rounds=False), share


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
def test_operations_that_fail_at_random_lose_nothing(tmp_path: Path, code: int) -> None:
    """F49: every kind of operation, with every error that a network file system has."""

    failed: set[str] = set()

    async def run(place: Path, chance: random.Random) -> None:
        clock = MachineClock()
        frontier, share = await opened(place, clock)

        def fails(what: str, name: str) -> int:
            if chance.random() < 0.12:
                failed.add(what)
                return code
            return 0

        share.fails = fails
        assert sorted(await crawl(frontier, clock)) == wanted()
        share.fails = lambda what, name: 0
        counts = await frontier.counts()
        frontier.owner.abort()
        heir, _ = await opened(place, clock, "heir")
        await heir.abandon("one")
        again = await heir.counts()
        assert (again.done, again.known, again.finished) == (counts.done, counts.known, True)
        assert again.done == len(wanted())
        heir.owner.abort()

    for number in range(8):
        asyncio.run(run(tmp_path / str(number), random.Random(code * 100 + number)))
    assert {"append", "fsync", "write", "rename", "list", "read", "load"} <= failed


def test_a_folder_that_is_gone_for_longer_than_the_lease_pauses_the_crawl(tmp_path: Path) -> None:
    """F49: no request is let out that others might send too; afterwards everything goes on."""

    async def run() -> None:
        clock = MachineClock()
        frontier, share = await opened(tmp_path, clock)
        await frontier.add(pages(1, 2))
        (lease,) = (await frontier.lease(1, batch=1, seconds=LEASE)).leases
        share.fails = lambda what, name: errno.ESTALE
        with pytest.raises(Unavailable):
            await frontier.complete(outcomes(lease))
        clock.advance(1.0)
        with pytest.raises(Unavailable):
            await frontier.extend([lease], seconds=LEASE)
        clock.advance(30.0)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await frontier.lease(1, batch=1, seconds=LEASE)
        share.fails = lambda what, name: 0
        receipt = await frontier.complete(outcomes(lease))
        assert receipt.accepted + receipt.stale == 1
        clock.advance(1.0)
        left = (await frontier.lease(9, batch=9, seconds=LEASE)).leases
        assert sorted(keys(*left))[-1] == 2
        frontier.owner.abort()

    asyncio.run(run())


def test_a_write_that_failed_half_way_is_written_over(tmp_path: Path) -> None:
    async def run() -> None:
        clock = MachineClock()
        frontier, share = await opened(tmp_path, clock)
        share.fails = lambda what, name: errno.EIO if what == "fsync" else 0
        with pytest.raises(Unavailable):
            await frontier.add([page(1, meta={"long": "x" * 5000})])
        share.fails = lambda what, name: 0
        assert await frontier.add(pages(2)) == 1
        assert await frontier.add(pages(1)) == 1
        frontier.owner.abort()
        heir, _ = await opened(tmp_path, clock, "heir")
        await heir.abandon("one")
        assert (await heir.counts()).known == 2
        heir.owner.abort()

    asyncio.run(run())


def _race(root: str, entries: int, start: Any, won: Any) -> None:
    share = SharedFolder(Path(root))
    start.wait()
    mine = [number for number in range(entries) if share.claim(f"claims/{number:06}", os.urandom(8))]
    won.put(mine)


def test_of_eight_concurrent_claims_one_succeeds(tmp_path: Path) -> None:
    """F48: 8 processes, 10,000 entries."""
    entries, racers = 10_000, 8
    SharedFolder(tmp_path).make_folders("tmp", "claims")
    context = multiprocessing.get_context("fork")
    start, won = context.Barrier(racers), context.Queue()
    processes = [context.Process(target=_race, args=(str(tmp_path), entries, start, won)) for _ in range(racers)]
    for process in processes:
        process.start()
    winners = sorted(number for _ in processes for number in won.get(timeout=100))
    for process in processes:
        process.join()
    assert winners == list(range(entries))
    assert not list((tmp_path / "tmp").iterdir())


SENDER = """
import sys
import tempfile
from pathlib import Path
from gossamer.frontier.folder.links import Inbox
from gossamer.frontier.folder.files import SharedFolder
from gossamer.model import Request
post = Inbox(SharedFolder(Path(sys.argv[1])))
print("up", flush=True)
number = int(sys.argv[2])
while True:
    number += 1
    post.send({1: [Request(f"http://a.example/{number}/" + "x" * 20000, number, "a.example")]}, epoch=float(number))
"""


def test_killed_senders_leave_no_partial_letter(tmp_path: Path) -> None:
    """F47: killed between the write of a file and its renaming; what is left over is swept."""
    share = SharedFolder(tmp_path)
    share.make_folders("tmp", "inbox", "refused")
    chance = random.Random(3)
    for life in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", SENDER, str(tmp_path), str(life * 10**6)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0.01, 0.08))
            process.send_signal(signal.SIGKILL)
    post = Inbox(share)
    letters = post.waiting()[1]
    assert letters
    assert all(len(post.read([name], 1)[0]) == 1 for name in letters)
    left = len(list((tmp_path / "tmp").iterdir()))
    assert share.sweep(older_than=time.time() + 60) == left
    assert not list((tmp_path / "tmp").iterdir())


MOUNTED = """
import asyncio, ctypes, os, subprocess, sys
from pathlib import Path
from gossamer.errors import SchemaMismatch, Unavailable
from gossamer.frontier.folder.frontier import open_folder
from gossamer.settings import Settings
from gossamer.testing.harness import outcomes, page, keys

place, what = sys.argv[1], sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], check=True)

async def main():
    frontier = await open_folder(f"folder:{place}?shards=4", "job", Settings(delay=0.0, lease_seconds=60), worker="w")
    await frontier.add([page(n, f"{n % 7}.example") for n in range(200)])
    done, spells = [], 0
    while True:
        try:
            grant = await frontier.lease(4, batch=10, seconds=60)
        except Unavailable:
            await asyncio.sleep(0.1)
            continue
        if grant.job == "finished":
            break
        for lease in grant.leases:
            if len(done) > 60 and not spells:
                if what == "full":
                    with open(f"{place}/ballast", "wb") as file:
                        try:
                            while True:
                                file.write(bytes(1 << 16))
                        except OSError:
                            pass
                else:
                    # A file that is open for writing keeps a mount from becoming read-only: as for a real one.
                    for shard in frontier.owner.shards.values():
                        shard.journal.close()
                    await asyncio.sleep(0)
                    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            for attempt in range(100):
                try:
                    receipt = await frontier.complete(outcomes(lease, reason="x" * 200))
                    break
                except Unavailable:
                    spells += 1
                    await asyncio.sleep(0.1)
                    if attempt == 5:
                        if what == "full":
                            os.unlink(f"{place}/ballast")
                        else:
                            subprocess.run(["mount", "-o", "remount,rw", place], check=True)
            assert receipt.accepted == len(lease.requests), receipt
            done += keys(lease)
    assert sorted(done) == list(range(200))
    assert spells >= 5, spells
    await frontier.aclose()
    print("survived")

asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["full", "read-only"])
def test_a_mount_that_is_full_or_read_only_for_a_while_is_survived(tmp_path: Path, what: str) -> None:
    """F49: a real file system, in a mount namespace of its own."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a mount namespace: a full and a read-only mount are not checked")
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", MOUNTED, str(tmp_path), what],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "survived\n", done.stderr


def test_a_shard_that_cannot_be_read_ends_the_worker_with_words(tmp_path: Path) -> None:
    """It must not go on without a heartbeat, and nobody else's shards are harmed."""

    async def run() -> None:
        clock = MachineClock()
        first, _ = await opened(tmp_path, clock)
        await first.add([page(n, f"{n}.example") for n in range(20)])
        await first.aclose()
        for log in (place_of(f"folder:{tmp_path}", JOB)[0] / "shards").glob("*/log-*"):
            log.write_bytes(b"something else")
        with pytest.raises(SchemaMismatch):
            await opened(tmp_path, clock, "two")
        assert all(log.read_bytes() == b"something else" for log in tmp_path.glob("frontier/job/shards/*/log-*"))

    asyncio.run(run())
