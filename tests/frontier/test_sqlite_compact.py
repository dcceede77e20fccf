from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.clock import ManualClock, SystemClock
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.sqlite import Compaction, open_sqlite
from gossamer.model import Status
from gossamer.settings import Settings
from gossamer.testing.harness import outcome, pages

SETTINGS = Settings(delay=0.0, robots=False, recrawl="table", site_share=1.0)
URLS = 20
VICTIM = """
import asyncio, os, sys
from pathlib import Path
from gossamer.clock import SystemClock
from gossamer.frontier.embedded.sqlite import Compaction, open_sqlite
from gossamer.settings import Settings
from gossamer.testing.harness import outcome

async def main():
    Compaction.__init__.__kwdefaults__["spare"] = 50
    settings = Settings(delay=0.0, robots=False, recrawl="table", site_share=1.0)
    frontier = open_sqlite(Path(sys.argv[1]), settings, clock=SystemClock())
    while True:
        for lease in (await frontier.lease(3, batch=10, seconds=60)).leases:
            ends = [outcome(lease, one.key, again_in=0.0, state={"visits": (one.state or {}).get("visits", 0) + 1})
                    for one in lease.requests]
            await frontier.complete(ends)
            os.write(1, f"{len(ends)}\\n".encode())
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Compaction.__init__.__kwdefaults__, "spare", 50)  # type: ignore[arg-type]


def rows_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(connection.execute("SELECT count(*) FROM outcomes").fetchone()[0])
    finally:
        connection.close()


async def visit(frontier: EmbeddedFrontier, rounds: int, clock: ManualClock) -> None:
    """Visit each page so often; every fifth time one of them has to be tried again."""
    for number in range(rounds):
        left = URLS
        while left:
            for lease in (await frontier.lease(3, batch=URLS, seconds=60)).leases:
                ends = []
                for one in lease.requests:
                    status: Status = "retry" if one.key == 3 and one.tries < 2 and number % 5 == 4 else "done"
                    visits = (one.state or {}).get("visits", 0) + 1
                    state = {"visits": visits} if status == "done" else None
                    again_in = 100.0 if status == "done" else 1.0
                    ends.append(outcome(lease, one.key, status, again_in=again_in, state=state))
                    left -= status == "done"
                await frontier.complete(ends)
            clock.advance(1.0)
        clock.advance(100.0)


def test_a_continuous_crawl_has_a_bounded_file(tmp_path: Path) -> None:
    """What is dropped is not missed: counts, states and the next visits are what they were, also after a restart."""
    path, clock = tmp_path / "frontier.db", ManualClock()

    async def scene() -> None:
        frontier = open_sqlite(path, SETTINGS, clock=clock)
        await frontier.add(pages(*range(1, URLS + 1)))
        sizes = []
        for _ in range(4):
            await visit(frontier, 20, clock)
            sizes.append(path.stat().st_size)
        before = await frontier.counts()
        await frontier.aclose()
        assert rows_of(path) < 40 * URLS, "of 80 visits to each"
        assert sizes[-1] <= 1.2 * sizes[1], "what gets free is used again"
        frontier = open_sqlite(path, SETTINGS, clock=clock)
        after = await frontier.counts()
        assert (after.stored, after.done, after.revisits, after.known) == (
            before.stored, before.done, before.revisits, before.known,
        )  # fmt: skip
        assert after.stored == 80 * URLS
        clock.advance(100.0)
        (lease,) = (await frontier.lease(3, batch=URLS, seconds=60)).leases
        assert {one.key: (one.state or {})["visits"] for one in lease.requests} == dict.fromkeys(range(1, URLS + 1), 80)
        await frontier.aclose()

    asyncio.run(scene())


def test_a_kill_while_visits_are_dropped_loses_nothing(tmp_path: Path) -> None:
    path, rng, said = tmp_path / "frontier.db", random.Random(4), 0

    async def stored(*, first: bool = False) -> int:
        frontier = open_sqlite(path, SETTINGS, clock=SystemClock())
        if first:
            await frontier.add(pages(*range(1, URLS + 1)))
        counts = await frontier.counts()
        assert (counts.known, counts.revisits + counts.queued) == (URLS, URLS)
        (lease,) = (await frontier.lease(3, batch=URLS, seconds=60)).leases
        assert sum((one.state or {}).get("visits", 0) for one in lease.requests) == counts.stored
        await frontier.release([lease])
        await frontier.aclose()
        return counts.stored

    asyncio.run(stored(first=True))
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(40, 80)):
                said += int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            said += sum(map(int, process.stdout))
        found = asyncio.run(stored())
        assert said <= found <= said + 10, "one call at most was done and not said"
        said = found
    assert rows_of(path) < said // 2
