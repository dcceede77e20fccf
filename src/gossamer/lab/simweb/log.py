"""The request log of the simulated web, with checks of a crawl: measured by the server, not by the crawler."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from gossamer import urls
from gossamer.lab.simweb.features import FORBIDDEN, Fate


class SimRequest(msgspec.Struct, frozen=True, gc=False):
    """One request in the server's log. Times are epoch seconds that never go back."""

    arrived_at: float
    headers_at: float
    """When the server started to send the response headers, or the connection closed without them."""
    finished_at: float
    origin: str
    method: str
    target: str
    status: int
    """HTTP status; 0 without a complete response."""
    port: int
    """Port of the client."""
    agent: str

    @property
    def url(self) -> str:
        return self.origin + self.target

    @property
    def site(self) -> str:
        return urls.host_port(self.origin)


class CrawlVerdict(msgspec.Struct, frozen=True):
    """Differences between a crawl and the web's plan; all fields are empty after a perfect crawl."""

    missed: frozenset[str]
    """URLs that were never fetched, or never with their final response."""
    forbidden: dict[str, int]
    repeated: dict[str, int]
    """URLs that were fetched more than once, or more than twice for flaky pages."""
    unknown: dict[str, int]
    """URLs that were fetched although no page links to them."""


class LogWriter:
    """Appends entries to a file; `flush` makes them visible to readers."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[bytes] | None = path.open("ab", buffering=0) if path else None
        self._lines: list[str] = []

    def write(
        self, times: tuple[float, float, float], where: tuple[str, str, str], status: int, client: tuple[int, str]
    ) -> bool:
        """Append one request; returns True if it is the first since the last flush."""
        if self._file is None:
            return False
        origin, method, target = where
        port, agent = client
        words = (origin, _plain(method), _plain(target), str(status), str(port), _plain(agent))
        self._lines.append(f"{times[0]:.6f}\t{times[1]:.6f}\t{times[2]:.6f}\t" + "\t".join(words) + "\n")
        if len(self._lines) >= 1000:
            self.flush()
        return len(self._lines) == 1

    def flush(self) -> None:
        if self._file is not None and self._lines:
            # One write in append mode, so that a reader never finds a partial line between complete ones.
            self._file.write("".join(self._lines).encode())
            self._lines.clear()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


def read(path: Path) -> list[SimRequest]:
    """Read all complete lines of a log, in the order of arrival."""
    entries = []
    for line in path.read_text("utf-8").split("\n")[:-1]:
        arrived, headers, finished, origin, method, target, status, port, agent = line.split("\t")
        entries.append(
            SimRequest(
                float(arrived), float(headers), float(finished), origin, method, target, int(status), int(port), agent
            )
        )
    return sorted(entries, key=lambda entry: entry.arrived_at)


def fetched(entries: Iterable[SimRequest], *, robots: bool = False) -> Counter[str]:
    """Number of requests per URL; robots.txt only on request."""
    return Counter(entry.url for entry in entries if robots or not _is_robots(entry))


def answered(entries: Iterable[SimRequest], status: int = 200) -> Counter[str]:
    """Number of responses with this status per URL, robots.txt excluded."""
    return Counter(entry.url for entry in entries if entry.status == status and not _is_robots(entry))


def robots_fetches(entries: Iterable[SimRequest]) -> Counter[str]:
    """Number of requests for robots.txt per site."""
    return Counter(entry.site for entry in entries if entry.target == "/robots.txt")


def cut_short(entries: Iterable[SimRequest], moments: Sequence[float]) -> list[SimRequest]:
    """The log with every request that was in progress at a kill ended at that time.

    The client of such a request is dead, so the delay counts from the kill."""
    found = []
    for entry in entries:
        ended = [moment for moment in moments if entry.arrived_at <= moment <= entry.headers_at]
        found.append(msgspec.structs.replace(entry, headers_at=ended[0]) if ended else entry)
    return found


def gaps(entries: Iterable[SimRequest]) -> dict[str, float]:
    """For each site with at least two requests, the shortest time from response headers to the next request.

    Requests for robots.txt count too. The time is negative if a request came before the response to an earlier one."""
    least: dict[str, float] = {}
    answered_at: dict[str, float] = {}
    for entry in sorted(entries, key=lambda entry: entry.arrived_at):
        site = entry.site
        if site in answered_at:
            gap = entry.arrived_at - answered_at[site]
            least[site] = min(gap, least.get(site, gap))
        answered_at[site] = max(entry.headers_at, answered_at.get(site, 0.0))
    return least


def max_overlap(entries: Iterable[SimRequest]) -> dict[str, int]:
    """For each site, the maximum number of concurrent requests."""
    events: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for entry in entries:
        # An end sorts before a start in the same microsecond: those two did not overlap.
        events[entry.site] += [(entry.arrived_at, 1), (entry.finished_at, -1)]
    most: dict[str, int] = {}
    for site, changes in events.items():
        running = most[site] = 0
        for _, change in sorted(changes):
            running += change
            most[site] = max(most[site], running)
    return most


def disallowed(entries: Iterable[SimRequest], forbidden: Iterable[str]) -> Counter[str]:
    """Number of requests per disallowed URL, without those that were not requested."""
    never = frozenset(forbidden)
    return Counter(entry.url for entry in entries if entry.url in never)


def judge(entries: Iterable[SimRequest], fates: Mapping[str, Fate]) -> CrawlVerdict:
    """Compare a complete crawl without crashes with the plan's `fates`; robots.txt and sitemaps do not count."""
    entries = list(entries)
    counts, good = fetched(entries), answered(entries)
    once: tuple[Fate, ...] = ("page", "redirect", "missing")
    missed = {
        url
        for url, fate in fates.items()
        if fate not in FORBIDDEN and fate != "optional" and not (good if fate in ("page", "flaky") else counts)[url]
    }
    limits = {url: 1 if fate in once else 2 for url, fate in fates.items() if fate in (*once, "flaky")}
    return CrawlVerdict(
        missed=frozenset(missed),
        forbidden={url: count for url, count in counts.items() if fates.get(url) in FORBIDDEN},
        repeated={url: count for url, count in counts.items() if count > limits.get(url, count)},
        unknown={url: count for url, count in counts.items() if url not in fates and not _is_sitemap(url)},
    )


def _is_robots(entry: SimRequest) -> bool:
    return entry.target.startswith("/robots") and entry.target.endswith(".txt")


def _is_sitemap(url: str) -> bool:
    return urls.path_query(url).startswith("/sitemap") and url.endswith(".xml")


def _plain(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
