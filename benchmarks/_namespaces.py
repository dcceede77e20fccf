"""Network namespaces on a bridge, one per simulated machine; deleted at the end of the block, also on Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from gossamer.engine.supervision import dies_with_us

PREFIX = "gsmr"


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def are_allowed() -> bool:
    """Whether this process can create namespaces."""
    try:
        ip("netns", "add", f"{PREFIX}{os.getpid()}-probe")
        ip("netns", "delete", f"{PREFIX}{os.getpid()}-probe")
    except OSError:
        return False
    return True


class Namespaces:
    """Create `count` namespaces whose only route is a bridge to this machine, which has `address`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tag = f"{PREFIX}{os.getpid()}"
        self._net = f"10.{200 + os.getpid() // 256 % 50}.{os.getpid() % 256}"
        self._undo = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.address = f"{self._net}.1"

    def __enter__(self) -> Self:
        # Turn SIGTERM into an exception, so that all blocks clean up.
        before = signal.signal(signal.SIGTERM, _leave)
        self._undo.callback(signal.signal, signal.SIGTERM, before)
        try:
            _remove_orphans()
            self._make()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def _make(self) -> None:
        self._add("link", f"{self._tag}b", "type", "bridge")
        ip("address", "add", f"{self.address}/24", "dev", f"{self._tag}b")
        ip("link", "set", f"{self._tag}b", "up")
        for number in range(self._count):
            name, here, there = f"{self._tag}-{number}", f"{self._tag}h{number}", f"{self._tag}n{number}"
            self._add("netns", name)
            self._add("link", here, "type", "veth", "peer", "name", there, "netns", name)
            ip("link", "set", here, "master", f"{self._tag}b", "up")
            ip("-n", name, "address", "add", f"{self.inside(number)}/24", "dev", there)
            ip("-n", name, "link", "set", there, "up")
            ip("-n", name, "link", "set", "lo", "up")
        self._undo.callback(self._end_processes)

    def _add(self, kind: str, name: str, *words: str) -> None:
        ip(kind, "add", name, *words)
        self._undo.callback(subprocess.run, ["ip", kind, "delete", name], check=False, stderr=subprocess.DEVNULL)

    def inside(self, number: int) -> str:
        """The address of a namespace, as the bridge sees it."""
        return f"{self._net}.{number + 2}"

    def start(self, number: int, command: list[str], **variables: str) -> subprocess.Popen[bytes]:
        """Run a command in a namespace; it is killed at the end of the block."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", f"{self._tag}-{number}", *command],
            env={**os.environ, **variables},
            preexec_fn=dies_with_us(),  # noqa: PLW1509
        )
        self._processes.append(process)
        return process

    def _end_processes(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Relay:
    """Forwards connections to an address of the bridge to the same port on loopback."""

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._loop.create_server(lambda: _Near(self._port), self._address, self._port))
        self._started.set()
        self._loop.run_forever()


class _Far(asyncio.Protocol):
    """The connection to loopback."""

    def __init__(self, near: _Near) -> None:
        self._near = near

    def data_received(self, data: bytes) -> None:
        self._near.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._near.transport.close()


class _Near(asyncio.Protocol):
    """A client's connection; data is buffered until the other one is open."""

    transport: asyncio.Transport

    def __init__(self, port: int) -> None:
        self._port = port
        self._waiting: list[bytes] = []
        self._far: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            self._far, _ = await asyncio.get_running_loop().create_connection(
                lambda: _Far(self), "127.0.0.1", self._port
            )
        except OSError:
            self.transport.close()
            return
        self._far.write(b"".join(self._waiting))
        if self.transport.is_closing():
            self._far.close()

    def data_received(self, data: bytes) -> None:
        if self._far is None:
            self._waiting.append(data)
        else:
            self._far.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._far is not None:
            self._far.close()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _remove_orphans() -> None:
    """Delete the namespaces and the bridge of a killed run."""
    names = [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]
    for name in names:
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            for kind, thing in (("netns", name), ("link", f"{PREFIX}{owner}b")):
                subprocess.run(["ip", kind, "delete", thing], check=False, stderr=subprocess.DEVNULL)
