"""A web of densely linked pages in its own process: many distinct links, without repeated menus.

    python benchmarks/_linked_web.py SITES PAGES PAGE_BYTES LINKS LOG

Each page is determined by its site and number. A sixth of its links go to pages of other sites, the rest to its own: a
third of these as paths, two thirds relative to the folder, every other one of those with a fragment. No page links
twice to another. The server prints its port, logs each request like the simulated web, and ends when stdin closes.
"""

from __future__ import annotations

import asyncio
import posixpath
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self, cast

import msgspec

from gossamer.lab.simweb.log import LogWriter, SimRequest, read
from gossamer.lab.simweb.process import run_simweb
from gossamer.lab.simweb.site import WebPlan
from gossamer.lab.simweb.words import ADJECTIVES, NOUNS

OTHER_SITES_SHARE = 2 / 13
"""Share of a page's links to other sites: twelve of 79."""
_WORDS = (*ADJECTIVES, *NOUNS)
_TAGS = ("em", "strong", "code", "span")


class LinkedWeb:
    """Runs the web during a block; has the parts of `SimWeb` that the benchmarks use."""

    def __init__(self, plan: WebPlan) -> None:
        self.plan = plan
        self._folder = tempfile.TemporaryDirectory(prefix="linked-web-")
        self.log_path = Path(self._folder.name) / "requests.log"
        self.ca_file = Path()

    def __enter__(self) -> Self:
        plan = self.plan
        sizes = (plan.sites, plan.pages_per_site, plan.page_bytes, plan.links_per_page)
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, sizes), str(self.log_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.plan = msgspec.structs.replace(plan, port=int(self._process.stdout.readline()))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    @property
    def seeds(self) -> list[str]:
        return self.plan.seeds()

    def log(self) -> list[SimRequest]:
        return read(self.log_path)

    def reachable(self) -> set[str]:
        plan = self.plan
        return {
            plan.url(site, plan.path(site, page)) for site in range(plan.sites) for page in range(plan.pages_per_site)
        }


class Pages:
    """All pages of a plan."""

    def __init__(self, plan: WebPlan) -> None:
        self._plan = plan
        self._paths = [[plan.path(site, page) for page in range(plan.pages_per_site)] for site in range(plan.sites)]
        self._numbers = [{path: page for page, path in enumerate(paths)} for paths in self._paths]
        chance = random.Random(plan.seed)
        self._prose = [_sentence(chance) for _ in range(2000)]

    def answer(self, site: int, path: str) -> bytes | None:
        """The body of a page, None if there is no such page."""
        page = self._numbers[site].get(path)
        return None if page is None else self._body(site, page)

    def _body(self, site: int, page: int) -> bytes:
        plan = self._plan
        chance = random.Random(f"{plan.seed} {site} {page}")
        title = f"{' '.join(chance.choices(_WORDS, k=4)).title()} {site}-{page}"
        hrefs = self._hrefs(site, page, chance)
        parts = [
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f'<meta name="description" content="{title}"></head>\n<body><article><h1>{title}</h1>\n'
        ]
        size = len(parts[0]) + 30
        page_bytes = plan.page_bytes or 0
        for turn, href in enumerate(hrefs):
            link = f'<a href="{href}">{" ".join(chance.choices(_WORDS, k=3))}</a>'
            text = [link]
            size += len(link) + 9
            while size < page_bytes * (turn + 1) // len(hrefs):
                text.append(self._prose[chance.getrandbits(10)])
                size += len(text[-1]) + 1
            parts.append(f"<p>{' '.join(text)}</p>\n")
        parts.append("</article></body></html>\n")
        return "".join(parts).encode()

    def _hrefs(self, site: int, page: int, chance: random.Random) -> list[str]:
        plan, paths = self._plan, self._paths
        links = plan.links_per_page or 0
        others = int(links * OTHER_SITES_SHARE) if plan.sites > 1 else 0
        # Children first, so that every page can be reached from the site's first page.
        targets = dict.fromkeys(plan.children(page))
        rest = [other for other in range(plan.pages_per_site) if other not in targets]
        targets.update(dict.fromkeys(chance.sample(rest, min(len(rest), links - others - len(targets)))))
        folder = posixpath.dirname(paths[site][page])
        hrefs = []
        for turn, target in enumerate(targets):
            path = paths[site][target]
            if turn % 3 and target:
                path = posixpath.relpath(path, folder)
            if turn % 3 == 2:
                path += f"#part-{turn % 4}"
            hrefs.append(path)
        far: dict[str, None] = {}
        while len(far) < others:
            other = (site + 1 + chance.randrange(plan.sites - 1)) % plan.sites
            far[plan.url(other, chance.choice(paths[other]))] = None
        hrefs += far
        chance.shuffle(hrefs)
        return hrefs


class Connection(asyncio.Protocol):
    """One client connection: requests without bodies, processed in order."""

    def __init__(self, plan: WebPlan, pages: Pages, site: int, log: LogWriter) -> None:
        self._plan, self._pages, self._site, self._log = plan, pages, site, log
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *requests, self._read = (self._read + data).split(b"\r\n\r\n")
        for request in requests:
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        arrived_at = time.time()
        method, path, _ = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        body = self._pages.answer(self._site, path)
        status = "404 Not Found" if body is None else "200 OK"
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body or b'')}\r\n\r\n"
        done_at, origin = time.time(), self._plan.url(self._site, "")
        port = self._transport.get_extra_info("peername")[1]
        self._log.write((arrived_at, done_at, done_at), (origin, method, path), int(status[:3]), (port, ""))
        self._log.flush()
        self._transport.write(head.encode() + (b"" if method == "HEAD" else body or b""))


def _sentence(chance: random.Random) -> str:
    words = chance.choices(_WORDS, k=chance.randrange(12, 30))
    place, tag = chance.randrange(len(words)), chance.choice(_TAGS)
    words[place] = f"<{tag}>{words[place]}</{tag}>"
    return " ".join(words).capitalize() + "."


async def serve(plan: WebPlan, log_path: Path) -> None:
    """Serve every site on its loopback address, all on one port, until stdin closes."""
    loop = asyncio.get_running_loop()
    log = LogWriter(log_path)

    async def listen(site: int) -> int:
        server = await loop.create_server(
            lambda: Connection(plan, pages, site, log), plan.host(site), plan.port, backlog=512
        )
        return int(server.sockets[0].getsockname()[1])

    port = await listen(0)
    plan = msgspec.structs.replace(plan, port=port)
    pages = Pages(plan)
    for site in range(1, plan.sites):
        await listen(site)
    print(port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    sites, pages, page_bytes, links = map(int, sys.argv[1:5])
    plan = WebPlan(sites=sites, pages_per_site=pages, page_bytes=page_bytes, links_per_page=links)
    run_simweb(serve(plan, Path(sys.argv[5])))


if __name__ == "__main__":
    main()
