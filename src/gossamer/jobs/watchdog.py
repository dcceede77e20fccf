"""A process beside a crawl that ends it when it no longer handles its signals.

Signals reach Python code only between two of its instructions: a call into C code that does not come to an end holds
off Ctrl-C, the timer of `engine/budget.py` and every thread of the process. The interpreter writes the number of each
signal into a socket at once, though, and the crawl's loop empties that when it turns. This process looks into the
socket from the other side, without taking anything. It is run as a script, and imports nothing of Gossamer: it has to
start fast.

Two cases end the crawl's process. A signal to leave that is not read for 1.5 s, or 1 s for a second one: a person
waits. And any other signal, in practice the timer of a page, that is not read for as long as the page's whole budget:
the page hangs. Then the Python stack is printed first (SIGVTALRM, by `faulthandler`), and the crash marker makes the
page a suspect for the next run. Nothing that was acknowledged is lost with the process: what it had in hand was not
completed.

Time is counted with care, because a wrong verdict kills a healthy crawl. Seconds in which the process is stopped
(Ctrl-Z, a suspended machine) do not count, nor those in which this process was stopped, nor, for a hang, those in which
others had the processor."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

LEAVE_SECONDS = 1.5
"""Seconds that a crawl has to read a signal to leave."""
AT_ONCE_SECONDS = 1.0
"""The same for a second one."""
_LOOK_SECONDS = 0.25


class Process:
    """The watched process, and for how long it has not read its signals."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.presses = 0
        """Signals to leave that it has not read."""
        self.waited = 0.0
        """Seconds since the last of these, without those in which it was stopped."""
        self.busy = 0.0
        """Seconds since the first signal of any kind, without time in which others had the processor."""
        self._looked_at = time.monotonic()
        self._cpu = self._state()[1]

    def _state(self) -> tuple[str, float]:
        """The state of the process, as the system's letter, and its CPU time; asleep where they are not known."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return "S", 0.0
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def look(self, pending: bytes) -> None:
        """Count the time since the last look; these signals are pending."""
        presses = sum(number in (signal.SIGINT, signal.SIGTERM) for number in pending)
        if presses != self.presses:
            self.presses, self.waited = presses, 0.0
        now, (state, cpu) = time.monotonic(), self._state()
        # This process may have been stopped, too, as by Ctrl-Z: count no more than two looks.
        passed = min(now - self._looked_at, 2 * _LOOK_SECONDS)
        if state not in ("T", "t"):
            self.waited += passed
            self.busy += passed if state == "S" else min(passed, cpu - self._cpu)
        self._looked_at, self._cpu = now, cpu


def verdict(process: Process, hang_seconds: float) -> str:
    """Why to end the process: `leave` or `hang`; empty for not yet."""
    if process.presses and process.waited >= (LEAVE_SECONDS if process.presses == 1 else AT_ONCE_SECONDS):
        return "leave"
    return "hang" if process.busy >= hang_seconds else ""


def watch(pid: int, peeked: socket.socket, emptied: int, hang_seconds: float) -> None:
    """Watch until the process ends. It writes a byte to `emptied` each time that it has read its signals."""
    process: Process | None = None
    while True:
        # Sleep without a timeout while no signal is pending.
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
    """Report why, and kill the process."""
    if why == "hang":
        message = (
            f"error: a page has blocked this process in C code for {seconds:.0f} s, which cannot be interrupted\n"
            "hint: run the command again to resume; the page is then parsed in a separate process. Stack:\n"
        )
        os.write(2, message.encode())
        # `faulthandler` in that process prints the Python stack at this signal.
        os.kill(pid, signal.SIGVTALRM)
        time.sleep(1.0)
    else:
        os.write(2, b"exited in the middle of a page: it was in C code, which cannot be interrupted\n")
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
