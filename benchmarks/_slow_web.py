"""A web of slow sites on loopback addresses: one page each, with slow, timed-out, or no responses.

    python benchmarks/_slow_web.py SITES SCALE

Prints its port and serves until stdin closes. Latencies are log-normal around 0.4 s, between 0.05 and 5 s; of a hundred
sites, two reset the connection and two never respond. Everything is determined by the number of the site.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from math import log
from types import TracebackType
from typing import Self

from gossamer.lab.simweb.pages import PageRenderer
from gossamer.lab.simweb.site import WebPlan

MEDIAN_SECONDS, SPREAD, LEAST_SECONDS, MOST_SECONDS = 0.4, 1.0, 0.05, 5.0


def latency_seconds(site: int) -> float | None:
    """Latency of a site; None: it resets the connection; infinity: it never responds."""
    chance = random.Random(f"latency {site}")
    fate = chance.random()
    if fate < 0.02:
        return None
    if fate < 0.04:
        return float("inf")
    return min(MOST_SECONDS, max(LEAST_SECONDS, chance.lognormvariate(log(MEDIAN_SECONDS), SPREAD)))


def answering(sites: int) -> int:
    """Number of sites that return a page."""
    return sum(1 for site in range(sites) if latency_seconds(site) not in (None, float("inf")))


class SlowWeb:
    """Runs the web in its own process during a block; latencies are multiplied by `scale`."""

    def __init__(self, sites: int, scale: float) -> None:
        self._sites = sites
        self._scale = scale
        self.seeds: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._sites), str(self._scale)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        plan = WebPlan(sites=self._sites, pages_per_site=1, port=int(self._process.stdout.readline()))
        self.seeds = plan.seeds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def serve(sites: int, scale: float) -> None:
    listener = socket.create_server(("0.0.0.0", 0), backlog=4096)
    plan = WebPlan(sites=sites, pages_per_site=1, port=listener.getsockname()[1])
    pages = PageRenderer(plan)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host, peer = writer.get_extra_info("sockname")[0], writer.get_extra_info("peername")[0]
            site = plan.site_of(host)
            await reader.readuntil(b"\r\n\r\n")
            wait = latency_seconds(site) if site is not None and peer.startswith("127.") else None
            if site is None or wait is None:
                writer.transport.abort()
                return
            await asyncio.sleep(wait * scale if wait != float("inf") else 3600)
            body = pages.answer(site, "/").body
            lines = ("HTTP/1.1 200 OK", "Content-Type: text/html", f"Content-Length: {len(body)}", "Connection: close")
            writer.write("\r\n".join((*lines, "", "")).encode() + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    await asyncio.start_server(answer, sock=listener)
    print(plan.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    # Connections that never get a response would each log an error at exit.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
