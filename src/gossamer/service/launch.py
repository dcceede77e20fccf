"""Crawls that the service starts: processes of their own, which go on when the service ends."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer import job_folder
from gossamer import settings as configuration
from gossamer.errors import ConfigError
from gossamer.service.routing import Refused
from gossamer.service.shapes import Submission
from gossamer.service.tokens import VARIABLES
from gossamer.settings import Settings

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
