"""Happy eyeballs: which of a host's addresses lets itself be connected to first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

GAP_SECONDS = 0.25
"""The head start of each address over the next, as RFC 8305 has it."""


AFTER_SECONDS = 0.5
"""An exchange that has answered by then is good: addresses are compared only where it has not."""

R = TypeVar("R")


class BetterAddress(Exception):
    """Another address of the host can be connected to, and the one in use cannot."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


async def raced(exchange: Coroutine[Any, Any, R], addresses: Sequence[str], port: int, *, seconds: float) -> R:
    """What the exchange with the first address gives; BetterAddress if another one connects before that one does."""
    task = asyncio.ensure_future(exchange)
    # One that fails in the moment in which it is cancelled is no news, and must not be logged as an error.
    task.add_done_callback(_forgotten)
    race: asyncio.Task[str | None] | None = None
    try:
        if not (await asyncio.wait((task,), timeout=AFTER_SECONDS))[0]:
            race = asyncio.create_task(first_to_connect(addresses, port, seconds=seconds))
            await asyncio.wait((task, race), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and race.result() not in (None, addresses[0]):
                raise BetterAddress(str(race.result()))
        return await task
    finally:
        task.cancel()
        if race is not None:
            race.cancel()


def _forgotten(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def first_to_connect(addresses: Sequence[str], port: int, *, seconds: float) -> str | None:
    """The address that connects first, None if none does in time; nothing is sent to any of them."""
    tasks: dict[asyncio.Task[bool], str] = {}
    waiting = list(addresses)
    try:
        async with asyncio.timeout(seconds):
            while waiting or tasks:
                if waiting:
                    address = waiting.pop(0)
                    tasks[asyncio.create_task(_connects(address, port))] = address
                # A refusal lets the next one begin at once.
                gap = GAP_SECONDS if waiting else None
                done, _ = await asyncio.wait(tasks, timeout=gap, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    address = tasks.pop(task)
                    if task.result():
                        return address
    except TimeoutError:
        pass
    finally:
        for task in tasks:
            task.cancel()
    return None


async def _connects(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    return True


async def first_of(attempts: Sequence[Callable[[], Coroutine[Any, Any, R]]], drop: Callable[[R], None]) -> R:
    """What the first attempt gives that succeeds; each has a head start over the next, which a failure ends.

    If none does, the error of the first one that failed. What came in too late goes to `drop`."""
    waiting = list(attempts)
    tasks: set[asyncio.Task[R]] = set()
    fault: BaseException | None = None

    def late(task: asyncio.Task[R]) -> None:
        if not task.cancelled() and task.exception() is None:
            drop(task.result())

    try:
        while waiting or tasks:
            if waiting:
                tasks.add(asyncio.create_task(waiting.pop(0)()))
            gap = GAP_SECONDS if waiting else None
            done, _ = await asyncio.wait(tasks, timeout=gap, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                tasks.discard(task)
                if (error := task.exception()) is None:
                    return task.result()
                fault = fault or error
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(late)
    assert fault is not None
    raise fault
