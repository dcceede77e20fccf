"""Chromium processes: started without network access, shared as tabs, measured, and replaced before they degrade."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.errors import ConfigError, RenderFailed
from gossamer.extras import unusable
from gossamer.settings import Settings

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright


NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
START_SECONDS = 60.0
END_SECONDS = 5.0
# Pages get their bytes from our own client. Everything that bypasses it, from WebSockets to prefetching, meets a
# proxy whose name does not resolve, also for loopback and IP addresses, and so never becomes a packet.
_NO_NETWORK = (
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://nowhere.invalid:9",
    "--proxy-bypass-list=<-loopback>",
    # One option under its newer and its older name.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--dns-prefetch-disable",
)
# APIs that bypass the proxy are removed, in case a browser uses another name for the option.
REMOVED_APIS = (
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
    """Return the path of the browser; ConfigError if it or the playwright package is missing."""
    try:
        import playwright.async_api  # noqa: F401
    except ImportError as missing:
        raise unusable("browser", "the browser downloader", missing) from missing
    if path:
        found = shutil.which(os.path.expanduser(path))
        if found is None:
            raise ConfigError(f"browser_path: {path} is not an executable", hint="omit it to use the installed one")
        return found
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise ConfigError("Chromium is not installed", hint="apt-get install chromium, or set --browser-path")


@dataclass(slots=True, eq=False)
class Tab:
    """A browser context that shows one page at a time; reused, since a new context costs four times a page."""

    context: BrowserContext
    pages: int = 0


@dataclass(slots=True, eq=False)
class Chromium:
    """A browser and its driver process. The caller that hands out tabs maintains `tabs` and `pages`."""

    driver: Playwright
    browser: Browser
    pid: int
    """Process id, which is also the process group; 0 if unknown."""
    tabs: int = 0
    pages: int = 0
    idle: list[Tab] = field(default_factory=list)
    worn: str = ""
    """Why it accepts no more pages; empty while it does."""

    @property
    def is_usable(self) -> bool:
        """Whether it runs and may accept another page."""
        return not self.worn and self.browser.is_connected()

    async def tab(self, **options: Any) -> Tab:
        """Return an idle tab, or a new one."""
        self.pages += 1
        if self.idle:
            tab = self.idle.pop()
        else:
            tab = Tab(await self.browser.new_context(**options))
            await tab.context.add_init_script(REMOVED_APIS)
        tab.pages += 1
        return tab

    def memory_usage(self) -> tuple[int, int]:
        """Return the number of processes and their memory in bytes, shared memory counted once; zeros if unknown."""
        processes, size = 0, 0
        for process in _group(self.pid):
            processes += 1
            size += _memory_bytes(process)
        return processes, size

    def kill(self) -> None:
        """Kill the process group at once, with all open pages."""
        self.worn = self.worn or "killed"
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """Close the browser and its driver; kill them if they do not exit in time."""
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
    """Start a browser with a fresh profile; ConfigError if it does not start."""
    from playwright.async_api import Error, async_playwright

    mark = f"--gossamer-browser={secrets.token_hex(8)}"
    driver = await async_playwright().start()
    try:
        # Ctrl-C reaches every process of the terminal, but pages in progress should still finish.
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
        lines = str(error).strip().splitlines()
        hint = "if the sandbox cannot run here, set --browser-path to a script that adds --no-sandbox"
        raise ConfigError(f"{executable} does not start: {lines[0] if lines else error!r}", hint=hint) from None
    except BaseException:
        await driver.stop()
        raise
    return Chromium(driver, browser, await asyncio.to_thread(_find, mark))


def runs_as_root() -> bool:
    """Whether Chromium would refuse to use its sandbox."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _find(mark: str) -> int:
    wanted = mark.encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Child processes do not carry the mark, and a process group is named after its leader.
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


OPEN_SECONDS = 20.0
MEASURE_SECONDS = 2.0
TAB_PAGES = 100
LAUNCHES = 4
# A browser whose memory grows faster than its pages end is killed at once.
KILL_FACTOR = 2
log = logging.getLogger("gossamer.browser")


class Browsers:
    """Hands out browser contexts, at most `browser_tabs` at once, from one browser (two while an old one drains).

    A browser is replaced after `browser_pages` pages, above `browser_memory_bytes`, or when it has died."""

    def __init__(self, settings: Settings, executable: str, profile: dict[str, Any]) -> None:
        self._settings, self._executable, self._profile = settings, executable, profile
        self._tabs = asyncio.Semaphore(settings.browser_tabs)
        self._launch: asyncio.Task[Chromium] | None = None
        self._current: Chromium | None = None
        self._all: dict[Chromium, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False
        self.started = 0
        self.replaced: deque[str] = deque(maxlen=100)
        """Why the most recent browsers were replaced."""

    @asynccontextmanager
    async def context(self) -> AsyncIterator[BrowserContext]:
        """Yield a context for one page; its pages are closed before reuse, and a context that fails is discarded.

        ConfigError if no browser has ever started; RenderFailed if none is available now."""
        await self._tabs.acquire()
        chromium: Chromium | None = None
        tab: Tab | None = None
        ended_well = False
        try:
            chromium = await self._usable()
            chromium.tabs += 1
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    tab = await chromium.tab(**self._profile)
            except TimeoutError:
                self._retire(chromium, "it does not respond")
                chromium.kill()
                raise RenderFailed("the browser does not respond") from None
            yield tab.context
            ended_well = True
        finally:
            # A task, so that a cancelled page also returns its tab, but only after the page is closed.
            self._begin(self._end(chromium, tab, ended_well))

    async def aclose(self) -> None:
        """Close every browser; pages in progress fail."""
        self._closed = True
        if self._launch is not None:
            await asyncio.wait((self._launch,))
        await asyncio.gather(*(self._close(chromium) for chromium in list(self._all)))
        while self._endings:
            await asyncio.wait(self._endings)

    def memory_usage(self) -> tuple[int, int]:
        """Return the number of processes and bytes of memory of all browsers."""
        found = [chromium.memory_usage() for chromium in list(self._all)]
        return sum(processes for processes, _ in found), sum(size for _, size in found)

    async def _usable(self) -> Chromium:
        for _ in range(LAUNCHES):
            if self._closed:
                raise RenderFailed("the downloader is closed")
            current = self._current
            if current is not None and current.pages >= self._settings.browser_pages:
                self._retire(current, f"{current.pages} pages")
            elif current is not None and current.is_usable:
                return current
            elif current is not None:
                self._retire(current, "it exited")
            if self._launch is None:
                self._launch = asyncio.create_task(self._start())
            # All pages share the browser: cancelling one page must not cancel the start.
            await asyncio.shield(self._launch)
        raise RenderFailed("browsers exit as soon as they are started")

    async def _start(self) -> Chromium:
        if not self.started and runs_as_root():
            log.warning("running as root disables Chromium's sandbox: use another user for sites that you do not trust")
        try:
            async with asyncio.timeout(START_SECONDS + OPEN_SECONDS):
                chromium = await start_chromium(self._executable)
        except (ConfigError, TimeoutError) as error:
            if not self.started and isinstance(error, ConfigError):
                raise
            raise RenderFailed(f"cannot start a browser: {error or 'it takes too long to start'}") from None
        finally:
            self._launch = None
        self.started += 1
        self._current = chromium
        self._all[chromium] = asyncio.create_task(self._watch(chromium))
        return chromium

    def _retire(self, chromium: Chromium, why: str) -> None:
        """Send no more pages to this browser; it closes with its last page."""
        if self._current is chromium:
            self._current = None
            self.replaced.append(why)
            log.info("replacing the browser: %s", why)
        chromium.worn = chromium.worn or why
        if not chromium.tabs:
            self._begin(self._close(chromium))

    async def _end(self, chromium: Chromium | None, tab: Tab | None, ended_well: bool) -> None:
        from playwright.async_api import Error

        try:
            if chromium is not None and tab is not None:
                async with asyncio.timeout(END_SECONDS):
                    if ended_well and chromium.is_usable and tab.pages < TAB_PAGES:
                        for page in tab.context.pages:
                            await page.close()
                        chromium.idle.append(tab)
                    else:
                        await tab.context.close()
        except Error:
            if chromium is not None:
                self._retire(chromium, "a page did not close" if chromium.browser.is_connected() else "it exited")
        except TimeoutError:
            if chromium is not None:
                self._retire(chromium, "a page did not close")
                chromium.kill()
        finally:
            if chromium is not None:
                chromium.tabs -= 1
                if chromium.worn and not chromium.tabs:
                    await self._close(chromium)
            self._tabs.release()

    async def _close(self, chromium: Chromium) -> None:
        watching = self._all.pop(chromium, None)
        if watching is not None:
            watching.cancel()
            await chromium.aclose()

    async def _watch(self, chromium: Chromium) -> None:
        """Measure a browser's memory while it has pages."""
        limit_bytes = self._settings.browser_memory_bytes
        while True:
            await asyncio.sleep(MEASURE_SECONDS)
            if not chromium.tabs:
                continue
            _, size = await asyncio.to_thread(chromium.memory_usage)
            if size > limit_bytes:
                self._retire(chromium, f"{size >> 20} MiB")
            if size > KILL_FACTOR * limit_bytes:
                chromium.kill()

    def _begin(self, ending: Any) -> None:
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
