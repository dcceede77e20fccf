"""End-to-end verification: crawls a simulated web, kills workers, and checks the web's log and the stored output."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from gossamer.clock import Clock
from gossamer.engine.supervision import dies_with_us
from gossamer.errors import ConfigError, GossamerError, JobMissing
from gossamer.frontier.backends import is_fleet, open_fleet, remove_job
from gossamer.jobs.results_folder import results_folder
from gossamer.lab.simweb.features import FORBIDDEN, Fate
from gossamer.lab.simweb.log import SimRequest, disallowed, fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Record
from gossamer.redact import masked_address
from gossamer.settings import Settings, expand
from gossamer.storage.base import Reader
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import FORMATS, formats_keeping, has_tables, load, parted
from gossamer.storage.tables import ask

_ON_THE_WIRE_SECONDS = 1.0
"""Tolerance for requests that were sent just before a kill or a wake-up and arrive later at a busy server."""


class InjectedFault(NamedTuple):
    """A fault injected into the crawl. A stopped worker continues at `until`."""

    kind: Literal["worker killed", "all killed", "worker stopped"]
    at: float
    until: float = 0.0


class ImpoliteGap(msgspec.Struct, frozen=True):
    """Two requests to a site with less than the delay between them."""

    site: str
    at: float
    seconds: float
    """Seconds from the first response's headers to the arrival of the second request; negative if they overlapped."""


class StoredRow(NamedTuple):
    """A stored page."""

    url: str
    status: int


class VerifyVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the checks. The crawl passes if the first four fields are empty."""

    lost: tuple[str, ...]
    """Planned pages that at least one sink does not have with the expected response."""
    stored_twice: dict[str, int]
    impolite: tuple[ImpoliteGap, ...]
    forbidden: dict[str, int]
    """Pages fetched although robots.txt disallows them."""
    pages: int
    requests: int
    """Number of requests, robots.txt excluded."""
    fetched_again: int
    again_at_most: int
    """Number of repeated requests that the faults explain: everything that was in progress."""
    gaps: int
    least_gap: float | None
    late: int
    """Requests that a stopped worker had started to send, and sent when it continued."""

    @property
    def is_good(self) -> bool:
        """Whether all checks passed."""
        broken = self.lost or self.stored_twice or self.impolite or self.forbidden
        return not broken and self.fetched_again <= self.again_at_most


def judge(
    log: Sequence[SimRequest],
    stored: Mapping[str, Iterable[StoredRow]],
    fates: Mapping[str, Fate],
    *,
    injected: Sequence[InjectedFault],
    delay: float,
    in_hand: int,
) -> VerifyVerdict:
    """Compare the log and `stored` (rows of each sink) with the plan; one fault may repeat `in_hand` requests."""
    wanted = {url for url, fate in fates.items() if fate not in FORBIDDEN and fate != "optional"}
    lost: set[str] = set()
    twice: dict[str, int] = {}
    for rows in stored.values():
        counts, good = Counter[str](), set[str]()
        for url, status in rows:
            counts[url] += 1
            if fates.get(url) not in ("page", "flaky") or status == 200:
                good.add(url)
        lost |= wanted - good
        twice |= {url: count for url, count in counts.items() if count > 1}
    asked = fetched(log)
    once = {url for url in asked if fates.get(url) != "flaky"}
    least, impolite, gaps, late = politeness(log, injected, delay=delay)
    return VerifyVerdict(
        lost=tuple(sorted(lost)),
        stored_twice=twice,
        impolite=impolite,
        forbidden=dict(disallowed(log, (url for url, fate in fates.items() if fate in FORBIDDEN))),
        pages=len(wanted),
        requests=asked.total(),
        fetched_again=sum(asked[url] - 1 for url in once),
        again_at_most=len(injected) * in_hand,
        gaps=gaps,
        least_gap=least,
        late=late,
    )


def politeness(
    log: Sequence[SimRequest], injected: Sequence[InjectedFault], *, delay: float
) -> tuple[float | None, tuple[ImpoliteGap, ...], int, int]:
    """Return the smallest gap, the gaps below the delay, the number of gaps, and the number of late requests.

    The request of a killed sender ends with the kill, so the delay counts from then."""
    sites: dict[str, list[SimRequest]] = defaultdict(list)
    last_of_port = {(entry.site, entry.port): entry for entry in log}
    for entry in log:
        sites[entry.site].append(entry)
    kills = [event.at for event in injected if event.kind != "worker stopped"]
    wakes = [event.until for event in injected if event.kind == "worker stopped"]
    least: float | None = None
    wrong: list[ImpoliteGap] = []
    count = 0
    came_late: set[tuple[str, float]] = set()
    for site, entries in sites.items():
        before = entries[0]
        for entry in entries[1:]:
            gap = entry.arrived_at - before.headers_at
            count += 1
            if gap < delay and before is last_of_port[site, before.port]:
                # It may have been in transit when its sender died.
                died = [
                    kill
                    for kill in kills
                    if before.arrived_at <= kill + _ON_THE_WIRE_SECONDS
                    and before.headers_at >= kill
                    and entry.arrived_at >= kill + delay
                ]
                gap = entry.arrived_at - max(died) if died else gap
            woken = [wake for wake in wakes if _just_after(wake, before) or _just_after(wake, entry)]
            if gap < delay and woken and (site, woken[0]) not in came_late:
                came_late.add((site, woken[0]))
            else:
                if gap < delay:
                    wrong.append(ImpoliteGap(site, entry.arrived_at, gap))
                least = gap if least is None else min(least, gap)
            before = max(before, entry, key=lambda one: one.headers_at)
    return least, tuple(wrong), count, len(came_late)


def _just_after(wake: float, entry: SimRequest) -> bool:
    return wake <= entry.arrived_at <= wake + _ON_THE_WIRE_SECONDS


_LOOK_SECONDS = 0.05
_DEATHS_IN_A_ROW = 4
"""The supervisor's restart delay grows with each kill; after this many kills of workers, kill the supervisor."""


class Processes:
    """`gossamer crawl` with its workers, in a session of its own, with output to a file."""

    def __init__(self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._words = words
        self._folder = folder
        self._environment = environment
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._deaths = 0
        self.said = folder / "crawl.log"

    async def start(self) -> None:
        """Start or resume the crawl."""
        with self.said.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gossamer", "crawl", *self._words,
                cwd=self._folder, env=dict(self._environment), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                # If this process is killed, the crawl must not outlive the simulated web.
                preexec_fn=dies_with_us(),
            )  # fmt: skip
        self._deaths = 0

    @property
    def code(self) -> int | None:
        """Exit code of the crawl; None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def wait(self) -> int:
        """Wait for the crawl to exit, and return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def workers(self) -> list[int]:
        """Process ids of the live workers; empty for a crawl with one worker and no fleet."""
        return children(self._process.pid) if self._process is not None and self.code is None else []

    async def kill(self, chance: random.Random) -> InjectedFault:
        """Kill a worker with SIGKILL, or kill all processes at once and restart them."""
        workers = self.workers()
        if not workers or self._deaths >= _DEATHS_IN_A_ROW or chance.random() < 0.3:
            at = self._clock.epoch()
            await self.end()
            await self.start()
            return InjectedFault("all killed", at)
        at = self._clock.epoch()
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
        self._deaths += 1
        return InjectedFault("worker killed", at)

    async def stop(self, chance: random.Random, seconds: float) -> InjectedFault | None:
        """Stop a worker with SIGSTOP for some seconds; None if there is no worker to stop."""
        if not (workers := self.workers()):
            return None
        pid, at = chance.choice(workers), self._clock.epoch()
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return None
        try:
            await self._clock.sleep(seconds)
        finally:
            woken_at = self._clock.epoch()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return InjectedFault("worker stopped", at, woken_at)

    async def end(self) -> None:
        """Kill all remaining processes with SIGKILL."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        # The workers are not children of this process: they are gone once the session has no process to signal.
        with suppress(ProcessLookupError, PermissionError):
            while True:
                os.killpg(self._process.pid, signal.SIGKILL)
                await asyncio.sleep(_LOOK_SECONDS)


def children(pid: int) -> list[int]:
    """The live direct children of a process."""
    if not Path("/proc/self/stat").exists():
        lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in lines.stdout.splitlines()]
        return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return sorted(found)


def isolated_sinks(sinks: Sequence[str], table: str) -> list[str]:
    """The sinks with files and tables of this run only; ConfigError for sinks that cannot be separated or read back."""
    found, files = [], formats_keeping("rows")
    for name in sinks:
        kind = parted(name)[0]
        if has_tables(name) and "table=" not in name:
            found.append(f"{name}{'&' if '?' in name else '?'}table={table}")
        elif has_tables(name) or (kind in FORMATS and (kind not in files or ":/" in name)):
            raise ConfigError(
                f"sink {masked_address(name)}: verify cannot use an existing location, or cannot read this sink back",
                hint=f"name {', '.join(files)}, postgresql:// or mysql://; verify adds its own paths and tables",
            )
        else:
            found.append(name)
    return found


async def read_back(name: str, folder: Path, *, is_fleet: bool) -> list[StoredRow]:
    """Read the rows of a sink. For a fleet, which may store stale visits, the visit with the highest token wins."""
    kind = parted(name)[0]
    # The reader of tables expands the address itself, like the sink.
    job = StoredJob(folder, [name if has_tables(name) else expand(name, source="sink")])
    reader = await asyncio.to_thread(_reader_of, job, kind)
    if reader is None:
        return []
    return await asyncio.to_thread(lambda: [_row(one) for one in reader.records(all_visits=not is_fleet)])


def _reader_of(job: StoredJob, kind: str) -> Reader | None:
    """The reader of a format; for a third-party sink, the first reader that finds data."""
    if kind in FORMATS:
        return next(load(FORMATS[kind].reader)(job), None)
    return job.need("rows")


def _row(record: Record) -> StoredRow:
    return StoredRow(record.page.url, record.page.status or 0)


async def drop_tables(name: str) -> None:
    """Drop the tables of a sink; its files are deleted with their folder."""
    if has_tables(name):
        for ending in ("", "_items", "_items_rejected"):
            await _ask(name, f"DROP TABLE IF EXISTS {{}}{ending}")


async def _ask(name: str, statement: str) -> list[Any]:
    """Run a statement on the table that a sink's address names; all its parts come from this module."""
    url, _, table = expand(name, source="sink").rpartition("table=")
    return await ask(url[:-1], statement.format(table))


_BATCH = 4
_CONCURRENCY = 32
_KINDS = ("plain", "redirects", "robots-part")
ReportLine = Callable[[str], None]


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a verification run."""

    job: str
    frontier: str = ""
    """Address of the frontier; empty for the embedded one."""
    sinks: tuple[str, ...] = ("jsonl",)
    workers: int = 3
    kills: int = 5
    stops: int = 1
    sites: int = 12
    pages: int = 40
    delay: float = 0.2
    lease_seconds: float = 3.0
    seconds: float = 300.0
    """Time limit of the crawl."""
    seed: int = 1
    folder: Path | None = None
    """Parent of the run's folder; None for the system's temporary folder."""
    keep: bool = False

    @property
    def is_fleet(self) -> bool:
        """Whether the frontier is shared by a fleet."""
        return is_fleet(self.frontier)

    @property
    def has_children(self) -> bool:
        """Whether workers run as separate processes."""
        return self.is_fleet or self.workers > 1


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification run."""

    options: VerifyOptions
    verdict: VerifyVerdict
    injected: tuple[InjectedFault, ...]
    seconds: float
    fault: str = ""
    """Why the crawl did not finish; empty if it did."""
    kept: str = ""
    """The folder with all files, if they are kept."""

    @property
    def is_good(self) -> bool:
        """Whether the crawl finished and all checks passed."""
        return not self.fault and self.verdict.is_good


async def run_verification(options: VerifyOptions, *, clock: Clock, report: ReportLine) -> VerifyResult:
    """Crawl a simulated web with real processes, inject faults, and compare the output with the plan."""
    sinks = isolated_sinks(options.sinks, f"gossamer_{options.job.replace('-', '_').lower()}")
    options = msgspec.structs.replace(options, sinks=tuple(sinks))
    await _refuse_known_job(options)
    place = Path(tempfile.mkdtemp(prefix=f"{options.job}-", dir=options.folder))
    try:
        async with _clean(options, place, report):
            return await _crawl(options, place, clock=clock, report=report)
    finally:
        if not options.keep:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


async def _refuse_known_job(options: VerifyOptions) -> None:
    if not options.is_fleet:
        return
    try:
        fleet = await open_fleet(options.frontier, options.job)
    except JobMissing:
        return
    await fleet.aclose()
    raise ConfigError(
        f"job {options.job!r} already exists in {masked_address(options.frontier)}",
        hint="omit --job, or choose an unused name",
    )


@asynccontextmanager
async def _clean(options: VerifyOptions, place: Path, report: ReportLine) -> AsyncIterator[None]:
    """Delete the job, its results, and its tables at the end, and report a failure to do so."""
    try:
        yield
    finally:
        if not options.keep:
            try:
                if options.is_fleet:
                    await remove_job(options.frontier, options.job)
                    results = results_folder(options.frontier, options.job, Settings(), place)
                    await asyncio.to_thread(shutil.rmtree, results, ignore_errors=True)
                for name in options.sinks:
                    await drop_tables(name)
            except (GossamerError, OSError) as error:
                where = masked_address(options.frontier) or "its sinks"
                report(f"cannot delete the data of job {options.job!r} in {where}: {error}")


async def _crawl(options: VerifyOptions, place: Path, *, clock: Clock, report: ReportLine) -> VerifyResult:
    names = sys.platform != "linux"
    web = SimWeb(
        log_path=place / "requests.log", sites=options.sites, pages_per_site=options.pages, seed=options.seed,
        names=names, kinds=_KINDS, page_bytes=4000, links_per_page=12, latency_seconds=0.02,
    )  # fmt: skip
    with web:
        fates = web.fates()
        (place / "seeds.txt").write_text("\n".join(web.seeds), "utf-8")
        processes = Processes(_words(options, names), folder=place, environment=_environment(options), clock=clock)
        began_at, injected, fault = clock.monotonic(), list[InjectedFault](), ""
        try:
            await processes.start()
            async with asyncio.timeout(options.seconds):
                async for event in _inject_faults(options, processes, web, expected=len(web.reachable()), clock=clock):
                    injected.append(event)
                    report(f"{clock.monotonic() - began_at:6.1f} s  {event.kind}")
                if code := await processes.wait():
                    fault = f"the crawl failed with exit code {code}: {_last_words(processes.said)}"
        except TimeoutError:
            fault = f"the crawl did not finish within {options.seconds:.0f} s"
        finally:
            await processes.end()
        seconds = clock.monotonic() - began_at
        log = web.log()
    folder = results_folder(options.frontier, options.job, Settings(), place / "crawls" / options.job)
    stored = {name: await read_back(name, folder, is_fleet=options.is_fleet) for name in options.sinks}
    verdict = judge(
        log,
        stored,
        fates,
        injected=injected,
        delay=options.delay,
        in_hand=_BATCH * min(options.sites, options.workers * _CONCURRENCY),
    )
    kept = str(place) if options.keep else ""
    return VerifyResult(
        options=options, verdict=verdict, injected=tuple(injected), seconds=seconds, fault=fault, kept=kept
    )


def _words(options: VerifyOptions, names: bool) -> list[str]:
    words = [
        "--seeds", "seeds.txt", "--job", options.job, "--quiet", "--allow-private", "--workers", str(options.workers),
        "--delay", str(options.delay), "--lease-seconds", str(options.lease_seconds), "--batch", str(_BATCH),
        "--concurrency", str(_CONCURRENCY), "--backoff-seconds", "0.5",
        # That workers die is not the pages' fault here.
        "--max-deliveries", str(2 * (options.kills + options.stops) + 5),
    ]  # fmt: skip
    words += ["--resolve", "*.sim=127.0.0.1"] if names else []
    return [*words, *(word for name in options.sinks for word in ("--sink", name))]


def _environment(options: VerifyOptions) -> Mapping[str, str]:
    """The user's environment without GOSSAMER_* settings; the frontier's address may contain a password."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    return {**kept, "GOSSAMER_FRONTIER": options.frontier}


async def _inject_faults(
    options: VerifyOptions, processes: Processes, web: SimWeb, *, expected: int, clock: Clock
) -> AsyncIterator[InjectedFault]:
    """Inject the faults, spread over the whole crawl; fewer if it finishes before."""
    chance = random.Random(options.seed)
    kinds = ["kill"] * options.kills + ["stop"] * options.stops
    chance.shuffle(kinds)
    seen = 0
    for number, kind in enumerate(kinds):
        # Wait for a fetch between two faults, so that each affects running work.
        mark = max(seen + 2, int(expected * (number + chance.uniform(0.2, 1.0)) / (len(kinds) + 1)))
        while (seen := _requests(web)) < mark or (options.has_children and not processes.workers()):
            if processes.code is not None:
                return
            await clock.sleep(_LOOK_SECONDS)
        if kind == "kill":
            yield await processes.kill(chance)
        elif (event := await processes.stop(chance, 1.3 * options.lease_seconds + 2 * options.delay)) is not None:
            yield event


def _requests(web: SimWeb) -> int:
    """Number of lines in the log."""
    return web.log_path.read_bytes().count(b"\n") if web.log_path.exists() else 0


def _last_words(path: Path) -> str:
    text = path.read_text("utf-8", "replace").strip()
    return text.splitlines()[-1][:300] if text else "without a word"
