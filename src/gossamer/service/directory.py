"""Finds, opens, and starts jobs: in a local folder (`LocalJobs`) or on a fleet's frontier (`FleetJobs`)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gossamer import job_folder
from gossamer import settings as configuration
from gossamer.clock import Clock
from gossamer.engine.parsing import make_spider
from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.backends import backend_of
from gossamer.jobs.find import list_names, open_folder
from gossamer.jobs.fleet import FleetJob, submit_job
from gossamer.jobs.job import Job
from gossamer.jobs.local import StoppedJob
from gossamer.jobs.results_folder import mark, results_folder
from gossamer.service.routing import ApiError
from gossamer.service.schemas import JOB_NAME, Submission
from gossamer.service.security import VARIABLES
from gossamer.settings import Settings
from gossamer.storage.registry import is_shared, shared_folder, wants_segments

LOG = "crawl.log"
_CLEAN_EXIT_CODES = (0, 3, 130, -15)
"""Exit codes of a crawl without an error: finished, finished with failed pages, interrupted, or terminated."""
_SUBMITTABLE = ("max_pages", "max_depth", "max_seconds", "scope", "strategy", "sitemaps", "text", "delay",
                "concurrency", "workers", "site_budget", "recrawl")  # fmt: skip


def settings_of(submission: Submission, base: Settings, spiders: Mapping[str, str]) -> Settings:
    """The settings of a submitted job: the operator's, overridden by the few that a submission may set."""
    values: dict[str, Any] = configuration.dump(base)
    values |= {name: getattr(submission, name) for name in _SUBMITTABLE if getattr(submission, name) is not None}
    if submission.spider:
        if submission.spider not in spiders:
            raise ApiError(
                403, f"this service offers no spider {submission.spider!r:.120}", hint="GET /api lists the spiders"
            )
        values["spider"] = spiders[submission.spider]
        # Arguments in the operator's settings are for the operator's spider.
        values.pop("spider_args", None)
    if submission.delay is not None and submission.delay < base.delay:
        raise ApiError(
            403, f"a delay below {base.delay:g} s is not allowed", hint="the operator sets the minimum with --delay"
        )
    for name in ("allow", "deny"):
        patterns = [glob_pattern(glob) for glob in getattr(submission, name)]
        if patterns:
            values[name] = (*getattr(base, name), *patterns) if name == "deny" else tuple(patterns)
    return configuration.build(values)


def glob_pattern(glob: str) -> str:
    """Compile a glob (* matches any text) to a regular expression for a whole URL.

    Each * is an atomic group that matches as little as possible and never backtracks, so matching takes linear time."""
    first, *rest = re.split(r"\*+", glob)
    if not rest:
        return rf"\A{re.escape(first)}\Z"
    *middle, last = rest
    inside = "".join(f"(?>.*?{re.escape(part)})" for part in middle)
    return rf"\A{re.escape(first)}{inside}(?=.{{{len(last)}}}).*(?<={re.escape(last)})\Z"


class Launcher:
    """Starts crawl processes in job folders, and records how they ended."""

    def __init__(self, root: Path, *, most: int) -> None:
        self._root = root
        self._most = most
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._connected: set[str] = set()
        self._starting = asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()
        self.problems: dict[str, str] = {}
        """Job -> the error message of its last run, if that failed."""

    def is_starting(self, name: str) -> bool:
        """Whether the job's process was started and does not respond yet."""
        return name in self._running and name not in self._connected

    def is_ending(self, name: str) -> bool:
        """Whether the job's process has responded before and has not exited."""
        return name in self._running and name in self._connected

    def set_connected(self, name: str) -> None:
        """Note that the job's process responds."""
        if name in self._running:
            self._connected.add(name)

    async def start(self, name: str, urls: Sequence[str], *, max_seconds: float | None = None) -> None:
        """Start a crawl process in the job's folder, which already contains its settings."""
        # Without the lock, two concurrent requests would both start the job.
        async with self._starting:
            await self._start(name, urls, max_seconds)

    def check(self, name: str) -> None:
        """Raise ApiError 409 if the job cannot be started now."""
        if name in self._running:
            raise ApiError(409, f"the last run of {name} is still shutting down", hint="retry in a moment")
        if len(self._running) >= self._most:
            raise ApiError(
                409,
                f"{len(self._running)} crawls are running, the maximum of this service",
                hint="stop one, or raise --most",
            )

    async def _start(self, name: str, urls: Sequence[str], max_seconds: float | None) -> None:
        self.check(name)
        folder = self._root / name
        words = ["crawl", "--job", str(folder.absolute()), "--seeds", "-", "--quiet"]
        words += [] if max_seconds is None else ["--max-seconds", str(max_seconds)]
        with (folder / LOG).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gossamer",
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                env=_environment(),
                # A new session: signals to the service, such as Ctrl-C in its terminal, do not reach the crawl.
                start_new_session=True,
            )
        self._running[name] = process
        self._connected.discard(name)
        self.problems.pop(name, None)
        assert process.stdin is not None
        process.stdin.write("".join(f"{url}\n" for url in urls).encode())
        process.stdin.close()
        task = asyncio.create_task(self._wait(name, process))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _wait(self, name: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self._running.pop(name, None)
        if code not in _CLEAN_EXIT_CODES:
            words = await asyncio.to_thread(_last_words, self._root / name / LOG)
            self.problems[name] = words or f"exit code {code}"

    async def aclose(self) -> None:
        """Stop waiting for the crawls; they keep running."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)


def make_folder(root: Path, name: str, settings: Settings) -> None:
    """Create the folder of a new job with its settings; ApiError 409 if the job exists."""
    folder = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        raise ApiError(409, f"job {name!r} already exists", hint="choose another name, or resume it") from None
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    job_folder.save_settings(folder, msgspec.structs.replace(settings, max_seconds=None))


def _environment() -> dict[str, str]:
    """The environment of a crawl: the service's, without its tokens and its frontier."""
    hidden = {*VARIABLES.values(), "GOSSAMER_FRONTIER", "GOSSAMER_REGION", "GOSSAMER_SHARDS"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _last_words(path: Path) -> str:
    """The last error, or the last line, in the log of a failed crawl."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1].removeprefix("error: ")[:500]


log = logging.getLogger("gossamer.service")
MOST_JOBS = 1000
_MOST_OPEN = 64
_LIST_SECONDS = 10.0
_NAME = re.compile(JOB_NAME)


class JobDirectory(Protocol):
    """Finds jobs by name, and creates them."""

    place: str
    may_start: bool

    async def names(self) -> Sequence[str]:
        """The names of all jobs, sorted."""
        ...

    async def live(self) -> Sequence[str]:
        """The names of the jobs to poll every second."""
        ...

    def problem(self, name: str) -> str:
        """Why the last run of a job failed; empty if it did not fail."""
        ...

    def is_starting(self, name: str) -> bool:
        """Whether a job was started and does not respond yet."""
        ...

    def is_ending(self, name: str) -> bool:
        """Whether a job has no work left and its process has not exited."""
        ...

    async def open(self, name: str) -> Job:
        """Open a job; JobMissing if it does not exist."""
        ...

    async def submit(self, name: str, settings: Settings, urls: Sequence[str]) -> int:
        """Create and start a job; returns the number of new URLs."""
        ...

    async def resume(self, name: str) -> None:
        """Resume a paused job, or start one that is not running."""
        ...

    async def aclose(self) -> None: ...


class _OpenJobs:
    """LRU cache of open jobs; drops those whose process is gone."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Job] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, name: str) -> Job | None:
        found = self._open.get(name)
        if found is not None and found.is_gone:
            del self._open[name]
            await found.aclose()
            return None
        if found is not None:
            self._open.move_to_end(name)
        return found

    def lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def put(self, name: str, handle: Job) -> None:
        self._open[name] = handle
        if len(self._open) > _MOST_OPEN:
            oldest, gone = self._open.popitem(last=False)
            self._locks.pop(oldest, None)
            await gone.aclose()

    async def drop(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            await found.aclose()

    async def aclose(self) -> None:
        for handle in self._open.values():
            await handle.aclose()
        self._open.clear()


class LocalJobs:
    """Jobs in a local folder; the service runs each in its own process."""

    place = "embedded"

    def __init__(self, root: Path, *, clock: Clock, most: int) -> None:
        self._root = root
        self._clock = clock
        self._open = _OpenJobs()
        self._launcher = Launcher(root, most=most)
        self.may_start = True

    async def names(self) -> Sequence[str]:
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[str]:
        try:
            found = [
                path.name
                for path in self._root.iterdir()
                if _NAME.fullmatch(path.name) and (job_folder.is_begun(path) or self._launcher.is_starting(path.name))
            ]
        except OSError:
            return []
        known = {*found, *(name for name in self._launcher.problems if (self._root / name).is_dir())}
        return sorted(known)[:MOST_JOBS]

    async def live(self) -> Sequence[str]:
        return [name for name in await self.names() if (self._root / name / "socket").exists()]

    def problem(self, name: str) -> str:
        return self._launcher.problems.get(name, "")

    def is_starting(self, name: str) -> bool:
        return self._launcher.is_starting(name)

    def is_ending(self, name: str) -> bool:
        return self._launcher.is_ending(name)

    async def open(self, name: str) -> Job:
        async with self._open.lock(_valid_name(name)):
            found = await self._open.get(name)
            if found is None:
                found = await self._open_job(self._root / name, name)
                await self._open.put(name, found)
            return found

    async def _open_job(self, folder: Path, name: str) -> Job:
        try:
            found = await open_folder(folder, name=name, clock=self._clock)
        except JobMissing:
            if self._launcher.is_starting(name):
                raise ApiError(409, "the job is starting", hint="retry in a moment") from None
            if problem := self.problem(name):
                raise ApiError(409, f"the job failed to start: {problem}") from None
            raise JobMissing(f"no job named {name!r}") from None
        if not isinstance(found, StoppedJob):
            self._launcher.set_connected(name)
        return found

    async def submit(self, name: str, settings: Settings, urls: Sequence[str]) -> int:
        self._launcher.check(name)
        await asyncio.to_thread(make_folder, self._root, name, settings)
        await self._launcher.start(name, urls, max_seconds=settings.max_seconds)
        return len(urls)

    async def resume(self, name: str) -> None:
        handle = await self.open(name)
        if isinstance(handle, StoppedJob):
            await self._open.drop(name)
            await self._launcher.start(name, ())
        else:
            await handle.set_state("running")

    async def aclose(self) -> None:
        await self._open.aclose()
        await self._launcher.aclose()


class FleetJobs:
    """Jobs on a shared frontier; the workers of a fleet run them."""

    place = "fleet"

    def __init__(self, url: str, root: Path, *, clock: Clock, named: Sequence[str] = ()) -> None:
        self._url = url
        self._root = root
        self._clock = clock
        self._named = set(named)
        self._open = _OpenJobs()
        self._names: list[str] = []
        self._listed_at: float | None = None
        self.may_start = True

    async def names(self) -> Sequence[str]:
        now = self._clock.monotonic()
        if self._listed_at is None or now - self._listed_at > _LIST_SECONDS:
            self._listed_at = now
            found = await list_names(self._url)
            self._names = sorted({name for name in (*found, *self._named) if _NAME.fullmatch(name)})[:MOST_JOBS]
        return self._names

    async def live(self) -> Sequence[str]:
        return await self.names()

    def problem(self, name: str) -> str:
        return ""

    def is_starting(self, name: str) -> bool:
        return False

    def is_ending(self, name: str) -> bool:
        return False

    async def open(self, name: str) -> Job:
        async with self._open.lock(_valid_name(name)):
            found = await self._open.get(name)
            if found is None:
                found = await FleetJob.open(self._url, name, self._root / name)
                await self._open.put(name, found)
            return found

    async def submit(self, name: str, settings: Settings, urls: Sequence[str]) -> int:
        shared = backend_of(self._url).results_folder(self._url, name)
        if shared is None and shared_folder(settings.sink) is None and not is_shared(settings.sink):
            raise ApiError(
                409,
                "the workers of a fleet need a shared place for their results",
                hint="the operator sets it, as in gossamer serve --sink jsonl:/mnt/shared/crawl",
            )
        with suppress(JobMissing):
            await (await FleetJob.open(self._url, name, self._root / name)).aclose()
            raise ApiError(409, f"job {name!r} already exists", hint="choose another name, or resume it")
        # Load the spider first, so that a broken one fails before anything is written.
        await asyncio.to_thread(make_spider, settings)
        folder = results_folder(self._url, name, settings, self._root / name)
        settings = await asyncio.to_thread(_with_results_id, settings, folder, name, parents=shared is not None)
        added = await submit_job(self._url, name, settings, urls)
        self._named.add(name)
        self._listed_at = None
        return added

    async def resume(self, name: str) -> None:
        await (await self.open(name)).set_state("running")

    async def aclose(self) -> None:
        await self._open.aclose()


def _with_results_id(settings: Settings, folder: Path, name: str, *, parents: bool) -> Settings:
    """Mark the results folder and add its id to the settings; several jobs of a service may share a folder."""
    if not wants_segments(settings.sink):
        return settings
    try:
        return msgspec.structs.replace(settings, results_id=mark(folder, name, parents=parents))
    except OSError as error:
        log.warning("cannot mark %s as the results folder of %s: %s", folder, name, error.strerror)
        return msgspec.structs.replace(settings, results_id=secrets.token_hex(16))


def _valid_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise JobMissing(f"no job named {name[:100]!r}")
    return name
