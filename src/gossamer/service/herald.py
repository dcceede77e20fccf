"""Tells the operator's web hooks and commands how jobs go: their end, a stall, many errors."""

from __future__ import annotations

import asyncio
import logging

from gossamer.clock import Clock
from gossamer.jobs.job import State
from gossamer.jobs.notifications import Judge, Notifier, RunSample
from gossamer.model import Counts

log = logging.getLogger("gossamer.service")
_AT_WORK = frozenset(("starting", "running", "paused", "stopping"))
_ENDS = {"finished": "finished", "resting": "stopped", "failed": "failed"}
_MOST_WAITING = 100


class JobNotifier:
    """Hears of every look at a job. What it has to say never keeps the service waiting."""

    def __init__(self, notifier: Notifier, *, stalled_after: float, errors_above: float, clock: Clock) -> None:
        self._notifier = notifier
        self._stalled_after = stalled_after
        self._errors_above = errors_above
        self._clock = clock
        self._judges: dict[str, Judge] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def saw(self, job: str, before: State, state: State, counts: Counts | None, problem: str = "") -> None:
        """A job was in one state and is in another, or in the same."""
        pages, failures = (counts.stored, counts.failed) if counts is not None else (0, 0)
        if before in _AT_WORK and state in _ENDS:
            text = problem if state == "failed" and problem else f"{pages:,} pages, {failures:,} failed"
            self._tell(_ENDS[state], text, job, pages, failures)
        if state != "running" or counts is None:
            self._judges.pop(job, None)
            return
        judge = self._judges.get(job)
        if judge is None:
            judge = self._judges[job] = Judge(stalled_after=self._stalled_after, errors_above=self._errors_above)
        works = bool(counts.ready_sites or counts.leased)
        for event, text in judge.events(RunSample(self._clock.monotonic(), pages, failures, works)):
            self._tell(event, text, job, pages, failures)

    def _tell(self, event: str, text: str, job: str, pages: int, failures: int) -> None:
        if len(self._tasks) >= _MOST_WAITING:
            log.warning("a notice is left out, since %d wait: %s is %s", len(self._tasks), job, event)
            return
        telling = self._notifier.tell(event, text, job=job, pages=pages, failures=failures)
        task = asyncio.create_task(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Leave what was not heard yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
