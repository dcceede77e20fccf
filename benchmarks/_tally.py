"""CPU and memory of a command and all its descendants, measured by a subreaper process.

    python benchmarks/_tally.py RESULT.json COMMAND ...

It adopts orphans, so the CPU of every process is counted when it exits. SIGUSR1 kills all processes at once with
SIGKILL. Memory is the sum of their proportional set sizes (PSS), sampled five times per second, so shared memory counts
once.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

SAMPLE_SECONDS, LOOK_SECONDS, LINGER_SECONDS = 0.2, 0.02, 10.0
_SET_CHILD_SUBREAPER = 36


def environment() -> dict[str, str]:
    """The environment without GOSSAMER_* settings, and with cached bytecode, as in installed programs."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GOSSAMER_") and name != "PYTHONDONTWRITEBYTECODE"
    }


class Cost(NamedTuple):
    """Cost of one command, from its start to the exit of its last descendant."""

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    code: int


class Running:
    """A running command, measured by a separate process."""

    def __init__(self, command: list[str], result: Path, **variables: str) -> None:
        self._result = result
        self.errors = result.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(result), *command],
                env={**environment(), **variables},
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill all its processes at once."""
        self._process.send_signal(signal.SIGUSR1)

    def cost(self, seconds: float) -> Cost | None:
        """Wait for its exit; after the timeout, kill it and return None."""
        try:
            self._process.wait(seconds)
        except BaseException as error:
            self.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return None
        return Cost(*json.loads(self._result.read_text()))


def family(pid: int) -> list[int]:
    """All descendants of a process, including those of its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *family(child)]
    return found


def proportional_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def main() -> None:
    result, *command = sys.argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    output: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: output.append(1))
    began = time.monotonic()
    first = subprocess.Popen(command)
    code, peak, sampled, over_at = 0, 0, 0.0, 0.0
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == first.pid:
            code, over_at = os.waitstatus_to_exitcode(status), time.monotonic()
        if pid:
            continue
        now = time.monotonic()
        if output or (over_at and now - over_at > LINGER_SECONDS):
            for pid in family(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        elif now - sampled >= SAMPLE_SECONDS:
            peak, sampled = max(peak, sum(map(proportional_bytes, family(os.getpid())))), now
        time.sleep(LOOK_SECONDS)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = Cost(used.ru_utime + used.ru_stime, time.monotonic() - began, peak, code)
    Path(result).write_text(json.dumps(cost))


if __name__ == "__main__":
    main()
