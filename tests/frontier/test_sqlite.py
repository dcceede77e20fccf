from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gossamer.clock import ManualClock, SystemClock
from gossamer.errors import FrontierError, GossamerError, Held, SchemaMismatch, Unavailable
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.sqlite import holder, open_sqlite, refuse_network_folder
from gossamer.settings import Settings
from gossamer.testing.harness import keys, outcomes, page, pages

SETTINGS = Settings(delay=0.0, robots=False, max_deliveries=5)

VICTIM = """
import asyncio, os, sys
from pathlib import Path
from gossamer.clock import SystemClock
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.model import Outcome, Request
from gossamer.settings import Settings

def request(key):
    return Request(f"http://{key % 5}.example/{key}", key, f"{key % 5}.example")

async def main():
    frontier = open_sqlite(Path(sys.argv[1]), Settings(delay=0.0, robots=False), clock=SystemClock())
    say = lambda *words: os.write(1, (" ".join(map(str, words)) + "\\n").encode())
    say("open")
    while True:
        grant = await frontier.lease(3, batch=4, seconds=60)
        if not grant.leases:
            known = (await frontier.counts()).known
            seeds = [(known + n) * 100 for n in range(1, 6)]
            await frontier.add([request(key) for key in seeds])
            say("added", *seeds)
        for lease in grant.leases:
            found = []
            for one in lease.requests:
                links = tuple(request(one.key + n) for n in (1, 2)) if one.key % 100 == 0 else ()
                found.append(Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=one.key, status="done",
                                     links=links))
            await frontier.complete(found, marks={"pages.jsonl": lease.token})
            say("done", *(one.key for one in found))
asyncio.run(main())
"""


def play(
    scene: Callable[[EmbeddedFrontier], Coroutine[Any, Any, Any]], path: Path, settings: Settings = SETTINGS
) -> Any:
    """Open the file, do something with it, and close it again."""

    async def run() -> Any:
        frontier = open_sqlite(path, settings, clock=SystemClock())
        try:
            return await scene(frontier)
        finally:
            await frontier.aclose()

    return asyncio.run(run())


@contextmanager
def victim(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def links_of(key: int) -> list[int]:
    return [key + 1, key + 2] if key % 100 == 0 else []


def kill_often(path: Path, times: int) -> None:
    """Kill the owner again and again, at its start or in the middle of its writes; check the file each time."""
    rng = random.Random(41)
    added: set[int] = set()
    done: set[int] = set()
    for number in range(times):
        with victim(path) as process:
            assert process.stdout is not None
            if number % 4 == 0:
                time.sleep(rng.uniform(0.05, 0.5))
            lines = []
            for _ in range(0 if number % 4 == 0 else rng.randrange(1, 60)):
                lines.append(process.stdout.readline())
                assert lines[-1], "it ended by itself"
            process.send_signal(signal.SIGKILL)
            for line in [*lines, *process.stdout]:
                word, *acknowledged = line.split()
                (done if word == "done" else added).update(map(int, acknowledged))
        if added:
            check_file(path, added, done)


def check_file(path: Path, added: set[int], done: set[int]) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        known = Counter(key for (key,) in connection.execute("SELECT key FROM urls"))
        settled = Counter(
            key for (key,) in connection.execute("SELECT key FROM outcomes JOIN urls ON urls.number = outcomes.url")
        )
    connection.close()
    assert set(known.values()) <= {1}, "a key is there once"
    assert set(settled.values()) <= {1}, "and done once"
    assert added <= known.keys()
    assert done <= settled.keys()
    assert {link for key in settled for link in links_of(key)} <= known.keys(), "an outcome has its links"
    orphans = {key for key in known if key % 100} - {link for key in settled for link in links_of(key)}
    assert not orphans, "links have their outcome"


def test_f41_a_kill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    kill_often(tmp_path / "frontier.db", 20)


@pytest.mark.long
def test_f41_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    kill_often(tmp_path / "frontier.db", 200)


def test_f41_a_kill_while_the_file_is_made_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "frontier.db-new").write_bytes(os.urandom(5000))
    (tmp_path / "frontier.db-new-journal").write_bytes(os.urandom(5000))
    assert play(lambda frontier: frontier.add(pages(1)), tmp_path / "frontier.db") == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("no small file system can be mounted here: a full disk is not checked")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def fill(frontier: EmbeddedFrontier, start: int) -> int:
    """Add until it fails; the first key that was not added."""
    key = start
    with pytest.raises(Unavailable) as caught:  # noqa: PT012
        while key < start + 10_000:
            await frontier.add([page(key, label="x" * 3000)])
            key += 1
    assert caught.value.hint
    return key


async def survive_a_full_disk(frontier: EmbeddedFrontier, free: Callable[[], None]) -> None:
    first = await fill(frontier, 1000)
    counts = await frontier.counts()
    assert counts.known == counts.queued == first - 1000 + 1
    lease = (await frontier.lease(1, batch=1, seconds=60)).leases[0]
    links = tuple(page(n, label="y" * 3000) for n in range(11, 19))
    with pytest.raises(Unavailable):
        await frontier.complete(outcomes(lease, links=links), marks={"pages.jsonl": 7})
    after = await frontier.counts()
    assert (after.known, after.queued, after.leased, after.done) == (counts.known, counts.queued - 1, 1, 0)
    assert frontier.marks == {}
    free()
    assert await frontier.add([page(first, label="x" * 3000)]) == 1, "its key was not kept as known"
    receipt = await frontier.complete(outcomes(lease, links=links), marks={"pages.jsonl": 7})
    assert receipt.accepted == 1
    assert (await frontier.counts()).known == counts.known + 9


def test_f43_a_full_disk_stops_nothing_for_good(small_disk: Path) -> None:
    path = small_disk / "job" / "frontier.db"
    filler = small_disk / "filler"

    async def scene(frontier: EmbeddedFrontier) -> None:
        await frontier.add(pages(1, site="first.example"))
        filler.write_bytes(bytes(200_000))
        await survive_a_full_disk(frontier, filler.unlink)

    play(scene, path)
    known = play(lambda frontier: frontier.counts(), path)
    assert (known.done, known.known) == (1, known.queued + 1)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_f43_a_full_disk_at_the_start_is_reported(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(500_000))
    with pytest.raises(Unavailable):
        play(lambda frontier: frontier.add(pages(1)), small_disk / "frontier.db")
    (small_disk / "filler").unlink()
    assert play(lambda frontier: frontier.add(pages(1)), small_disk / "frontier.db") == 1


def test_f43_a_write_error_stops_nothing_for_good(tmp_path: Path) -> None:
    """As a full disk, with the limit on the size of files instead, which needs no rights."""
    path = tmp_path / "frontier.db"
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def scene(frontier: EmbeddedFrontier) -> None:
        await frontier.add(pages(1, site="first.example"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        await survive_a_full_disk(frontier, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))

    try:
        play(scene, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert play(lambda frontier: frontier.counts(), path).done == 1


def test_f44_a_second_owner_is_refused_with_the_first_owners_id(tmp_path: Path) -> None:
    path = tmp_path / "frontier.db"
    with victim(path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(Held, match=rf"frontier.db is in use by pid {process.pid}$") as caught:
            open_sqlite(path, SETTINGS, clock=SystemClock())
        assert str(tmp_path) in caught.value.hint
        assert holder(path) == f"pid {process.pid}"
    assert holder(path) == ""
    assert play(lambda frontier: frontier.add(pages(7)), path) == 1, "the lock ended with its process"


def test_f44_a_second_owner_in_the_same_process_is_refused(tmp_path: Path) -> None:
    async def scene(_: EmbeddedFrontier) -> None:
        with pytest.raises(Held, match=f"pid {os.getpid()}"):
            open_sqlite(tmp_path / "frontier.db", SETTINGS, clock=SystemClock())

    play(scene, tmp_path / "frontier.db")
    play(scene, tmp_path / "frontier.db")


def test_f45_a_copy_made_while_it_runs_is_a_whole_frontier(tmp_path: Path) -> None:
    path, copy = tmp_path / "frontier.db", tmp_path / "copy.db"
    with victim(path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(30)]
        with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
            source.backup(target, pages=1)
        source.close()
        target.close()
        for _ in range(10):
            assert process.stdout.readline(), "it went on"
    words = [line.split() for line in lines]
    done = {int(key) for word, *found in words if word == "done" for key in found}
    check_file(copy, set(), done)
    counts = play(lambda frontier: frontier.counts(), copy)
    assert counts.done >= len(done)
    assert counts.known == counts.done + counts.queued


def test_f45_a_long_reader_does_not_let_the_log_grow_for_good(tmp_path: Path) -> None:
    path, log = tmp_path / "frontier.db", tmp_path / "frontier.db-wal"

    async def grow(frontier: EmbeddedFrontier, start: int) -> int:
        for key in range(start, start + 6000, 100):
            await frontier.add([page(number, label="x" * 1000) for number in range(key, key + 100)])
        return log.stat().st_size

    async def scene(frontier: EmbeddedFrontier) -> None:
        alone = await grow(frontier, 0)
        assert alone < 6_000_000
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM urls").fetchone() == (6000,)
        held = await grow(frontier, 10_000)
        assert reader.execute("SELECT count(*) FROM urls").fetchone() == (6000,)
        reader.close()
        assert await grow(frontier, 20_000) <= held + 1_000_000
        assert await grow(frontier, 30_000) <= held + 1_000_000

    play(scene, path)
    assert not log.exists()


def test_counts_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "frontier.db"

    async def scene(frontier: EmbeddedFrontier) -> None:
        await frontier.add(pages(1, 2, 3))
        await frontier.lease(1, batch=1, seconds=0.0)
        before = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(tmp_path.iterdir())]
        for _ in range(5):
            await frontier.counts()
            await frontier.sites()
            await frontier.lookup("http://a.example/1")
        assert before == [
            (file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(tmp_path.iterdir())
        ]

    play(scene, path)


def test_f46_network_folders_are_refused(tmp_path: Path) -> None:
    share = tmp_path / "my share"
    (share / "job").mkdir(parents=True)
    (share / "local" / "job").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    place = str(share.resolve()).replace(" ", "\\040")
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nbroken\nserver:/x {place} nfs4 rw 0 0\n/dev/sdb {place}/local ext4 rw 0 0\n"
    )
    with pytest.raises(FrontierError, match=r"network file system \(nfs4\)") as caught:
        refuse_network_folder(share / "job", mounts=mounts)
    assert "--job" in caught.value.hint
    with pytest.raises(FrontierError):
        refuse_network_folder(share, mounts=mounts)
    for good in (tmp_path, share / "local", share / "local" / "job", tmp_path / "my share2"):
        refuse_network_folder(good, mounts=mounts)
    refuse_network_folder(share, mounts=tmp_path / "not there")


def frontier_file(path: Path) -> None:
    async def scene(frontier: EmbeddedFrontier) -> None:
        await frontier.add([page(number, label="x" * 200) for number in range(500)])
        lease = (await frontier.lease(1, batch=100, seconds=60)).leases[0]
        await frontier.complete(outcomes(lease))

    play(scene, path)


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE bookmarks (id INTEGER)")
        connection.execute("INSERT INTO bookmarks VALUES (1)")
    connection.close()


def altered(path: Path, pragma: str) -> None:
    frontier_file(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA {pragma}")
    connection.close()


def cut(path: Path, share: float) -> None:
    frontier_file(path)
    os.truncate(path, int(path.stat().st_size * share))


def scribble(path: Path) -> None:
    frontier_file(path)
    with path.open("r+b") as file:
        for offset in range(4096, path.stat().st_size, 8192):
            file.seek(offset)
            file.write(b"\xff" * 512)


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "zero bytes": (lambda path: path.write_bytes(b""), "is empty"),
    "random bytes": (lambda path: path.write_bytes(random.Random(1).randbytes(50_000)), "is not a Gossamer frontier"),
    "text": (lambda path: path.write_text("hello"), "is not a Gossamer frontier"),
    "only a header": (lambda path: path.write_bytes(b"SQLite format 3\0"), "damaged|another program"),
    "foreign": (foreign, "another program"),
    "newer": (lambda path: altered(path, "user_version=99"), r"newer Gossamer \(format 99"),
    "no version": (lambda path: altered(path, "user_version=0"), "format 0"),
    "half": (lambda path: cut(path, 0.5), "damaged|malformed"),
    "nearly whole": (lambda path: cut(path, 0.99), "damaged|malformed"),
    "one page": (lambda path: cut(path, 0.02), "damaged|malformed"),
    "scribbled on": (scribble, "damaged|malformed"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_f51_a_foreign_file_is_refused_and_not_changed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "frontier.db"
    make, words = BAD_FILES[name]
    make(path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match=words) as caught:
            open_sqlite(path, SETTINGS, clock=SystemClock())
        assert str(path) in str(caught.value)
        assert caught.value.hint
        assert path.read_bytes() == before
        assert holder(path) == ""
    assert {file.name for file in tmp_path.iterdir()} <= {path.name, f"{path.name}-owner"}


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "100%3f ?mode=memory#ü'" / "frontier.db"
    for key in (1, 2):
        assert play(lambda frontier, key=key: frontier.add(pages(key)), path) == 1  # type: ignore[misc]
    assert play(lambda frontier: frontier.counts(), path).known == 2


def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(GossamerError, match=r"frontier\.db"):
        open_sqlite(tmp_path / "file" / "frontier.db", SETTINGS, clock=SystemClock())


@pytest.mark.parametrize("bad", [{"meta": {"x": object()}}, {"label": "\ud800"}, {"priority": 1 << 80}])
def test_a_request_that_cannot_be_stored_does_no_harm(tmp_path: Path, bad: dict[str, Any]) -> None:
    path = tmp_path / "frontier.db"

    async def scene(frontier: EmbeddedFrontier) -> None:
        await frontier.add(pages(1))
        with pytest.raises((TypeError, ValueError, OverflowError)):
            await frontier.add([page(2), page(3, "b.example", **bad)])
        lease = (await frontier.lease(1, batch=1, seconds=60)).leases[0]
        with pytest.raises((TypeError, ValueError, OverflowError)):
            await frontier.complete(outcomes(lease, links=(page(4), page(5, **bad))))
        counts = await frontier.counts()
        assert (counts.known, counts.leased, counts.done) == (1, 1, 0)
        assert (await frontier.complete(outcomes(lease, links=tuple(pages(2, 3, 4, 5))))).accepted == 1

    play(scene, path)
    counts = play(lambda frontier: frontier.counts(), path)
    assert (counts.known, counts.done, counts.queued) == (5, 1, 4)


def test_a_read_error_loses_no_request(tmp_path: Path) -> None:
    async def scene(frontier: EmbeddedFrontier) -> None:
        journal: Any = frontier._journal
        await frontier.add(pages(1, 2, 3))
        journal._reader.close()
        for _ in range(2):
            with pytest.raises(FrontierError):
                await frontier.lease(1, batch=2, seconds=60)
        journal._reader = journal._connect()
        assert keys(*(await frontier.lease(1, batch=5, seconds=60)).leases) == [1, 2, 3]

    play(scene, tmp_path / "frontier.db")


def test_a_page_that_kills_its_owner_is_isolated_then_parked(tmp_path: Path) -> None:
    """The owner finds on its next start which page it was handling; five deaths are enough."""
    path = tmp_path / "frontier.db"
    play(lambda frontier: frontier.add([*pages(1, 2, 3), page(4, priority=9)]), path)
    deliveries: list[tuple[list[int], bool]] = []

    async def life(frontier: EmbeddedFrontier) -> None:
        await frontier.blame([2, 777] if deliveries else [0])
        for lease in (await frontier.lease(1, batch=9, seconds=60)).leases:
            deliveries.append((keys(lease), lease.suspect))

    for _ in range(4):
        play(life, path)
    assert deliveries == [([4, 1, 2, 3], False), ([2, 4, 1, 3], False), ([2], True), ([2], True)]
    play(life, path)
    assert deliveries[-1] == ([2], True)
    play(life, path)
    assert deliveries[-1] == ([4, 1, 3], False), "the sixth time it is parked"
    for _ in range(2):
        counts = play(lambda frontier: frontier.counts(), path)
        assert (counts.parked, counts.queued) == (1, 3)


def test_the_clock_may_be_set_back_between_two_runs(tmp_path: Path) -> None:
    """Waits may become longer by that, but nothing comes early and nothing is lost."""
    path, clock = tmp_path / "frontier.db", ManualClock()

    async def first() -> None:
        frontier = open_sqlite(path, SETTINGS, clock=clock)
        await frontier.add(pages(1, 2))
        lease = (await frontier.lease(1, batch=1, seconds=60)).leases[0]
        await frontier.complete(outcomes(lease, "retry", again_in=30.0))
        await frontier.aclose()
        clock.advance(-3600.0)
        frontier = open_sqlite(path, SETTINGS, clock=clock)
        assert keys(*(await frontier.lease(1, batch=5, seconds=10_000)).leases) == [2]
        clock.advance(29.0)
        assert (await frontier.lease(1, batch=5, seconds=10_000)).leases == ()
        clock.advance(3602.0)
        await frontier.aclose()
        frontier = open_sqlite(path, SETTINGS, clock=clock)
        assert keys(*(await frontier.lease(1, batch=5, seconds=10_000)).leases) == [1, 2]
        await frontier.aclose()

    asyncio.run(first())
