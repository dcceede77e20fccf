"""The end of a job on a shared folder is detected even if its last worker was killed."""

from __future__ import annotations

import asyncio

import pytest

from gossamer.settings import Settings
from gossamer.testing.harness import outcomes, pages
from gossamer.testing.harnesses import folder


@pytest.mark.parametrize("left", [0, 2])
def test_the_log_decides_about_a_job_whose_last_worker_was_killed(left: int) -> None:
    settings = Settings(delay=0.0, robots=False, lease_seconds=60.0)

    async def scenario() -> None:
        async with folder(settings) as harness:
            worker = harness.folder
            await worker.add(pages(*range(1, 6)))
            (lease,) = (await worker.lease(1, batch=5 - left, seconds=60.0)).leases
            await worker.complete(outcomes(lease))
            worker.owner.abort()
            harness.clock.advance(1000.0)
            looking = await harness.open("")
            try:
                # Time in which nobody looks does not count: the one who looks may have been stopped himself.
                for _ in range(70):
                    counts = await looking.counts()
                    harness.clock.advance(1.0)
                assert (counts.finished, counts.stored, counts.queued) == (not left, 5 - left, left)
                assert counts.job == ("running" if left else "finished")
            finally:
                await looking.aclose()
                await harness.reopen()

    asyncio.run(scenario())
