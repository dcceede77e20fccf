"""The simulated web as a child process: its plan comes on stdin, and it ends when stdin does."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gossamer.errors import ConfigError
from gossamer.sim.server import SimServer
from gossamer.sim.site import WebPlan


class Errand(msgspec.Struct, frozen=True):
    """The first line that a child reads."""

    plan: WebPlan
    log_path: str
    ca_file: str


class Started(msgspec.Struct, frozen=True):
    """The first line that a child writes: the plan with its port, or why there is no web."""

    plan: WebPlan | None = None
    error: str = ""
    hint: str = ""


def run_simweb(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)


async def serve() -> None:
    """Serve until the parent closes our stdin, dies, or sends SIGTERM. Commands are lines: flush, dark N, light N."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    errand = msgspec.json.decode(await lines.readline(), type=Errand)
    server = SimServer(errand.plan, log_path=Path(errand.log_path), ca_file=Path(errand.ca_file))
    try:
        plan = await server.start()
    except ConfigError as error:
        _say(msgspec.json.encode(Started(error=str(error), hint=error.hint)).decode())
        return
    # Ctrl-C goes to every process of the terminal; the web must outlive the crawl that it judges.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = asyncio.create_task(_obey(lines, server))
    loop.add_signal_handler(signal.SIGTERM, listening.cancel)
    _say(msgspec.json.encode(Started(plan=plan)).decode())
    with suppress(asyncio.CancelledError):
        await listening
    await server.aclose()


async def _obey(lines: asyncio.StreamReader, server: SimServer) -> None:
    while line := await lines.readline():
        command, *sites = line.decode().split()
        if command == "flush":
            server.flush()
        elif command == "dark":
            server.dark.update(map(int, sites))
        elif command == "light":
            server.dark.difference_update(map(int, sites))
        _say(command)


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    run_simweb(serve())
