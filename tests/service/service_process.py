"""Runs `gossamer serve` as a process for tests, with an HTTP client; its crawls end with the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

READ, WRITE = "a-token-that-only-reads-1", "a-token-that-does-all-22"


class Served:
    """A running service, with an HTTP client that has a token."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path, token: str) -> None:
        self.process = process
        self.address = address
        self.log = log
        self.client = httpx.Client(base_url=address, headers=_bearer(token), timeout=30, trust_env=False)
        self.children: set[int] = set()

    def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        """Send a request, check the status, and return the decoded response."""
        answer = self.client.request(method, path, **more)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.headers.get("content-type") == "application/json" else answer.text

    def get(self, path: str, expected: int = 200, **parameters: Any) -> Any:
        return self.ask("GET", path, expected, params=parameters)

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        self._remember()
        try:
            return self.ask("POST", path, status, json=body)
        finally:
            self._remember()

    def until(self, condition: Callable[[], Any], seconds: float = 40.0) -> Any:
        """Wait for a condition and return its value; fails after the timeout."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.05)
        raise AssertionError(f"it did not come about in time; the log says:\n{self.log.read_text()}")

    def state(self, job: str, *wanted: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        return self.until(lambda: (found := self.get(f"/api/jobs/{job}"))["state"] in wanted and found)  # type: ignore[no-any-return]

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a Prometheus series; None if it does not exist."""
        families = text_string_to_metric_families(self.get("/metrics"))
        found = [one.value for family in families for one in family.samples if (one.name, one.labels) == (name, labels)]
        assert len(found) < 2, f"{name} {labels} is there {len(found)} times"
        return found[0] if found else None

    def _remember(self) -> None:
        """Record the crawls that it has started, which would outlive it."""
        with suppress(OSError):
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
            self.children |= set(map(int, text.split()))

    def close(self) -> None:
        self._remember()
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        for child in self.children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


@contextmanager
def serving(folder: Path, *options: str, tokens: bool = True, **environment: str) -> Iterator[Served]:
    """Run `gossamer serve` on a free port, with its crawls in this folder."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    if tokens:
        own |= {"GOSSAMER_READ_TOKEN": READ, "GOSSAMER_WRITE_TOKEN": WRITE}
    log = folder / "serve.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "gossamer", "serve", "--port", "0", "--crawls", str(folder / "crawls"), *options],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=own | environment,
        )
    served = None
    try:
        end = time.monotonic() + 40
        while not (found := re.search(r"serving on (\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        served = Served(process, found[1], log, WRITE if tokens else "")
        yield served
    finally:
        if served is not None:
            served.close()
        else:
            process.kill()
            process.wait()
