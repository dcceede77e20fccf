"""A simulated web for tests and first crawls: started with `with`, judged by its own log."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from gossamer.errors import ConfigError
from gossamer.sim.answer import Fate
from gossamer.sim.child import Errand, Started
from gossamer.sim.log import CrawlVerdict, SimRequest, judge, read
from gossamer.sim.site import WebPlan


class SimWeb:
    """A web that runs in a process of its own while the block lasts, and no longer than the process that started it.

    `SimWeb(sites=4, pages_per_site=10)` takes the fields of a WebPlan; `SimWeb(plan)` a whole plan. The log is in a
    folder that goes away with the web, unless `log_path` says where to keep it.
    """

    def __init__(self, plan: WebPlan | None = None, *, log_path: Path | None = None, **fields: Any) -> None:
        if plan is None:
            try:
                plan = msgspec.convert(fields, WebPlan)
            except msgspec.ValidationError as error:
                raise ConfigError(f"simulated web: {error}") from None
        elif fields:
            plan = msgspec.structs.replace(plan, **fields)
        self.plan = plan
        self._folder = tempfile.TemporaryDirectory(prefix="simweb-", ignore_cleanup_errors=True)
        self.log_path = log_path or Path(self._folder.name) / "requests.log"
        self.ca_file = Path(self._folder.name) / "ca.pem"
        """The authority to trust, if the plan has TLS."""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server; `plan` has its port from now on."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gossamer.sim.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        errand = Errand(self.plan, str(self.log_path), str(self.ca_file))
        answer = self._ask(msgspec.json.encode(errand).decode())
        started = msgspec.json.decode(answer, type=Started)
        if started.plan is None:
            self.stop()
            raise ConfigError(started.error, hint=started.hint)
        self.plan = started.plan

    def stop(self) -> None:
        """End the server and remove its folder; the log can be read up to here."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        self._folder.cleanup()

    @property
    def seeds(self) -> list[str]:
        """The first page of every site."""
        return self.plan.seeds()

    def url(self, site: int, path: str = "/") -> str:
        """The URL of a path on a site."""
        return self.plan.url(site, path)

    def log(self) -> list[SimRequest]:
        """Every request that is over by now, in the order of arrival."""
        self._ask("flush")
        return read(self.log_path)

    def fates(self, **choice: Any) -> dict[str, Fate]:
        """What a crawl must make of each URL: see WebPlan.fates."""
        return self.plan.fates(**choice)

    def reachable(self, **choice: Any) -> set[str]:
        """The URLs that a crawl must fetch: see WebPlan.reachable."""
        return self.plan.reachable(**choice)

    def judge(self, **choice: Any) -> CrawlVerdict:
        """How the crawl so far differs from a perfect one."""
        verdict = judge(self.log(), self.fates(**choice))
        return msgspec.structs.replace(
            verdict, unknown={url: count for url, count in verdict.unknown.items() if not self.plan.is_trap(url)}
        )

    def darken(self, *sites: int) -> None:
        """Let sites reset every connection from now on."""
        self._ask(" ".join(("dark", *map(str, sites))))

    def lighten(self, *sites: int) -> None:
        """Bring dark sites back."""
        self._ask(" ".join(("light", *map(str, sites))))

    def _ask(self, line: str) -> str:
        if self._process is None:
            raise ConfigError("the simulated web is not running", hint="use it inside a with block")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self._process.stdout.readline()
        if not answer:
            raise ConfigError(f"the simulated web ended with exit code {self._process.wait()}")
        return answer
