"""A process beside a crawl that ends it when it no longer handles its signals.

Signals reach Python code only between two of its instructions: a call into C code that does not come to an end holds
off Ctrl-C, the timer of `engine/budget.py` and every thread of the process. The interpreter writes the number of each
signal into a socket at once, though, and the crawl's loop empties that when it turns. This process looks into the
socket from the other side, without taking anything. It is run as a script, and imports nothing of Gossamer: it has to
start fast."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

LEAVE_SECONDS = 1.5
"""Time that a crawl has to look at a signal that says to leave."""
AT_ONCE_SECONDS = 1.0
"""The same for a second one."""
_LOOK_SECONDS = 0.25


class Process:
    """The process that is watched, and how long it has not looked at its signals."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.presses = 0
        """Signals to leave that it has not looked at."""
        self.waited = 0.0
        """Seconds on the clock since the last of these, without those in which it was stopped."""
        self.busy = 0.0
        """Seconds since the first signal of any kind, without time in which others had the processor."""
        self._looked_at = time.monotonic()
        self._cpu = self._state()[1]

    def _state(self) -> tuple[str, float]:
        """What the process does, by the letter of the system, and its CPU time; asleep where nothing is known."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return "S", 0.0
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def look(self, pending: bytes) -> None:
        """A moment has passed, and these signals are pending."""
        presses = sum(number in (signal.SIGINT, signal.SIGTERM) for number in pending)
        if presses != self.presses:
            self.presses, self.waited = presses, 0.0
        now, (state, cpu) = time.monotonic(), self._state()
        # This process may have been stopped too, as by Ctrl-Z: no more than a moment has passed for the other.
        passed = min(now - self._looked_at, 2 * _LOOK_SECONDS)
        if state not in ("T", "t"):
            self.waited += passed
            self.busy += passed if state == "S" else min(passed, cpu - self._cpu)
        self._looked_at, self._cpu = now, cpu


def verdict(process: Process, hang_seconds: float) -> str:
    """Why to end a process that does not look at its signals; empty for not yet."""
    if process.presses and process.waited >= (LEAVE_SECONDS if process.presses == 1 else AT_ONCE_SECONDS):
        return "leave"
    return "hang" if process.busy >= hang_seconds else ""


def watch(pid: int, peeked: socket.socket, emptied: int, hang_seconds: float) -> None:
    """Watch until the process ends. `emptied` gives a byte each time that it has looked."""
    process: Process | None = None
    while True:
        # Nothing is done while nothing is pending.
        wanted, timeout = ([emptied, peeked.fileno()], None) if process is None else ([emptied], _LOOK_SECONDS)
        if emptied in select.select(wanted, [], [], timeout)[0]:
            if not os.read(emptied, 4096):
                return
            process = None
            continue
        try:
            pending = peeked.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            process = None
            continue
        if process is None:
            process = Process(pid)
            continue
        process.look(pending)
        if why := verdict(process, hang_seconds):
            end(pid, why, process.busy)
            return


def end(pid: int, why: str, seconds: float) -> None:
    """Say what happened, and end the process. What it had in hand is not lost: nothing of it was completed."""
    if why == "hang":
        said = (
            f"error: a page has kept this process in one call of C code for {seconds:.0f} s, which nothing interrupts\n"
            "hint: run the command again: it goes on, and handles that page in a process of its own. Where it was:\n"
        )
        os.write(2, said.encode())
        # The other side has this signal print the Python stack, and end it then.
        os.kill(pid, signal.SIGVTALRM)
        time.sleep(1.0)
    else:
        os.write(2, b"left in the middle of a page: it was in C code, which nothing interrupts\n")
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> None:
    """Arguments: the process, the descriptor of the socket, and the seconds after which a page counts as hung."""
    pid, descriptor, hang_seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    watch(pid, socket.socket(fileno=descriptor), 0, hang_seconds)


if __name__ == "__main__":
    main()
