"""Notifications about a job's end, stall, or errors, by webhook or command."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import subprocess
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from gossamer.clock import Clock
from gossamer.errors import ConfigError
from gossamer.model import Counts

log = logging.getLogger("gossamer.notices")
LOOK_SECONDS = 5.0
_TRIES = 3
_ANSWER_SECONDS = 15.0
_COMMAND_SECONDS = 60.0
_LEAST_PAGES = 50
"""Pages since the last check below which the share of failures is not evaluated."""


class RunSample(NamedTuple):
    """A sample of a run."""

    at: float
    pages: int
    failures: int
    works: bool
    """Whether something can be fetched: sites are ready or leased, and the job is not paused."""


class ObservedRun(Protocol):
    """A run to watch."""

    async def counts(self) -> Counts: ...

    @property
    def figures(self) -> tuple[int, int]:
        """Pages, and failures among them, since the run began."""
        ...


class Judge:
    """Detects stalls and high error rates; reports each condition once until it has cleared."""

    def __init__(self, *, stalled_after: float, errors_above: float) -> None:
        self._stalled_after = stalled_after
        self._errors_above = errors_above
        self._moved: RunSample | None = None
        self._base: RunSample | None = None
        self._reported: set[str] = set()

    def events(self, look: RunSample) -> list[tuple[str, str]]:
        """The events to report now, as name and text."""
        found = []
        if self._moved is None or look.pages > self._moved.pages or not look.works:
            self._moved = look
            self._reported.discard("stalled")
        elif look.at - self._moved.at >= self._stalled_after and "stalled" not in self._reported:
            self._reported.add("stalled")
            found.append(("stalled", f"no page stored for {look.at - self._moved.at:.0f} s, although sites are ready"))
        self._base = self._base or look
        pages = look.pages - self._base.pages
        if pages >= _LEAST_PAGES:
            share = (look.failures - self._base.failures) / pages
            self._base = look
            if share <= self._errors_above:
                self._reported.discard("errors")
            elif "errors" not in self._reported:
                self._reported.add("errors")
                found.append(("errors", f"{share:.0%} of the last {pages} pages failed"))
        return found


class Notifier:
    """Sends notifications to all targets; a target that cannot be reached is logged and does not affect the crawl."""

    def __init__(self, targets: Sequence[str]) -> None:
        for target in targets:
            check(target)
        self._targets = targets

    async def send(self, event: str, text: str, **about: object) -> None:
        """Send a notification to all targets; returns after all attempts."""
        body = json.dumps({"event": event, "text": text, **about}).encode()
        await asyncio.gather(*(self._post(target, body) for target in self._targets))

    async def _post(self, target: str, body: bytes) -> None:
        send = _run if target.startswith("exec:") else _post
        name = target if target.startswith("exec:") else target.split("?", maxsplit=1)[0].rsplit("@", maxsplit=1)[-1]
        for number in range(_TRIES):
            try:
                await asyncio.to_thread(send, target, body)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                log.warning("notification to %s failed (attempt %d of %d): %s", name, number + 1, _TRIES, error)
                await asyncio.sleep(2.0**number if number + 1 < _TRIES else 0.0)
            else:
                return


def check(target: str) -> None:
    """Raise ConfigError if a target is neither a webhook nor a command."""
    words = shlex.split(target.removeprefix("exec:")) if target.startswith("exec:") else []
    if not words and not target.startswith(("http://", "https://")):
        raise ConfigError(
            f"--notify {target}: neither a URL nor a command",
            hint="for example: --notify https://host/hook, or --notify 'exec:mail -s crawl me@host'",
        )


async def watch(run: ObservedRun, notifier: Notifier, judge: Judge, *, job: str, clock: Clock) -> None:
    """Sample a run until cancelled, and send a notification for each event."""
    while True:
        await clock.sleep(LOOK_SECONDS)
        counts, (pages, failures) = await run.counts(), run.figures
        works = counts.job == "running" and bool(counts.ready_sites or counts.leased)
        for event, text in judge.events(RunSample(clock.monotonic(), pages, failures, works)):
            await notifier.send(event, text, job=job, pages=pages, failures=failures)


def _post(target: str, body: bytes) -> None:
    import urllib.request

    parts = urlsplit(target)
    headers = {"Content-Type": "application/json"}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
    plain_url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(plain_url, body, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
        answer.read(1)


def _run(target: str, body: bytes) -> None:
    words = shlex.split(target.removeprefix("exec:"))
    subprocess.run(words, input=body, stdout=subprocess.DEVNULL, timeout=_COMMAND_SECONDS, check=True)
