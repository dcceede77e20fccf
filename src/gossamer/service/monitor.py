"""Polls jobs, updates their statistics, and sends notifications."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress

from gossamer.clock import Clock
from gossamer.engine.heartbeat import is_live
from gossamer.errors import GossamerError, JobMissing
from gossamer.jobs.job import Job, State
from gossamer.jobs.notifications import Judge, Notifier, RunSample
from gossamer.model import Counts, Heartbeat
from gossamer.service import schemas
from gossamer.service.directory import JobDirectory
from gossamer.service.events import EventHub
from gossamer.service.schemas import ResponseModel
from gossamer.service.statistics import JobCounters, TimeSeries
from gossamer.storage.request_log import LogTail

log = logging.getLogger("gossamer.service")
_RUNNING_STATES = frozenset(("starting", "running", "paused", "stopping"))
_END_EVENTS = {"finished": "finished", "resting": "stopped", "failed": "failed"}
_MOST_WAITING = 100


class JobNotifier:
    """Sends notifications about state changes, stalls, and error rates, in the background."""

    def __init__(self, notifier: Notifier, *, stalled_after: float, errors_above: float, clock: Clock) -> None:
        self._notifier = notifier
        self._stalled_after = stalled_after
        self._errors_above = errors_above
        self._clock = clock
        self._judges: dict[str, Judge] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def update(self, job: str, before: State, state: State, counts: Counts | None, problem: str = "") -> None:
        """Process a poll of a job: send notifications for its change of state and its counts."""
        pages, failures = (counts.stored, counts.failed) if counts is not None else (0, 0)
        if before in _RUNNING_STATES and state in _END_EVENTS:
            text = problem if state == "failed" and problem else f"{pages:,} pages, {failures:,} failed"
            self._notify(_END_EVENTS[state], text, job, pages, failures)
        if state != "running" or counts is None:
            self._judges.pop(job, None)
            return
        judge = self._judges.get(job)
        if judge is None:
            judge = self._judges[job] = Judge(stalled_after=self._stalled_after, errors_above=self._errors_above)
        works = bool(counts.ready_sites or counts.leased)
        for event, text in judge.events(RunSample(self._clock.monotonic(), pages, failures, works)):
            self._notify(event, text, job, pages, failures)

    def _notify(self, event: str, text: str, job: str, pages: int, failures: int) -> None:
        if len(self._tasks) >= _MOST_WAITING:
            log.warning("dropped a notification because %d are pending: job %s, event %s", len(self._tasks), job, event)
            return
        task = asyncio.create_task(self._notifier.send(event, text, job=job, pages=pages, failures=failures))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel pending notifications."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


MOST_WATCHED = 50
_MOST_STOPPED = 10
"""Maximum number of stopped jobs that are kept because a client requested them."""
_POLL_SECONDS = 1.0
_TIMEOUT_SECONDS = 10.0
_COST_FACTOR = 50.0
"""Minimum interval between polls of a job, in multiples of a poll's duration: polling costs a job at most 2 %."""
_RATE_SECONDS = 6.0
_SLICE = 500
_FOLLOW_SECONDS = 0.5
_FRESH_SECONDS = 2.0


class Sample(ResponseModel, frozen=True, kw_only=True):
    """The event that clients receive after every poll of a job."""

    job: str
    at: float
    state: State
    counts: Counts | None
    pages_per_second: float
    bytes_per_second: float
    workers: int
    requests: int
    """Since the service started to watch the job."""
    classes: dict[str, int]
    """Requests by class: ok, redirects, client_errors, server_errors, faults, skipped."""
    cut: dict[str, int]
    """Truncated pages, by the limit that truncated them."""


class MonitoredJob:
    """Statistics and last known state of one job, across its runs."""

    def __init__(self, name: str, *, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self.past = TimeSeries()
        self.tally = JobCounters(self.past)
        self._tail: LogTail | None = None
        self._busy = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._rates: deque[tuple[float, int, int]] = deque(maxlen=64)
        self._shares: deque[tuple[float, Counter[str]]] = deque(maxlen=8)
        self.polled_at: float | None = None
        self.cost_seconds = 0.0
        self.sampled_at: float | None = None
        self.state: State = "resting"
        self.published_state: State = "resting"
        """The state in the last published event."""
        self.counts: Counts | None = None
        self.heartbeats: list[Heartbeat] = []
        self.problem = ""
        self.pages_per_second = self.bytes_per_second = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next poll is due."""
        if self.polled_at is None:
            return True
        since = self._clock.monotonic() - self.polled_at
        return not self._busy.locked() and since >= max(_POLL_SECONDS * 0.95, _COST_FACTOR * self.cost_seconds)

    @property
    def is_stale(self) -> bool:
        """Whether the last poll is too old to answer a request with."""
        if self.polled_at is None:
            return True
        return self._clock.monotonic() - self.polled_at > max(_FRESH_SECONDS, _COST_FACTOR * self.cost_seconds)

    async def poll(self, directory: JobDirectory) -> None:
        """Poll once; an error is recorded in `problem`."""
        async with self._busy:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    await self._poll(await directory.open(self.name))
                self.problem = directory.problem(self.name)
            except TimeoutError:
                self.problem = "the frontier does not respond"
            except JobMissing:
                raise
            except GossamerError as error:
                self.problem = directory.problem(self.name)
                if not self.problem and not directory.is_starting(self.name):
                    self.problem = str(error)
            self._set_state(directory)

    async def _poll(self, handle: Job) -> None:
        began = self._clock.monotonic()
        counts, heartbeats = await handle.counts(), await handle.workers()
        self.cost_seconds = self._clock.monotonic() - began
        state = handle.state(counts, heartbeats)
        if self._tail is None:
            self._tail = LogTail(handle.folder)
            self.tally = JobCounters(self.past, site_by=handle.settings.site_by)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow(self._tail))
        # A long request log is read in the background; the counters catch up later.
        await asyncio.wait((self._following,), timeout=_FOLLOW_SECONDS)
        now = self._clock.epoch()
        if self.counts is not None and not self.tally.requests:
            # There is no request log here, so only the number of stored pages since the last poll is known.
            self.past.add(now, {"pages": max(0, counts.stored - self.counts.stored)})
        live = [heartbeat for heartbeat in heartbeats if is_live(heartbeat)]
        self.counts, self.heartbeats, self.state = counts, heartbeats, state
        self.sampled_at = now
        self._update_rates(live)
        self.past.set(
            now,
            {
                "queued": counts.queued + counts.delayed,
                "known": counts.known,
                "stored": counts.stored,
                "failed": counts.failed,
                "active_sites": counts.active_sites,
                "workers": len(live),
            },
        )

    async def _follow(self, tail: LogTail) -> None:
        try:
            steps = await asyncio.to_thread(tail.read_new)
        except OSError as error:
            log.warning("cannot read the request log of %s: %s", self.name, error)
            return
        for first in range(0, len(steps), _SLICE):
            self.tally.update(steps[first : first + _SLICE])
            # Let other tasks run.
            await asyncio.sleep(0)

    def _update_rates(self, live: Sequence[Heartbeat]) -> None:
        now, pages = self._clock.monotonic(), self.tally.pages
        # A large job is polled rarely, so its previous sample stays valid for longer.
        longest = max(_RATE_SECONDS, 3 * _COST_FACTOR * self.cost_seconds)
        while self._rates and now - self._rates[0][0] > longest:
            self._rates.popleft()
        if self._rates and now - self._rates[0][0] > 0.5:
            at, before, bytes_before = self._rates[0]
            self.pages_per_second = round((pages - before) / (now - at), 2)
            self.bytes_per_second = round((self.tally.bytes - bytes_before) / (now - at), 1)
        else:
            self.pages_per_second = self.bytes_per_second = 0.0
        if not self.tally.requests:
            self.pages_per_second = round(sum(heartbeat.rate for heartbeat in live), 2)
        self._rates.append((now, pages, self.tally.bytes))
        self._shares.append((now, Counter(self.tally.workers)))

    def worker_rate(self, worker: str) -> float:
        """Requests per second of one worker over the last polls, from its request log."""
        if len(self._shares) < 2:
            return 0.0
        (began, before), (ended, after) = self._shares[0], self._shares[-1]
        return (after[worker] - before[worker]) / max(ended - began, 0.5)

    def _set_state(self, directory: JobDirectory) -> None:
        self.polled_at = self._clock.monotonic()
        if self.state in ("resting", "finished") or self.counts is None:
            if directory.is_starting(self.name) and self.state != "finished":
                self.state = "starting"
            elif self.state == "resting" and directory.is_ending(self.name):
                self.state = "stopping"
            elif directory.problem(self.name):
                self.state = "failed"

    async def aclose(self) -> None:
        """Stop reading the request log."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    @property
    def workers(self) -> int:
        """Number of live workers."""
        return sum(map(is_live, self.heartbeats))

    def job(self, place: str) -> schemas.Job:
        """The job as an API response."""
        return schemas.Job(
            name=self.name,
            state=self.state,
            place="fleet" if place == "fleet" else "embedded",
            counts=self.counts,
            pages_per_second=self.pages_per_second,
            bytes_per_second=self.bytes_per_second,
            workers=self.workers,
            cut=dict(self.tally.cut.by_reason),
            sampled_at=self.sampled_at,
            problem=self.problem,
        )

    def sample(self) -> Sample:
        """The event for clients."""
        return Sample(
            job=self.name,
            at=self.sampled_at or 0.0,
            state=self.state,
            counts=self.counts,
            pages_per_second=self.pages_per_second,
            bytes_per_second=self.bytes_per_second,
            workers=self.workers,
            requests=self.tally.requests,
            classes=dict(self.tally.classes),
            cut=dict(self.tally.cut.by_reason),
        )


class Monitor:
    """Polls every running job about once a second, and other jobs on request."""

    def __init__(
        self, directory: JobDirectory, hub: EventHub, *, clock: Clock, notifier: JobNotifier | None = None
    ) -> None:
        self._directory = directory
        self._notifier = notifier
        self._hub = hub
        self._clock = clock
        self._jobs: OrderedDict[str, MonitoredJob] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._live: frozenset[str] = frozenset()
        self.is_ready = False
        self.problem = ""

    @property
    def jobs(self) -> Sequence[MonitoredJob]:
        """All monitored jobs."""
        return list(self._jobs.values())

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    live = frozenset((await self._directory.live())[:MOST_WATCHED])
                self.is_ready, self.problem = True, ""
            except (GossamerError, TimeoutError, OSError) as error:
                self.is_ready, self.problem = False, str(error) or "the frontier does not respond"
                live = self._live
            # Poll jobs that have just ended once more, to record how they ended.
            for name in sorted(live | self._live):
                watched = self._get(name)
                if watched.is_due:
                    self._start(watched)
            self._live = live
            await self._clock.sleep(_POLL_SECONDS)

    def _start(self, watched: MonitoredJob) -> None:
        task = asyncio.create_task(self._poll(watched))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self, watched: MonitoredJob) -> None:
        try:
            await watched.poll(self._directory)
        except JobMissing:
            self._jobs.pop(watched.name, None)
            return
        except Exception:  # an error in one job must not stop the polling of others
            log.exception("polling %s failed", watched.name)
            return
        self._notify(watched)

    def _notify(self, watched: MonitoredJob) -> None:
        """Publish the result of a poll, and the change of state since the last published one."""
        before, watched.published_state = watched.published_state, watched.state
        if self._notifier is not None:
            self._notifier.update(watched.name, before, watched.state, watched.counts, watched.problem)
        self._hub.publish("sample", watched.name, watched.sample())
        if watched.state != before:
            self._hub.publish("job", watched.name, watched.job(self._directory.place))

    async def get(self, name: str) -> MonitoredJob:
        """A job with recent data, polled if needed; JobMissing if it does not exist."""
        watched = self._jobs.get(name)
        if watched is None:
            if not self._directory.is_starting(name) and not self._directory.problem(name):
                await self._directory.open(name)
            watched = self._get(name)
        if watched.is_stale:
            try:
                await watched.poll(self._directory)
            except JobMissing:
                self._jobs.pop(name, None)
                raise
            self._notify(watched)
        return watched

    def known(self, name: str) -> MonitoredJob | None:
        """A job as of its last poll, or None if it was never polled."""
        return self._jobs.get(name)

    def _get(self, name: str) -> MonitoredJob:
        watched = self._jobs.get(name)
        if watched is None:
            watched = self._jobs[name] = MonitoredJob(name, clock=self._clock)
            for oldest in list(self._jobs):
                if len(self._jobs) <= MOST_WATCHED + _MOST_STOPPED:
                    break
                if oldest not in self._live and oldest != name:
                    del self._jobs[oldest]
        return watched

    async def aclose(self) -> None:
        """Stop polling."""
        for task in list(self._tasks):
            task.cancel()
        for watched in self._jobs.values():
            await watched.aclose()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._notifier is not None:
            await self._notifier.aclose()
