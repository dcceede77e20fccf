"""The witness of a run: sees what the frontier says, and holds it against what it said before."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.model import Grant, Outcome, Receipt
from gossamer.simulation.scenario import Scenario
from gossamer.simulation.shards import OpenShard

RUNAWAY_TURNS = 3_000
"""Leases asked for that no run needs, with 200 more for each worker and site: one in which more are is stopped."""


class Witness:
    """Sits where the frontier is reached."""

    def __init__(self, scenario: Scenario, runaway: Callable[[], None]) -> None:
        self._runaway = runaway
        self._most = (RUNAWAY_TURNS + 200 * (scenario.workers + len(scenario.sites))) * (1 + 4 * scenario.shards)
        self._hears_all = not scenario.shards
        self._grants = 0
        self.deliveries: Counter[int] = Counter()
        """Key -> how often it was handed out."""
        self.accepted: set[int] = set()
        """Keys of which an outcome was acknowledged."""
        self.faults: list[str] = []
        self.is_finished = False
        self._newest: dict[tuple[str, int], int] = {}
        settings = scenario.settings
        # It looks at every site each time.
        self._looks_at_shares = settings.share_window < 100 and len(scenario.sites) < 100
        self._share = int(settings.site_share * settings.share_window)
        self._suspicious: set[str] = set()
        """Sites with a page that was handed out more than once: if its workers died, not every worker may have it."""
        self._last: deque[str] = deque(maxlen=settings.share_window // 2)

    async def ready_sites(self, frontier: EmbeddedFrontier | OpenShard) -> set[str]:
        """The sites that wait to be served and are within their share; looked for only where shares are small."""
        found: set[str] = set()
        for view in await frontier.sites() if self._looks_at_shares else ():
            site = await frontier.site(view["site"])
            assert site is not None
            is_ready = site["queued"] and not site["workers"] and not site["ready_in"] and not site["closed"]
            if is_ready and site["share_left"] > 0:
                found.add(site["site"])
        return found

    def granted(self, grant: Grant, ready: set[str], *, is_late: bool = False) -> None:
        """Tokens only grow, what is finished hands nothing out, and nobody is served twice while others wait."""
        self._grants += 1
        if self._grants > self._most:
            self._runaway()
        passed_over = ready - {lease.site for lease in grant.leases} - self._suspicious
        for lease in grant.leases:
            newest = self._newest.get((lease.site, lease.lane), 0)
            if lease.token <= newest and not is_late:
                self.faults.append(f"P4: token {lease.token:x} of {lease.site} did not grow")
            self._newest[lease.site, lease.lane] = max(newest, lease.token)
            for request in lease.requests:
                self.deliveries[request.key] += 1
                if self.deliveries[request.key] > 1:
                    self._suspicious.add(lease.site)
            if self.is_finished:
                self.faults.append(f"P6: {lease.site} was handed out after the job had been finished")
            if self._looks_at_shares:
                self._last.extend([lease.site] * len(lease.requests))
                if passed_over and not lease.suspect and self._last.count(lease.site) > self._share:
                    self.faults.append(f"quota: {lease.site} has more than its share, and {sorted(passed_over)} wait")
        # One shard may be done before the others are.
        self.is_finished = self.is_finished or (self._hears_all and grant.job == "finished")

    def restarted(self, *, forgot: bool) -> None:
        """The frontier was taken up again from what its journal kept: that has not the window of the shares."""
        self._last.clear()
        if forgot:
            # What it had said may rest on what is forgotten.
            self.is_finished = False
            self.accepted.clear()

    def superseded(self, outcomes: Sequence[Outcome]) -> int:
        """How many of these come with a token whose lane has been handed out anew."""
        return sum(self._newest.get((outcome.site, outcome.lane), 0) > outcome.token for outcome in outcomes)

    def settled(self, outcomes: Sequence[Outcome], late: int, receipt: Receipt) -> None:
        """Of outcomes of which so many were late, these counted."""
        if receipt.accepted > len(outcomes) - late:
            self.faults.append(
                f"P4: {late} outcomes with a stale token, and {receipt.accepted} of {len(outcomes)} count"
            )
        if receipt.accepted == len(outcomes):
            self.accepted.update(outcome.key for outcome in outcomes)
        if receipt.accepted and self.is_finished:
            self.faults.append("P6: a page was settled after the job had been finished")
