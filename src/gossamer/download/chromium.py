"""One running Chromium: how it is found, started without a network of its own, weighed and ended."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError
from gossamer.extras import unusable

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
START_SECONDS = 60.0
END_SECONDS = 5.0
# Pages get their bytes from our own client. Whatever goes around that, from WebSockets to prefetching, meets a proxy
# whose name does not resolve, also for loopback and for addresses, and so never becomes a packet.
_NO_NETWORK = (
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://nowhere.invalid:9",
    "--proxy-bypass-list=<-loopback>",
    # One option, by its newer and its older name.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--dns-prefetch-disable",
)
# What speaks past the proxy is not there at all, in case a browser has another name for the option.
NO_PEERS = (
    "for (const name of ['RTCPeerConnection', 'webkitRTCPeerConnection', 'WebTransport']) delete globalThis[name];"
)
_QUIET = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-domain-reliability",
    "--disable-breakpad",
    "--no-pings",
    "--block-new-web-contents",
    "--mute-audio",
)


def find_chromium(path: str = "") -> str:
    """The browser to start; ConfigError if it or the package that drives it is not there."""
    try:
        import playwright.async_api  # noqa: F401
    except ImportError as missing:
        raise unusable("browser", "the browser downloader", missing) from missing
    if path:
        found = shutil.which(os.path.expanduser(path))
        if found is None:
            raise ConfigError(f"browser_path: {path} is not a program", hint="leave it away to use what is installed")
        return found
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise ConfigError("there is no Chromium on this machine", hint="apt-get install chromium, or set --browser-path")


@dataclass(slots=True, eq=False)
class Tab:
    """A context, in which one page at a time is shown: a new one costs four times as much as a page."""

    context: BrowserContext
    pages: int = 0


@dataclass(slots=True, eq=False)
class Chromium:
    """A browser and its driver, both processes of ours. `tabs` and `pages` are counted by whoever hands out tabs."""

    driver: Playwright
    browser: Browser
    pid: int
    """Also its process group; 0 where that cannot be found out."""
    tabs: int = 0
    pages: int = 0
    idle: list[Tab] = field(default_factory=list)
    worn: str = ""
    """Why it takes no more pages; empty while it does."""

    @property
    def is_usable(self) -> bool:
        """Whether it runs, and may take another page."""
        return not self.worn and self.browser.is_connected()

    async def tab(self, **options: Any) -> Tab:
        """A tab that is not in use, or a new one."""
        self.pages += 1
        if self.idle:
            tab = self.idle.pop()
        else:
            tab = Tab(await self.browser.new_context(**options))
            await tab.context.add_init_script(NO_PEERS)
        tab.pages += 1
        return tab

    def weigh(self) -> tuple[int, int]:
        """How many processes it has, and their memory in bytes, what they share counted once; zeros if not known."""
        processes, size = 0, 0
        for process in _group(self.pid):
            processes += 1
            size += _memory_bytes(process)
        return processes, size

    def kill(self) -> None:
        """End it at once, with everything that it shows."""
        self.worn = self.worn or "killed"
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """End it and its driver, by force if they do not go by themselves."""
        from playwright.async_api import Error

        self.worn = self.worn or "closed"
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.browser.close()
        self.kill()
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.driver.stop()


async def start_chromium(executable: str) -> Chromium:
    """A new browser with a fresh profile; ConfigError if it does not start."""
    from playwright.async_api import Error, async_playwright

    mark = f"--gossamer-browser={secrets.token_hex(8)}"
    driver = await async_playwright().start()
    try:
        # Ctrl-C goes to every process of the terminal: pages under way are to end well all the same.
        browser = await driver.chromium.launch(
            executable_path=executable,
            args=[*_NO_NETWORK, *_QUIET, mark],
            chromium_sandbox=not runs_as_root(),
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=START_SECONDS * 1000,
        )
    except Error as error:
        await driver.stop()
        said = str(error).strip().splitlines()
        hint = "where its sandbox cannot run, let --browser-path name a script that adds --no-sandbox"
        raise ConfigError(f"{executable} does not start: {said[0] if said else error!r}", hint=hint) from None
    except BaseException:
        await driver.stop()
        raise
    return Chromium(driver, browser, await asyncio.to_thread(_find, mark))


def runs_as_root() -> bool:
    """Whether Chromium would refuse its own sandbox."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _find(mark: str) -> int:
    wanted = mark.encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Children are started without the mark, and a group is named after its first process.
            if wanted in (entry / "cmdline").read_bytes().split(b"\0") and os.getpgid(int(entry.name)) == int(
                entry.name
            ):
                return int(entry.name)
    return 0


def _group(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*") if pid else ():
        with suppress(OSError):
            if os.getpgid(int(entry.name)) == pid:
                found.append(int(entry.name))
    return found


def _memory_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
