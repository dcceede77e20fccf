"""Whether another process has a worker's name: as far as one can see from this machine, and else by its heartbeat."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.errors import Held

if TYPE_CHECKING:
    from gossamer.frontier.folder_owner import FolderSession

log = logging.getLogger("gossamer.frontier")
_PROC = Path("/proc")


def this_process() -> str:
    """This process, like no other of any machine: the machine since it was started, its process space, number and
    time of start. Empty where that cannot be known."""
    try:
        _, started = _look_up("self")
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')} {os.getpid()} {started}"
    except (OSError, IndexError):
        return ""


def _look_up(process: str) -> tuple[str, str]:
    """The state of a process, and when it was started."""
    fields = (_PROC / process / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def is_running(life: str) -> bool | None:
    """Whether a process is still there; None if that cannot be seen from here."""
    here = this_process()
    if not life or not here or life.split()[:2] != here.split()[:2]:
        return None
    number, started = life.split()[2:]
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state, started_now = _look_up(number)
    except (OSError, IndexError):
        return None
    return started_now == started and state not in "ZX"


async def be_alone(owner: FolderSession) -> frozenset[str]:
    """The former lives of this worker, all of them dead. Held if there is a living one.

    A process of another machine that has been silent only for a while may come back: its lease is waited for."""
    heard: dict[str, int] = {}
    while True:
        await owner.look()
        lives = {name: beat for name, beat in owner.peers.beats.items() if beat.worker == owner.worker}
        waited = bool(heard)
        doubtful = False
        for name in lives.keys() & owner.peers.live:
            running, number = is_running(lives[name].life), lives[name].number
            if running or (running is None and number != heard.setdefault(name, number)):
                raise Held(
                    f"another worker named {owner.worker!r} is at work for this job",
                    hint="give each a name of its own with --name, or none at all",
                )
            doubtful = doubtful or running is None
        if not doubtful:
            return frozenset(lives)
        if not waited:
            log.warning("a worker named %r was heard of lately: waiting until it must be dead", owner.worker)
        await owner.clock.sleep(owner.every_seconds)
