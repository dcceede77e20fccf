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
from gossamer.service.directory import Directory
from gossamer.service.events import Hub
from gossamer.service.schemas import Shape
from gossamer.service.statistics import JobCounters, TimeSeries
from gossamer.storage.request_log import Tail

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
            self._notify(_ENDS[state], text, job, pages, failures)
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
            log.warning("a notice is left out, since %d wait: %s is %s", len(self._tasks), job, event)
            return
        telling = self._notifier.send(event, text, job=job, pages=pages, failures=failures)
        task = asyncio.create_task(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Leave what was not heard yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


MOST_WATCHED = 50
_OTHERS = 10
"""Jobs at rest of which something is kept, because somebody asked."""
_EVERY_SECONDS = 1.0
_PATIENCE_SECONDS = 10.0
_COST = 50.0
"""A look that takes a second is taken again after so many at the soonest: it must not cost the job more than 2 %."""
_RATE_SECONDS = 6.0
_SLICE = 500
_FOLLOW_SECONDS = 0.5
_FRESH_SECONDS = 2.0


class Sample(Shape, frozen=True, kw_only=True):
    """What listeners are told of a job with every look."""

    job: str
    at: float
    state: State
    counts: Counts | None
    pages_per_second: float
    bytes_per_second: float
    workers: int
    requests: int
    """Since the service looks."""
    classes: dict[str, int]
    """Of these: ok, redirects, client_errors, server_errors, faults, skipped."""
    cut: dict[str, int]
    """Pages of which something was dropped, by the limit that did it."""


class WatchedJob:
    """What is known of one job; it outlives the job's runs."""

    def __init__(self, name: str, *, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self.past = TimeSeries()
        self.tally = JobCounters(self.past)
        self._tail: Tail | None = None
        self._busy = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._rates: deque[tuple[float, int, int]] = deque(maxlen=64)
        self._shares: deque[tuple[float, Counter[str]]] = deque(maxlen=8)
        self.looked_at: float | None = None
        self.cost_seconds = 0.0
        self.sampled_at: float | None = None
        self.state: State = "resting"
        self.heard: State = "resting"
        """The state that others have heard of last."""
        self.counts: Counts | None = None
        self.pulses: list[Heartbeat] = []
        self.problem = ""
        self.pages_per_second = self.bytes_per_second = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next look."""
        if self.looked_at is None:
            return True
        since = self._clock.monotonic() - self.looked_at
        return not self._busy.locked() and since >= max(_EVERY_SECONDS * 0.95, _COST * self.cost_seconds)

    @property
    def is_stale(self) -> bool:
        """Whether the last look is so old that whoever asks is better served by a new one."""
        if self.looked_at is None:
            return True
        return self._clock.monotonic() - self.looked_at > max(_FRESH_SECONDS, _COST * self.cost_seconds)

    async def look(self, directory: Directory) -> None:
        """Look once; what stands in the way is kept in `problem`."""
        async with self._busy:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._look(await directory.reach(self.name))
                self.problem = directory.problem(self.name)
            except TimeoutError:
                self.problem = "the frontier does not answer"
            except JobMissing:
                raise
            except GossamerError as error:
                self.problem = directory.problem(self.name)
                if not self.problem and not directory.is_starting(self.name):
                    self.problem = str(error)
            self._settle(directory)

    async def _look(self, reached: Job) -> None:
        began = self._clock.monotonic()
        counts, pulses = await reached.counts(), await reached.workers()
        self.cost_seconds = self._clock.monotonic() - began
        state = reached.state(counts, pulses)
        if self._tail is None:
            self._tail = Tail(reached.folder)
            self.tally = JobCounters(self.past, site_by=reached.settings.site_by)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow(self._tail))
        # A long trail is read on while others are answered; they have the rest of it a moment later.
        await asyncio.wait((self._following,), timeout=_FOLLOW_SECONDS)
        now = self._clock.epoch()
        if self.counts is not None and not self.tally.requests:
            # Nothing is on record here: what was stored since the last look is all that is known.
            self.past.add(now, {"pages": max(0, counts.stored - self.counts.stored)})
        live = [pulse for pulse in pulses if is_live(pulse)]
        self.counts, self.pulses, self.state = counts, pulses, state
        self.sampled_at = now
        self._rate(live)
        self.past.level(
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

    async def _follow(self, tail: Tail) -> None:
        try:
            steps = await asyncio.to_thread(tail.look)
        except OSError as error:
            log.warning("the trail of %s cannot be read: %s", self.name, error)
            return
        for first in range(0, len(steps), _SLICE):
            self.tally.saw(steps[first : first + _SLICE])
            # Others have their turn.
            await asyncio.sleep(0)

    def _rate(self, live: Sequence[Heartbeat]) -> None:
        now, pages = self._clock.monotonic(), self.tally.pages
        # Looks at a large job are far apart: the one before is still good then.
        longest = max(_RATE_SECONDS, 3 * _COST * self.cost_seconds)
        while self._rates and now - self._rates[0][0] > longest:
            self._rates.popleft()
        if self._rates and now - self._rates[0][0] > 0.5:
            at, before, bytes_before = self._rates[0]
            self.pages_per_second = round((pages - before) / (now - at), 2)
            self.bytes_per_second = round((self.tally.bytes - bytes_before) / (now - at), 1)
        else:
            self.pages_per_second = self.bytes_per_second = 0.0
        if not self.tally.requests:
            self.pages_per_second = round(sum(pulse.rate for pulse in live), 2)
        self._rates.append((now, pages, self.tally.bytes))
        self._shares.append((now, Counter(self.tally.workers)))

    def worker_rate(self, worker: str) -> float:
        """Requests a second of one worker over the last few looks, by its trail."""
        if len(self._shares) < 2:
            return 0.0
        (began, before), (ended, after) = self._shares[0], self._shares[-1]
        return (after[worker] - before[worker]) / max(ended - began, 0.5)

    def _settle(self, directory: Directory) -> None:
        self.looked_at = self._clock.monotonic()
        if self.state in ("resting", "finished") or self.counts is None:
            if directory.is_starting(self.name) and self.state != "finished":
                self.state = "starting"
            elif self.state == "resting" and directory.is_ending(self.name):
                self.state = "stopping"
            elif directory.problem(self.name):
                self.state = "failed"

    async def aclose(self) -> None:
        """Stop to read."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    @property
    def workers(self) -> int:
        """How many there are."""
        return sum(map(is_live, self.pulses))

    def job(self, place: str) -> schemas.Job:
        """The job in short."""
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
        """What listeners are told."""
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


class Watch:
    """Looks at every job that runs, and at others when somebody asks."""

    def __init__(self, directory: Directory, hub: Hub, *, clock: Clock, notifier: JobNotifier | None = None) -> None:
        self._directory = directory
        self._notifier = notifier
        self._hub = hub
        self._clock = clock
        self._watched: OrderedDict[str, WatchedJob] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._live: frozenset[str] = frozenset()
        self.is_ready = False
        self.problem = ""

    @property
    def watched(self) -> Sequence[WatchedJob]:
        """All jobs of which something is known."""
        return list(self._watched.values())

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    live = frozenset((await self._directory.live())[:MOST_WATCHED])
                self.is_ready, self.problem = True, ""
            except (GossamerError, TimeoutError, OSError) as error:
                self.is_ready, self.problem = False, str(error) or "the frontier does not answer"
                live = self._live
            # Those that ran a moment ago are looked at once more, to see how they ended.
            for name in sorted(live | self._live):
                watched = self._get(name)
                if watched.is_due:
                    self._start(watched)
            self._live = live
            await self._clock.sleep(_EVERY_SECONDS)

    def _start(self, watched: WatchedJob) -> None:
        task = asyncio.create_task(self._look(watched))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, watched: WatchedJob) -> None:
        try:
            await watched.look(self._directory)
        except JobMissing:
            self._watched.pop(watched.name, None)
            return
        except Exception:  # one job's trouble must not blind the service to the others
            log.exception("a look at %s failed", watched.name)
            return
        self._notify(watched)

    def _notify(self, watched: WatchedJob) -> None:
        """Tell of a look; whoever looked first has seen what has changed."""
        before, watched.heard = watched.heard, watched.state
        if self._notifier is not None:
            self._notifier.saw(watched.name, before, watched.state, watched.counts, watched.problem)
        self._hub.publish("sample", watched.name, watched.sample())
        if watched.state != before:
            self._hub.publish("job", watched.name, watched.job(self._directory.place))

    async def ask(self, name: str) -> WatchedJob:
        """What is known of a job, not older than a moment; JobMissing if there is none."""
        watched = self._watched.get(name)
        if watched is None:
            if not self._directory.is_starting(name) and not self._directory.problem(name):
                await self._directory.reach(name)
            watched = self._get(name)
        if watched.is_stale:
            try:
                await watched.look(self._directory)
            except JobMissing:
                self._watched.pop(name, None)
                raise
            self._notify(watched)
        return watched

    def known(self, name: str) -> WatchedJob | None:
        """What was seen of a job before, without a look."""
        return self._watched.get(name)

    def _get(self, name: str) -> WatchedJob:
        watched = self._watched.get(name)
        if watched is None:
            watched = self._watched[name] = WatchedJob(name, clock=self._clock)
            for oldest in list(self._watched):
                if len(self._watched) <= MOST_WATCHED + _OTHERS:
                    break
                if oldest not in self._live and oldest != name:
                    del self._watched[oldest]
        return watched

    async def aclose(self) -> None:
        """Stop to look."""
        for task in list(self._tasks):
            task.cancel()
        for watched in self._watched.values():
            await watched.aclose()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._notifier is not None:
            await self._notifier.aclose()
