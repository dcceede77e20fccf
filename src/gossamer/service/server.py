"""The server process: options, socket, and start and end."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gossamer.clock import SystemClock
from gossamer.errors import ConfigError
from gossamer.extras import unusable
from gossamer.frontier.backends import is_fleet
from gossamer.service.routing import Part
from gossamer.service.schemas import Role
from gossamer.settings import Settings

_IDLE_SECONDS = 15
_STUCK_MILLISECONDS = 30_000
_BACKLOG = 512
_SEND_BYTES = 256 * 1024
_MOST_CONNECTIONS = 2000


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `gossamer serve`."""

    crawls: Path
    frontier: str = ""
    jobs: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8090
    only: Part = ""
    allow_hosts: tuple[str, ...] = ()
    spiders: Mapping[str, str] = {}
    most: int = 8
    rate: float = 100.0
    notify: tuple[str, ...] = ()
    stalled_after: float = 600.0
    errors_above: float = 0.5


def check_address(host: str, tokens: Mapping[Role, str]) -> None:
    """Raise ConfigError for a non-loopback address if no token is set."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local and not tokens:
        raise ConfigError(
            f"--host {host}: this address is reachable from the network, and no token is set",
            hint="set GOSSAMER_WRITE_TOKEN (and GOSSAMER_READ_TOKEN), or use --host 127.0.0.1",
        )


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. A client that receives nothing for 30 seconds is disconnected."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Limit the kernel's memory for clients that do not read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK_MILLISECONDS)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{host}:{port}: {error.strerror}", hint="choose another --port") from None
    listener.setblocking(False)
    return listener


async def serve(
    options: ServerOptions, base: Settings, tokens: Mapping[Role, str], on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve until SIGINT or SIGTERM; calls `on_ready` with the URL once the socket listens."""
    try:
        import uvicorn

        from gossamer.service.app import application
        from gossamer.service.directory import FleetJobs, JobDirectory, LocalJobs
        from gossamer.service.events import EventHub
        from gossamer.service.monitor import Monitor
        from gossamer.service.security import Authenticator
        from gossamer.service.state import ServiceState
    except ImportError as missing:
        raise unusable("service", "the service", missing) from missing
    clock, hub = SystemClock(), EventHub()
    directory: JobDirectory
    if is_fleet(options.frontier):
        directory = FleetJobs(options.frontier, options.crawls, clock=clock, named=options.jobs)
    else:
        directory = LocalJobs(options.crawls, clock=clock, most=options.most)
    service = ServiceState(
        directory=directory,
        monitor=Monitor(directory, hub, clock=clock, notifier=_open_notifier(options, clock)),
        hub=hub,
        clock=clock,
        authenticator=Authenticator(tokens, clock=clock),
        base=base,
        spiders=options.spiders,
        only=options.only,
    )
    app: Any = application(service, hosts=(options.host, *options.allow_hosts), rate=options.rate)
    listener = listen(options.host, options.port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        loop="none",
        http="h11",
        ws="none",
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=2,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=65_536,
    )
    host = f"[{options.host}]" if ":" in options.host else options.host
    on_ready(f"http://{host}:{listener.getsockname()[1]}/")
    server = _without_signal_handlers(uvicorn.Server)(config)

    def shut_down() -> None:
        # Close event streams first: the server waits for open connections.
        hub.close()
        server.force_exit = server.should_exit
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, shut_down)
    await server.serve(sockets=[listener])


def _open_notifier(options: ServerOptions, clock: SystemClock) -> Any:
    if not options.notify:
        return None
    from gossamer.jobs.notifications import Notifier
    from gossamer.service.monitor import JobNotifier

    notifier = Notifier(options.notify)
    return JobNotifier(notifier, stalled_after=options.stalled_after, errors_above=options.errors_above, clock=clock)


def _without_signal_handlers(kind: Any) -> Any:
    """Disable uvicorn's signal handlers: it re-raises a signal after shutdown, so it would seem killed."""

    class Server(kind):  # type: ignore[misc]
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server


def parse_offers(offers: Sequence[str]) -> dict[str, str]:
    """Parse `--offer` options (NAME=FILE.py or NAME=FILE.py:Class) into names and absolute paths."""
    found: dict[str, str] = {}
    for offer in offers:
        name, equals, place = offer.partition("=")
        file, colon, kind = place.partition(".py:")
        path = Path(f"{file}.py" if colon else place).absolute()
        if not equals or not name or not path.is_file():
            raise ConfigError(
                f"--offer {offer}: no such file", hint="use --offer NAME=FILE.py or --offer NAME=FILE.py:Class"
            )
        found[name] = f"{path}:{kind}" if colon else str(path)
    return found
