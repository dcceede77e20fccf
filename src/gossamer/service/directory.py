"""The jobs that the service knows: found, opened once, and started as crawl processes."""

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
from gossamer.service.routing import Refused
from gossamer.service.schemas import JOB_NAME, Submission
from gossamer.service.security import VARIABLES
from gossamer.settings import Settings
from gossamer.storage.registry import is_shared, shared_folder, wants_segments

LOG = "crawl.log"
_FINE = (0, 3, 130, -15)
"""Exit codes of a crawl that ended as it should: finished, with failed pages, or told to stop."""
_PLAIN = ("max_pages", "max_depth", "max_seconds", "scope", "strategy", "sitemaps", "text", "delay", "concurrency",
          "workers", "site_budget", "recrawl")  # fmt: skip


def settings_of(asked: Submission, base: Settings, spiders: Mapping[str, str]) -> Settings:
    """The settings of a job that was asked for: the operator's, but for the few that a submission may name."""
    values: dict[str, Any] = configuration.dump(base)
    values |= {name: getattr(asked, name) for name in _PLAIN if getattr(asked, name) is not None}
    if asked.spider:
        if asked.spider not in spiders:
            raise Refused(403, f"no spider {asked.spider!r:.120} is offered here", hint="GET /api lists their names")
        values["spider"] = spiders[asked.spider]
    if asked.delay is not None and asked.delay < base.delay:
        raise Refused(
            403, f"a delay below {base.delay:g} s is not allowed here", hint="the operator sets it with --delay"
        )
    for name in ("allow", "deny"):
        patterns = [linear(glob) for glob in getattr(asked, name)]
        if patterns:
            values[name] = (*getattr(base, name), *patterns) if name == "deny" else tuple(patterns)
    return configuration.build(values)


def linear(glob: str) -> str:
    """A regular expression for a whole URL with * for any text.

    Each * takes as little as lets what follows it match, and never gives back: no text can make it slow."""
    first, *rest = re.split(r"\*+", glob)
    if not rest:
        return rf"\A{re.escape(first)}\Z"
    *middle, last = rest
    inside = "".join(f"(?>.*?{re.escape(part)})" for part in middle)
    return rf"\A{re.escape(first)}{inside}(?=.{{{len(last)}}}).*(?<={re.escape(last)})\Z"


class Launcher:
    """Starts crawls in folders, and knows how those ended that it started."""

    def __init__(self, root: Path, *, most: int) -> None:
        self._root = root
        self._most = most
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._arrived: set[str] = set()
        self._starting = asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()
        self.problems: dict[str, str] = {}
        """Job -> the last words of a run that failed."""

    def is_starting(self, name: str) -> bool:
        """Whether a process was started for this job that could not be asked yet."""
        return name in self._running and name not in self._arrived

    def is_ending(self, name: str) -> bool:
        """Whether a process of this job was asked before, and has not ended."""
        return name in self._running and name in self._arrived

    def arrived(self, name: str) -> None:
        """The process of this job can be asked."""
        if name in self._running:
            self._arrived.add(name)

    async def start(self, name: str, urls: Sequence[str], *, max_seconds: float | None = None) -> None:
        """Run the crawl in this job's folder, whose settings are there already."""
        # Two that come at once would both find that nobody runs it.
        async with self._starting:
            await self._start(name, urls, max_seconds)

    def check(self, name: str) -> None:
        """Refuse what cannot be started now."""
        if name in self._running:
            raise Refused(409, f"the last run of {name} is still ending", hint="ask again in a moment")
        if len(self._running) >= self._most:
            raise Refused(
                409, f"{len(self._running)} crawls run already, which is the most", hint="stop one, or see --most"
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
                # It is not ended by what ends the service, and a Ctrl-C on the service's terminal is not for it.
                start_new_session=True,
            )
        self._running[name] = process
        self._arrived.discard(name)
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
        if code not in _FINE:
            words = await asyncio.to_thread(_last_words, self._root / name / LOG)
            self.problems[name] = words or f"it ended with exit code {code}"

    async def aclose(self) -> None:
        """Let go of the crawls; they go on."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)


def make_folder(root: Path, name: str, settings: Settings) -> None:
    """A new job's folder with its settings; a Refused if the name is taken."""
    folder = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        raise Refused(409, f"there is a job {name!r} already", hint="choose another name, or resume it") from None
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    job_folder.save_settings(folder, msgspec.structs.replace(settings, max_seconds=None))


def _environment() -> dict[str, str]:
    """Ours, without what is only for the service: the tokens, and where its jobs are."""
    hidden = {*VARIABLES.values(), "GOSSAMER_FRONTIER", "GOSSAMER_REGION", "GOSSAMER_SHARDS"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _last_words(path: Path) -> str:
    """The last line that a crawl wrote that failed."""
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


class Directory(Protocol):
    """Where jobs are found by their names, and made."""

    place: str
    may_start: bool

    async def names(self) -> Sequence[str]:
        """The jobs that there are, in order."""
        ...

    async def live(self) -> Sequence[str]:
        """Those that are worth a look every second."""
        ...

    def problem(self, name: str) -> str:
        """Why the last run of a job failed; empty if it did not."""
        ...

    def is_starting(self, name: str) -> bool:
        """Whether a job was started and cannot be asked yet."""
        ...

    def is_ending(self, name: str) -> bool:
        """Whether the process of a job's run has not ended, though there is nothing more to do."""
        ...

    async def reach(self, name: str) -> Job:
        """A job, to be asked; JobMissing if there is none of that name."""
        ...

    async def submit(self, name: str, settings: Settings, urls: Sequence[str]) -> int:
        """Make a job and let it run; how many of the URLs were new."""
        ...

    async def resume(self, name: str) -> None:
        """Let a job go on that is paused, or that nobody runs."""
        ...

    async def aclose(self) -> None: ...


class _Open:
    """Jobs that were reached, the ones asked last; those that are gone are reached anew."""

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

    async def put(self, name: str, reached: Job) -> None:
        self._open[name] = reached
        if len(self._open) > _MOST_OPEN:
            oldest, gone = self._open.popitem(last=False)
            self._locks.pop(oldest, None)
            await gone.aclose()

    async def drop(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            await found.aclose()

    async def aclose(self) -> None:
        for reached in self._open.values():
            await reached.aclose()
        self._open.clear()


class Crawls:
    """Jobs in a folder, each run by a process of its own; the service starts such processes."""

    place = "embedded"

    def __init__(self, root: Path, *, clock: Clock, most: int) -> None:
        self._root = root
        self._clock = clock
        self._open = _Open()
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

    async def reach(self, name: str) -> Job:
        async with self._open.lock(_checked(name)):
            found = await self._open.get(name)
            if found is None:
                found = await self._reach(self._root / name, name)
                await self._open.put(name, found)
            return found

    async def _reach(self, folder: Path, name: str) -> Job:
        try:
            found = await open_folder(folder, name=name, clock=self._clock)
        except JobMissing:
            if self._launcher.is_starting(name):
                raise Refused(409, "the job is being started", hint="ask again in a moment") from None
            if problem := self.problem(name):
                raise Refused(409, f"the job could not be started: {problem}") from None
            raise JobMissing(f"there is no job {name!r}") from None
        if not isinstance(found, StoppedJob):
            self._launcher.arrived(name)
        return found

    async def submit(self, name: str, settings: Settings, urls: Sequence[str]) -> int:
        self._launcher.check(name)
        await asyncio.to_thread(make_folder, self._root, name, settings)
        await self._launcher.start(name, urls, max_seconds=settings.max_seconds)
        return len(urls)

    async def resume(self, name: str) -> None:
        reached = await self.reach(name)
        if isinstance(reached, StoppedJob):
            await self._open.drop(name)
            await self._launcher.start(name, ())
        else:
            await reached.set_state("running")

    async def aclose(self) -> None:
        await self._open.aclose()
        await self._launcher.aclose()


class OnFrontier:
    """Jobs on a fleet's frontier; workers elsewhere run them."""

    place = "fleet"

    def __init__(self, url: str, root: Path, *, clock: Clock, named: Sequence[str] = ()) -> None:
        self._url = url
        self._root = root
        self._clock = clock
        self._named = set(named)
        self._open = _Open()
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

    async def reach(self, name: str) -> Job:
        async with self._open.lock(_checked(name)):
            found = await self._open.get(name)
            if found is None:
                found = await FleetJob.open(self._url, name, self._root / name)
                await self._open.put(name, found)
            return found

    async def submit(self, name: str, settings: Settings, urls: Sequence[str]) -> int:
        shared = backend_of(self._url).results_folder(self._url, name)
        if shared is None and shared_folder(settings.sink) is None and not is_shared(settings.sink):
            raise Refused(
                409,
                "workers on several machines need one place for what they store",
                hint="the operator names it: gossamer serve --sink jsonl:/mnt/shared/crawl",
            )
        with suppress(JobMissing):
            await (await FleetJob.open(self._url, name, self._root / name)).aclose()
            raise Refused(409, f"there is a job {name!r} already", hint="choose another name, or resume it")
        # A spider that cannot be loaded is found out before anything is kept.
        await asyncio.to_thread(make_spider, settings)
        folder = results_folder(self._url, name, settings, self._root / name)
        settings = await asyncio.to_thread(_with_results_id, settings, folder, name, parents=shared is not None)
        added = await submit_job(self._url, name, settings, urls)
        self._named.add(name)
        self._listed_at = None
        return added

    async def resume(self, name: str) -> None:
        await (await self.reach(name)).set_state("running")

    async def aclose(self) -> None:
        await self._open.aclose()


def _with_results_id(settings: Settings, folder: Path, name: str, *, parents: bool) -> Settings:
    """The settings with the id of the results folder, which is marked; several jobs of a service may share one."""
    if not wants_segments(settings.sink):
        return settings
    try:
        return msgspec.structs.replace(settings, results_id=mark(folder, name, parents=parents))
    except OSError as error:
        log.warning("%s cannot be marked as the results folder of %s: %s", folder, name, error.strerror)
        return msgspec.structs.replace(settings, results_id=secrets.token_hex(16))


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise JobMissing(f"there is no job {name[:100]!r}")
    return name
