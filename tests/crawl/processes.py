"""Helpers that run crawls as real processes, verified by their files and the web server's log."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from gossamer.lab.simweb.process import SimWeb

FAST = (
    "--allow-private",
    "--concurrency",
    "32",
    "--backoff-seconds",
    "0.3",
    "--commit-seconds",
    "0.05",
    "--fetch-seconds",
    "5",
)


four_is_long = pytest.mark.parametrize(
    "workers", ["1", pytest.param("4", marks=pytest.mark.long)], ids=["1 worker", "4 workers"]
)
"""For tests in which workers hardly matter: four of them are asked by `make test-long`."""


def command(folder: Path, seeds: Sequence[str], *options: str) -> list[str]:
    """The command line of a crawl in `folder` with the options that make tests quick."""
    lines = folder.parent / f"{folder.name}.seeds"
    lines.write_text("\n".join(seeds))
    return [sys.executable, "-m", "gossamer", "crawl", "--seeds", str(lines), "--job", str(folder), *FAST, *options]


def crawl(folder: Path, web: SimWeb, *options: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    """A crawl from its start to its end."""
    return subprocess.run(
        command(folder, web.seeds, *options),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment(),
    )


class Seeded(Protocol):
    """A web that runs."""

    @property
    def seeds(self) -> list[str]: ...


def start(folder: Path, web: Seeded, *options: str) -> subprocess.Popen[str]:
    """A crawl in a process group of its own, so that its whole tree can be killed."""
    return subprocess.Popen(
        command(folder, web.seeds, *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}


def wrong_clock(shift: str) -> dict[str, str]:
    """The environment of a machine whose clock is off by `shift`.

    Without the program faketime: it keeps semaphores named by its process id, and one that was left behind stops it.
    """
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed: wrong clocks are not checked")
    return {"LD_PRELOAD": "/usr/$LIB/faketime/libfaketime.so.1", "FAKETIME": shift}


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file; a broken line fails the test."""
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def stored(folder: Path) -> Counter[str]:
    """How often each URL stands in pages.jsonl."""
    return Counter(row["url"] for row in rows(folder / "pages.jsonl"))


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def kill_tree(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """kill -9 of a crawl and all its workers."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(60)
    if process.stderr is not None:
        process.stderr.close()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition; its value, or a failed test when it does not come about."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come about in time")
