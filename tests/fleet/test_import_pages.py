"""Importing a tree of pages into a new job."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.jobs import seeding
from gossamer.model import Counts, Request
from gossamer.settings import Settings

HOSTS = ("a.example", "b.example:8080")


class Killed(BaseException):
    pass


def page(folder: Path, url: str, links: Sequence[str] | None, *, kind: str = "htmls") -> None:
    """A page as another program keeps it."""
    name = f"{url.split('/')[2]}/{hashlib.sha224(url.encode()).hexdigest()[:24]}"
    for room, text in ((kind, ""), ("links", json.dumps(links))):
        if room != "links" or links is not None:
            (folder / room / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / room / name).write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for host in HOSTS:
        root = f"http://{host}/"
        page(folder, root, [f"{root}{n}" for n in range(6)])
        page(folder, f"{root}1", [root, f"{root}new", "mailto:x", "//", "http://elsewhere.example/"])
        page(folder, f"{root}2", None, kind="errs")
        page(folder, f"{root}3", [f"{root}x y#z", f"HTTP://{host}/4"])
        page(folder, f"{root}x y#z", [f"{root}far"])
    (folder / "links" / HOSTS[0] / "bad").write_text("{")
    return folder


def settings_of(tree: Path) -> Settings:
    return Settings(sink=("jsonl", f"folder:{tree}"), delay=0.0, lease_seconds=5.0)


async def left(tmp_path: Path) -> tuple[Counts, set[str]]:
    """What a worker of the job finds to do."""
    worker = await open_folder(f"folder:{tmp_path}?shards=3", "job", worker="w")
    found: set[str] = set()
    try:
        await worker.owner.run_round()
        counts = await worker.counts()
        grant = await worker.lease(99, batch=99, seconds=5.0)
        found |= {request.url for lease in grant.leases for request in lease.requests}
        await worker.release(grant.leases)
        return counts, found
    finally:
        await worker.aclose()


async def begun(tmp_path: Path, tree: Path) -> FolderFrontier:
    return await open_folder(f"folder:{tmp_path}?shards=3", "job", settings_of(tree))


MISSING = {f"http://{host}/{name}" for host in HOSTS for name in ("0", "4", "5", "new", "far")}


def test_imported_pages_are_known_and_their_links_queued(tmp_path: Path, tree: Path) -> None:
    async def run() -> None:
        fleet = await begun(tmp_path, tree)
        seeds = [*(f"http://{host}/" for host in HOSTS), "http://c.example/"]
        assert await seeding.begin(fleet, settings_of(tree), seeds) == 1, "the tree has the others"
        await fleet.aclose()
        counts, found = await left(tmp_path)
        assert found == {*MISSING, "http://c.example/"}
        # The first page, 1, 2, 3 and the one with a space, of either host.
        assert (counts.job, counts.skipped, counts.queued) == ("running", 10, 11)

    asyncio.run(run())


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_a_killed_import_can_be_repeated(
    tmp_path: Path, tree: Path, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeding, "_LINKS", 3)

    async def run() -> None:
        fleet = await begun(tmp_path, tree)
        add, done = fleet.add, 0

        async def add_or_die(requests: Sequence[Request]) -> int:
            nonlocal done
            done += 1
            if done > calls:
                raise Killed
            return await add(requests)

        fleet.add = add_or_die  # type: ignore[method-assign]
        with pytest.raises(Killed):
            await seeding.begin(fleet, settings_of(tree), [f"http://{HOSTS[0]}/"])
        fleet.owner.abort()
        counts, found = await left(tmp_path)
        assert (counts.job, found) == ("paused", set()), "nobody fetches what may be in the tree"
        fleet = await begun(tmp_path, tree)
        assert await seeding.begin(fleet, settings_of(tree), [f"http://{HOSTS[0]}/"]) == 0
        await fleet.aclose()
        counts, found = await left(tmp_path)
        assert (found, counts.skipped, counts.queued) == (MISSING, 10, 10)

    asyncio.run(run())


def test_an_imported_tree_is_read_once(tmp_path: Path, tree: Path) -> None:
    async def run() -> None:
        for expected in (set(), {"http://d.example/"}):
            fleet = await begun(tmp_path, tree)
            await seeding.begin(fleet, settings_of(tree), sorted(expected))
            await fleet.aclose()
            # What comes to the tree while the job runs is its own work.
            page(tree, f"http://{HOSTS[0]}/0", [f"http://{HOSTS[0]}/later"])
            _, found = await left(tmp_path)
            assert found == MISSING | expected

    asyncio.run(run())
