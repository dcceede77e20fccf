"""The simulated web as a child process, used as a context manager, with a log of all requests."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from gossamer.errors import ConfigError
from gossamer.lab.simweb.features import Fate
from gossamer.lab.simweb.log import CrawlVerdict, SimRequest, judge, read
from gossamer.lab.simweb.server import SimServer
from gossamer.lab.simweb.site import WebPlan


class Errand(msgspec.Struct, frozen=True):
    """The first line that the child process reads."""

    plan: WebPlan
    log_path: str
    ca_file: str


class Started(msgspec.Struct, frozen=True):
    """The first line that the child process writes: the plan with its port, or an error."""

    plan: WebPlan | None = None
    error: str = ""
    hint: str = ""


def run_simweb(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)


async def serve() -> None:
    """Serve until the parent closes stdin, dies, or sends SIGTERM. Commands are lines: flush, dark N, light N."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    errand = msgspec.json.decode(await lines.readline(), type=Errand)
    server = SimServer(errand.plan, log_path=Path(errand.log_path), ca_file=Path(errand.ca_file))
    try:
        plan = await server.start()
    except ConfigError as error:
        _say(msgspec.json.encode(Started(error=str(error), hint=error.hint)).decode())
        return
    # Ctrl-C reaches every process of the terminal, but the web must outlive the crawl.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = asyncio.create_task(_obey(lines, server))
    loop.add_signal_handler(signal.SIGTERM, listening.cancel)
    _say(msgspec.json.encode(Started(plan=plan)).decode())
    with suppress(asyncio.CancelledError):
        await listening
    await server.aclose()


async def _obey(lines: asyncio.StreamReader, server: SimServer) -> None:
    while line := await lines.readline():
        command, *sites = line.decode().split()
        if command == "flush":
            server.flush()
        elif command == "dark":
            server.dark.update(map(int, sites))
        elif command == "light":
            server.dark.difference_update(map(int, sites))
        _say(command)


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    run_simweb(serve())


class SimWeb:
    """A simulated web in its own process, for the duration of a `with` block; it ends with the process that started it.

    `SimWeb(sites=4, pages_per_site=10)` accepts the fields of a WebPlan, `SimWeb(plan)` a complete plan. The request
    log is in a temporary folder that is deleted with the web, unless you pass `log_path`.
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
        """The certificate authority to trust, if the plan uses TLS."""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server; afterwards `plan` has its port."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gossamer.lab.simweb.process"],
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
        """Stop the server and delete its folder, including the log unless you passed `log_path`."""
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
        """All finished requests, in the order of arrival."""
        self._ask("flush")
        return read(self.log_path)

    def fates(self, **choice: Any) -> dict[str, Fate]:
        """The expected result for each URL: see WebPlan.fates."""
        return self.plan.fates(**choice)

    def reachable(self, **choice: Any) -> set[str]:
        """The URLs that a crawl must fetch: see WebPlan.reachable."""
        return self.plan.reachable(**choice)

    def judge(self, **choice: Any) -> CrawlVerdict:
        """Compare the crawl so far with a perfect one."""
        verdict = judge(self.log(), self.fates(**choice))
        return msgspec.structs.replace(
            verdict, unknown={url: count for url, count in verdict.unknown.items() if not self.plan.is_trap(url)}
        )

    def darken(self, *sites: int) -> None:
        """Make sites reset every connection from now on."""
        self._ask(" ".join(("dark", *map(str, sites))))

    def lighten(self, *sites: int) -> None:
        """Make dark sites respond again."""
        self._ask(" ".join(("light", *map(str, sites))))

    def _ask(self, line: str) -> str:
        if self._process is None:
            raise ConfigError("the simulated web is not running", hint="use it inside a `with` block, or call start()")
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
