"""A web that forgives nothing: each page is linked from exactly one page, which is on another host.

What a crawler forgets of it, it never finds again. Hosts are names under .test; crawl it with `ChainWeb.options`."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gossamer.lab.simweb.log import LogWriter, SimRequest, fetched, gaps, read


class Chain(NamedTuple):
    """The plan: page 0 is the seed; every other page has one parent with a lower number on another host."""

    pages: int
    hosts: int
    seed: int

    def host(self, page: int) -> int:
        return random.Random(f"host/{self.seed}/{page}").randrange(self.hosts)

    def children(self) -> dict[int, list[int]]:
        chance = random.Random(f"chain/{self.seed}")
        hosts = [self.host(page) for page in range(self.pages)]
        found: dict[int, list[int]] = {}
        for page in range(1, self.pages):
            # Young parents make a deep web: a lost page takes many others with it.
            parents = range(max(0, page // 2), page)
            others = [parent for parent in chance.choices(parents, k=40) if hosts[parent] != hosts[page]]
            parent = others[0] if others else next(p for p in reversed(range(page)) if hosts[p] != hosts[page])
            found.setdefault(parent, []).append(page)
        return found


class ChainWeb:
    """A running web of this kind, judged by its own log."""

    def __init__(self, chain: Chain, port: int, log: Path) -> None:
        self.chain, self.port, self._log = chain, port, log

    def url(self, page: int) -> str:
        return f"http://h{self.chain.host(page)}.test:{self.port}/{page}"

    @property
    def seeds(self) -> list[str]:
        return [self.url(0)]

    @property
    def options(self) -> tuple[str, ...]:
        return ("--allow-private", "--scope", "any", "--no-robots", "--resolve", "*.test=127.0.0.1")

    @property
    def all(self) -> set[str]:
        return {self.url(page) for page in range(self.chain.pages)}

    def log(self) -> list[SimRequest]:
        return read(self._log)

    def fetched(self) -> Counter[str]:
        """How often each page was requested."""
        return fetched(self.log())

    def impolite(self, delay: float) -> list[float]:
        """The least gap of each host that had two requests closer than its delay."""
        return [gap for gap in gaps(self.log()).values() if gap < delay]


@contextmanager
def chain_web(pages: int = 3000, hosts: int = 60, seed: int = 1, latency_seconds: float = 0.02) -> Iterator[ChainWeb]:
    """Serve such a web from a process of its own while the block lasts."""
    chain = Chain(pages, hosts, seed)
    with tempfile.TemporaryDirectory(prefix="chainweb-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "requests.log"
        log.touch()
        words = [sys.executable, __file__, *map(str, chain), str(latency_seconds), str(log)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield ChainWeb(chain, int(process.stdout.readline()), log)
        finally:
            process.kill()
            process.communicate()


async def _serve(chain: Chain, latency: float, log: LogWriter) -> None:
    children = chain.children()
    # The clock that never steps back, in epoch seconds.
    offset = time.time() - time.monotonic()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                arrived = offset + time.monotonic()
                lines = head.decode("latin-1").split("\r\n")
                target = lines[0].split(" ")[1]
                fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                await asyncio.sleep(latency)
                number = int(target[1:]) if target[1:].isdigit() else -1
                host = fields["host"]
                there = 0 <= number < chain.pages and host.startswith(f"h{chain.host(number)}.test:")
                suffix = host.partition(":")[2]
                links = [
                    f'<a href="http://h{chain.host(child)}.test:{suffix}/{child}">{child}</a>'
                    for child in (children.get(number, ()) if there else ())
                ]
                body = f"<title>{number}</title>{' '.join(links)}".encode()
                status = "200 OK" if there else "404 Not Found"
                answer = (
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                headers = offset + time.monotonic()
                writer.write(answer)
                await writer.drain()
                times = arrived, headers, offset + time.monotonic()
                log.write(times, (f"http://{host}", "GET", target), int(status[:3]), (port, ""))
                log.flush()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    # It ends with the test that started it.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    pages, hosts, seed, latency, path = sys.argv[1:]
    asyncio.run(_serve(Chain(int(pages), int(hosts), int(seed)), float(latency), LogWriter(Path(path))))
