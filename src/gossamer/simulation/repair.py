"""Repair of a simulated job whose results are lost in part: their pages are fetched once more."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.frontier.embedded.journal import DONE, FAILED, Change, OutcomeRow
from gossamer.model import Record
from gossamer.simulation.servers import Servers


def repair(servers: Servers, records: Sequence[Sequence[Record]]) -> set[int]:
    """Queue exactly the pages again that count as stored and have no record; their keys.

    For when nobody crawls. The real command asks the frontier for visits that are due now; here they are written down,
    and the servers are started again."""
    stored = {record.key for some in records for record in some}
    lost: set[int] = set()
    for number in servers.numbers:
        owner = servers.owner(number)
        if owner is None:
            continue
        journal, now = owner.journals[number], servers.clock.epoch()
        last = {row.number: row.status for row in journal.outcomes()}
        requests, rows = journal.requests(), []
        for place, status in sorted(last.items()):
            if status in (DONE, FAILED) and requests[place].key not in stored:
                rows.append(OutcomeRow(place, status, 0, now, now, "repair", None))
                lost.add(requests[place].key)
        if rows:
            journal.note(Change(outcomes=rows), journal.header)
    if lost:
        for machine in servers.machines.values():
            machine.life.kill()
            machine.start(rests=True)
    return lost
