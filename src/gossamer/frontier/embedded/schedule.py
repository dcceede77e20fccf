"""The schedule: sites, their lanes, and their queues, in memory.

A lane is the right to fetch from a site, one request at a time. A site has one lane, or several that together keep its
rate. Leases are on lanes, never on requests: the holder of a lane keeps the site's delay, and two workers cannot fetch
from a one-lane site at once (P2, P5).

Lanes are in a heap, ordered by the time when they are ready:

    leased          the end of its lease + delay (an expired lease needs no sweeper: it becomes due like any other lane)
    free, queued    max(next allowed, the site's hold)
    free, delayed   max(next allowed, the site's hold, the earliest due time)
    nothing to do   not in the heap

Entries are not moved or deleted when a lane changes; `heapq` cannot do either cheaply. `Lane.heap_at` names the one
entry that is valid. A lane that is ready earlier gets a second entry at once (`wake`). One that is ready later keeps
its entry until it reaches the top, where `_first` compares it with `_ready_at` and inserts it again. So the valid entry
of a lane is never later than the lane is ready, and renewing a lease pushes nothing.

An expired lease is found at its end + delay, not at its end: its holder may have sent a request in the last moment.
While a lane has a commit under way (`settling`), it is never ready.

Lanes of sites over their quota wait in a second heap, which is read only when no lane of the first one is ready (see
`share`).

Leased requests are in no queue: they are in `Lane.batch`, and go back to the head of the queue when the lane is freed.
The counters `queued`, `delayed`, and `leased` move with them, and `finished` depends on their sum (P6). A request that
was lost twice with its worker is kept separately in `suspects`, and leased alone (P10)."""

from __future__ import annotations

import heapq
import random
from array import array
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from gossamer.frontier import policy
from gossamer.frontier.policy import SiteQuota
from gossamer.model import RegionView
from gossamer.settings import Settings


class Level:
    """Requests of one rank, 8 bytes each: a job may have tens of millions.

    `head` is the position of the first remaining one; the array before it is cut off from time to time."""

    __slots__ = ("head", "ids")

    def __init__(self) -> None:
        self.ids = array("q")
        self.head = 0

    def __len__(self) -> int:
        return len(self.ids) - self.head

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids[self.head :])

    def pop(self, strategy: str) -> int:
        """Take the newest (`dfs`), any (`random`), or the oldest request."""
        if strategy == "dfs":
            return self.ids.pop()
        if strategy == "random":
            pick = random.randrange(self.head, len(self.ids))
            self.ids[pick], self.ids[self.head] = self.ids[self.head], self.ids[pick]
        found = self.ids[self.head]
        self.head += 1
        if self.head > 256 and self.head * 2 > len(self.ids):
            del self.ids[: self.head]
            self.head = 0
        return found


class Queue:
    """A site's requests in fetch order.

    `front` is a stack of requests that precede all others: redirects, and requests of returned batches. `levels` has
    the others by rank, and `ranks` the ranks in order."""

    __slots__ = ("front", "levels", "ranks", "size")

    def __init__(self) -> None:
        self.front: list[int] = []
        self.levels: dict[int, Level] = {}
        self.ranks: list[int] = []
        self.size = 0

    def push(self, number: int, rank: int) -> None:
        self.size += 1
        if rank == policy.HEAD:
            self.front.append(number)
            return
        level = self.levels.get(rank)
        if level is None:
            level = self.levels[rank] = Level()
            insort(self.ranks, rank)
        level.ids.append(number)

    def put_back(self, numbers: Iterable[int]) -> None:
        """Return requests to the head, in their old order."""
        returned = list(numbers)
        self.front.extend(reversed(returned))
        self.size += len(returned)

    def pop(self, strategy: str) -> int:
        self.size -= 1
        if self.front:
            return self.front.pop()
        rank = self.ranks[0]
        level = self.levels[rank]
        found = level.pop(strategy)
        if not level:
            del self.levels[rank], self.ranks[0]
        return found

    def discard(self, number: int) -> bool:
        """Take one request out, and return whether it was there. Slow: it searches the whole queue."""
        if number in self.front:
            self.front.remove(number)
            self.size -= 1
            return True
        for rank, level in self.levels.items():
            if number in level:
                del level.ids[level.ids.index(number, level.head)]
                self.size -= 1
                if not level:
                    del self.levels[rank]
                    self.ranks.remove(rank)
                return True
        return False

    def clear(self) -> int:
        dropped = self.size
        self.front.clear()
        self.levels.clear()
        self.ranks.clear()
        self.size = 0
        return dropped


NEVER = float("inf")
_SOON_SECONDS = 60.0


class Lane:
    """What a worker leases: the right to fetch from one site, one request at a time.

    `token` is 0 while the lane is free; `last_token` is that of the last batch that was settled to its end, by which
    a repeated commit is recognized. `batch` maps keys to numbers of what is leased. `next_at` is when the site's delay
    allows the next request; it only grows. `settling` counts the commits that hold the lane right now."""

    __slots__ = (
        "batch",
        "excused",
        "expires_at",
        "heap_at",
        "last_token",
        "next_at",
        "number",
        "over_quota",
        "settling",
        "site",
        "suspect",
        "token",
        "worker",
    )

    def __init__(self, site: Site, number: int, next_at: float) -> None:
        self.site = site
        self.number = number
        self.next_at = next_at
        self.token = 0
        self.last_token = 0
        self.expires_at = 0.0
        self.heap_at: float | None = None
        self.batch: dict[int, int] = {}
        self.settling = 0
        self.over_quota = False
        self.suspect = False
        self.excused = False
        """Whether its holder is known to be alive: a lease that ends anyway does not count against its requests."""
        self.worker = ""


class Site:
    """The schedule's state of a site.

    `delay` is the larger of the setting and what the site asked for (`asked_delay`). `hold_until` blocks all lanes at
    once, for example after a 429. `delayed` is a heap of retries and revisits by time. A site with `closed`, the
    reason, leases out nothing more. Its budget counts stored and leased requests."""

    __slots__ = (
        "asked_delay",
        "budget",
        "closed",
        "delay",
        "delayed",
        "hold_until",
        "lanes",
        "lanes_allowed",
        "leased",
        "memo",
        "name",
        "number",
        "queue",
        "robots",
        "stored",
        "suspects",
    )

    def __init__(self, number: int, name: str, settings: Settings) -> None:
        own = settings.for_site(name)
        self.number = number
        self.name = name
        self.delay = own.delay or 0.0
        self.asked_delay = 0.0
        self.lanes_allowed = own.lanes or 1
        self.budget = own.budget
        self.queue = Queue()
        self.delayed: list[tuple[float, int]] = []
        self.suspects: list[int] = []
        self.lanes: list[Lane] = []
        self.hold_until = 0.0
        self.leased = 0
        self.stored = 0
        self.robots: dict[str, bytes] = {}
        self.memo: dict[str, Any] = {}
        self.closed = ""

    def room(self) -> int:
        """Return how many more requests the site's budget allows to lease now."""
        return 1 << 62 if self.budget is None else self.budget - self.stored - self.leased


class Schedule:
    """Which lane may be leased when. Every method is passed the time; none waits, reads or writes anything.

    `lapses` counts how often a request was lost with its worker, `revisits` has the last status of each page that is
    delayed until its next visit. `State` decides what is lost; this class keeps requests in the right queue."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sites: dict[str, Site] = {}
        self.lapses: dict[int, int] = {}
        self.revisits: dict[int, int] = {}
        self.returned: Counter[int] = Counter()
        self.queued = self.delayed = self.leased = 0
        self.share = SiteQuota(settings)
        self._heap: list[tuple[float, int, Lane]] = []
        self._over_quota: list[tuple[float, int, Lane]] = []
        self._turn = 0
        self.order: Iterator[int] = count(-(1 << 60))
        """Breaks ties in the heap, in the order of entry. Schedules may share one that begins at 0: what they entered
        before has negative numbers."""
        self._first_again = count(-(1 << 62))

    def site(self, name: str, number: int, *, ready_at: float = 0.0) -> Site:
        """Return the site of that name, created if it is new."""
        site = self.sites.get(name)
        if site is None:
            site = self.sites[name] = Site(number, name, self.settings)
            site.lanes.append(Lane(site, 0, ready_at))
        return site

    def open_lanes(self, site: Site, now: float) -> None:
        """Give a site all its lanes, once its robots.txt is known or not needed.

        Their first times are one delay apart: lanes that start together would send their requests in bursts."""
        while len(site.lanes) < site.lanes_allowed:
            site.lanes.append(Lane(site, len(site.lanes), now + site.delay * len(site.lanes)))

    def push(self, site: Site, number: int, rank: int) -> None:
        """Queue a request that may go out as soon as its site is ready."""
        if self.lapses.get(number, 0) >= 2:
            site.suspects.append(number)
        else:
            site.queue.push(number, rank)
        self.queued += 1
        self.wake(site)

    def push_later(self, site: Site, number: int, due_at: float) -> None:
        """Queue a request that is not due before `due_at`."""
        heapq.heappush(site.delayed, (due_at, number))
        self.delayed += 1
        self.wake(site)

    def withdraw(self, site: Site, number: int) -> bool:
        """Take a request out of a site's queue, suspects, or delayed requests; return whether it was there."""
        if site.queue.discard(number):
            self.queued -= 1
            return True
        if number in site.suspects:
            site.suspects.remove(number)
            self.queued -= 1
            return True
        left = [entry for entry in site.delayed if entry[1] != number]
        if len(left) == len(site.delayed):
            return False
        heapq.heapify(left)
        site.delayed = left
        self.delayed -= 1
        if number in self.revisits:
            self.returned[self.revisits.pop(number)] += 1
        return True

    def hasten(self, site: Site, due: Mapping[int, float]) -> None:
        """Bring delayed requests forward; those that are due sooner, or no longer delayed, stay as they are."""
        site.delayed = [(min(at, due.get(number, at)), number) for at, number in site.delayed]
        heapq.heapify(site.delayed)
        self.wake(site)

    def wake(self, site: Site) -> None:
        """Enter the site's lanes into the heap, or again where they are ready earlier than entered."""
        for lane in site.lanes:
            ready_at = self._ready_at(lane)
            if ready_at is not None and (lane.heap_at is None or ready_at < lane.heap_at):
                self._enter(lane, ready_at)

    def _enter(self, lane: Lane, ready_at: float, order: int | None = None) -> None:
        lane.heap_at = ready_at
        order = next(self.order) if order is None else order
        # A held lane never goes into the second heap: its expiry must be noticed in any case.
        lane.over_quota = not lane.token and not self.share.left(lane.site.name)
        heapq.heappush(self._over_quota if lane.over_quota else self._heap, (ready_at, order, lane))

    def _ready_at(self, lane: Lane) -> float | None:
        """Return when a lane is ready (see the table of this module); None if it has nothing to do."""
        site = lane.site
        if lane.token:
            return NEVER if lane.settling else lane.expires_at + self.lane_delay(site)
        if site.queue.size or site.suspects:
            return max(lane.next_at, site.hold_until)
        if site.delayed:
            return max(lane.next_at, site.hold_until, site.delayed[0][0])
        return None

    def lanes(self, now: float) -> RegionView:
        """Count the lanes in which requests wait or are leased. It walks over all sites."""
        ready = later = soon = 0
        due_in: float | None = None
        for site in self.sites.values():
            for lane in site.lanes:
                at = self._ready_at(lane)
                if at is None:
                    continue
                wait = max(0.0, at - now)
                ready += not lane.token and not wait
                later += bool(lane.token or wait)
                soon += bool(lane.token or 0 < wait <= _SOON_SECONDS)
                if not lane.token and wait:
                    due_in = wait if due_in is None else min(due_in, wait)
        return RegionView(ready=ready, later=later, soon=soon, due_in=due_in)

    def lane_delay(self, site: Site) -> float:
        """Return the seconds between two requests of one lane, so that all lanes together keep the site's rate."""
        return site.delay * len(site.lanes)

    def due(self, now: float, *, over_quota: bool = True) -> Iterator[Lane]:
        """The lanes that are ready now, longest waiting first. Each is out of its heap: lease it, or `wake` its site.

        A lane with a token is one whose lease has ended. Sites that have had their share come last, or not at all;
        `Lane.over_quota` marks their lanes."""
        self._return_lanes()
        while (first := self._first(self._heap)) is not None and first[0] <= now:
            heapq.heappop(self._heap)
            lane = first[1]
            lane.heap_at = None
            if lane.token or self.share.left(lane.site.name):
                yield lane
            else:
                self._enter(lane, first[0])
        while over_quota and (first := self._first(self._over_quota)) is not None and first[0] <= now:
            heapq.heappop(self._over_quota)
            first[1].heap_at = None
            yield first[1]

    def dispatch(self, site: Site, count: int) -> None:
        """Count leased requests against the site's quota."""
        self.share.count(site.name, count)
        self._return_lanes()

    def _return_lanes(self) -> None:
        """Insert the lanes of the second heap again when the quota window moves: their sites may have quota."""
        if self._turn != self.share.turns:
            self._turn = self.share.turns
            waiting = {id(lane): lane for at, _, lane in self._over_quota if lane.heap_at == at}
            self._over_quota.clear()
            for lane in waiting.values():
                assert lane.heap_at is not None
                self._enter(lane, lane.heap_at)

    def next_due(self) -> float | None:
        """Return when the next lane is ready; None if none will be before something changes."""
        first = self.next_turn()
        return None if first is None else first[0]

    def next_turn(self, *, over_quota: bool = True) -> tuple[float, int] | None:
        """Return when the next lane is ready, and its place among lanes that are ready at the same time."""
        self._return_lanes()
        heaps = (self._heap, self._over_quota) if over_quota else (self._heap,)
        firsts = [(found[0], heap[0][1]) for heap in heaps if (found := self._first(heap)) is not None]
        first = min(firsts, default=(NEVER, 0))
        return None if first[0] == NEVER else first

    def has_due_revisits(self, now: float) -> bool:
        """Return whether any site has a delayed request that is due, even if the site is on hold."""
        return any(site.delayed and site.delayed[0][0] <= now for site in self.sites.values())

    def _first(self, heap: list[tuple[float, int, Lane]]) -> tuple[float, Lane] | None:
        """Return the first valid entry of a heap: invalid entries are dropped, late ones inserted again."""
        while heap:
            entered_at, _, lane = heap[0]
            valid = lane.heap_at == entered_at and lane.over_quota == (heap is self._over_quota)
            ready_at = self._ready_at(lane) if valid else None
            if ready_at is not None and ready_at <= entered_at:
                return ready_at, lane
            heapq.heappop(heap)
            if valid:
                lane.heap_at = None
                if ready_at is not None:
                    self._enter(lane, ready_at)
        return None

    def take(self, site: Site, count: int, now: float, *, suspect: bool) -> list[int]:
        """Take up to `count` due requests out of the site's queue.

        With `suspect`, a site that has suspects returns one of them, alone. Without, it returns its other requests."""
        due = []
        while site.delayed and site.delayed[0][0] <= now:
            _, number = heapq.heappop(site.delayed)
            self.delayed -= 1
            self.queued += 1
            if number in self.revisits:
                self.returned[self.revisits.pop(number)] += 1
            due.append(number)
        self._put_back(site, due)
        if suspect and site.suspects:
            taken = [site.suspects.pop(0)]
        else:
            taken = [site.queue.pop(self.settings.strategy) for _ in range(min(count, site.queue.size))]
        self.queued -= len(taken)
        return taken

    def give_back(self, site: Site, numbers: Collection[int], *, first: bool = False) -> None:
        """Undo `take` for requests that could not be read. Among lanes of equal time the lane is then last, or `first`.

        First: the same lease is repeated in a moment. Last: a lane that fails must not block the others."""
        self._put_back(site, numbers)
        self.queued += len(numbers)
        for lane in site.lanes:
            ready_at = self._ready_at(lane)
            if lane.heap_at is None and ready_at is not None:
                self._enter(lane, ready_at, next(self._first_again if first else self.order))

    def hold(self, lane: Lane, batch: dict[int, int], *, token: int, expires_at: float, worker: str) -> None:
        """Give a lane with its batch (key -> number) to a worker."""
        lane.token = token
        lane.batch = batch
        lane.expires_at = expires_at
        lane.excused = False
        lane.worker = worker
        lane.site.leased += len(batch)
        self.leased += len(batch)
        self._enter(lane, expires_at + self.lane_delay(lane.site))

    def finish(self, lane: Lane, key: int) -> int | None:
        """Take one request out of a lane's batch; return its number, or None if it is no longer there."""
        number = lane.batch.pop(key, None)
        if number is not None:
            lane.site.leased -= 1
            self.leased -= 1
        return number

    def free(self, lane: Lane, now: float) -> None:
        """End a lane's lease: it is ready one delay from now, and the rest of its batch is at the head of the queue."""
        site = lane.site
        if lane.batch:
            site.leased -= len(lane.batch)
            self.leased -= len(lane.batch)
            self.queued += len(lane.batch)
            self._put_back(site, lane.batch.values())
            lane.batch = {}
        lane.token = 0
        lane.next_at = max(lane.next_at, now + self.lane_delay(site))
        lane.heap_at = None
        self.wake(site)

    def _put_back(self, site: Site, numbers: Collection[int]) -> None:
        site.queue.put_back(number for number in numbers if self.lapses.get(number, 0) < 2)
        site.suspects.extend(number for number in numbers if self.lapses.get(number, 0) >= 2)

    def close(self, site: Site, reason: str) -> int:
        """Drop everything queued on a site, but no leased requests; return how many, revisits not counted."""
        dropped = site.queue.clear() + len(site.suspects)
        site.suspects.clear()
        self.queued -= dropped
        self.delayed -= len(site.delayed)
        dropped += sum(self.revisits.pop(number, None) is None for _, number in site.delayed)
        site.delayed = []
        site.closed = reason
        return dropped
