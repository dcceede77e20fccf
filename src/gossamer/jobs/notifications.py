"""Notifications of a job's end, stall, or errors, by web hook or command."""

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
"""With fewer pages since the last look, a share says nothing."""


class RunSample(NamedTuple):
    """A run at one moment."""

    at: float
    pages: int
    failures: int
    works: bool
    """Whether something can be fetched: sites are ready or being fetched, and nobody has paused the job."""


class ObservedRun(Protocol):
    """What is watched."""

    async def counts(self) -> Counts: ...

    @property
    def figures(self) -> tuple[int, int]:
        """Pages, and failures among them, since it began."""
        ...


class Judge:
    """Says when a run has stalled or mostly fails, once each time it comes to that."""

    def __init__(self, *, stalled_after: float, errors_above: float) -> None:
        self._stalled_after = stalled_after
        self._errors_above = errors_above
        self._moved: RunSample | None = None
        self._base: RunSample | None = None
        self._told: set[str] = set()

    def events(self, look: RunSample) -> list[tuple[str, str]]:
        """What has to be said now: a word, and a sentence."""
        found = []
        if self._moved is None or look.pages > self._moved.pages or not look.works:
            self._moved = look
            self._told.discard("stalled")
        elif look.at - self._moved.at >= self._stalled_after and "stalled" not in self._told:
            self._told.add("stalled")
            found.append(
                ("stalled", f"nothing was stored for {look.at - self._moved.at:.0f} s, though sites are ready")
            )
        self._base = self._base or look
        pages = look.pages - self._base.pages
        if pages >= _LEAST_PAGES:
            share = (look.failures - self._base.failures) / pages
            self._base = look
            if share <= self._errors_above:
                self._told.discard("errors")
            elif "errors" not in self._told:
                self._told.add("errors")
                found.append(("errors", f"{share:.0%} of the last {pages} pages failed"))
        return found


class Notifier:
    """Sends notices to all targets; one that cannot be reached is logged, and costs the crawl nothing."""

    def __init__(self, targets: Sequence[str]) -> None:
        for target in targets:
            check(target)
        self._targets = targets

    async def send(self, event: str, text: str, **about: object) -> None:
        """Tell everybody; returns when all were told, or could not be."""
        body = json.dumps({"event": event, "text": text, **about}).encode()
        await asyncio.gather(*(self._post(target, body) for target in self._targets))

    async def _post(self, target: str, body: bytes) -> None:
        send = _run if target.startswith("exec:") else _post
        name = target if target.startswith("exec:") else target.split("?", maxsplit=1)[0].rsplit("@", maxsplit=1)[-1]
        for number in range(_TRIES):
            try:
                await asyncio.to_thread(send, target, body)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                log.warning("notice to %s, try %d of %d: %s", name, number + 1, _TRIES, error)
                await asyncio.sleep(2.0**number if number + 1 < _TRIES else 0.0)
            else:
                return


def check(target: str) -> None:
    """Refuse what is neither a web hook nor a command."""
    words = shlex.split(target.removeprefix("exec:")) if target.startswith("exec:") else []
    if not words and not target.startswith(("http://", "https://")):
        raise ConfigError(
            f"--notify {target}: neither a URL nor a command",
            hint="as in https://host/hook, or 'exec:mail -s crawl me@host'",
        )


async def watch(run: ObservedRun, notifier: Notifier, judge: Judge, *, job: str, clock: Clock) -> None:
    """Look at a run for as long as it goes on, and say what its judge finds."""
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
