"""What a store that may forget its last seconds has for good: only what it has outlived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gossamer.errors import Unavailable

POLL_SECONDS = 1.0
MOST_STEP_SECONDS = 2.0
"""What the time between two answers counts at most: while a server is paused or away, nothing becomes durable."""


async def outlive(run: Callable[[], Awaitable[str]], seconds: float) -> str:
    """Wait until a server has lived for so long on one run, and return that run.

    `run` asks for the present run of the server; it may raise Unavailable, which is waited through. A change of the run
    starts the count anew. What the server had acknowledged when this was called is not durable if its run has changed
    meanwhile: check that it is still there."""
    clock = asyncio.get_running_loop().time
    known, lived, last = "", 0.0, clock()
    while True:
        try:
            present = await run()
        except Unavailable:
            pass
        else:
            now = clock()
            lived = lived + min(now - last, MOST_STEP_SECONDS) if present == known else 0.0
            known, last = present, now
            if lived >= seconds:
                return known
        await asyncio.sleep(max(0.0, min(POLL_SECONDS, seconds - lived)) or 0.01)
