"""The browser that all pages of a worker share: tabs in turn, and a new one in place of a worn or dead one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gossamer.download.chromium import END_SECONDS, START_SECONDS, Chromium, Tab, runs_as_root, start_chromium
from gossamer.errors import ConfigError, RenderFailed
from gossamer.settings import Settings

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

OPEN_SECONDS = 20.0
WEIGH_SECONDS = 2.0
TAB_PAGES = 100
LAUNCHES = 4
# One that grows faster than its pages end is not waited for.
TOO_HEAVY = 2
log = logging.getLogger("gossamer.browser")


class Browsers:
    """Hands out contexts, at most `browser_tabs` at once. There is one browser, and for a while the one before it.

    A browser is replaced after `browser_pages` pages, above `browser_memory_bytes`, and when it is gone."""

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
        """Why the last browsers were replaced."""

    @asynccontextmanager
    async def context(self) -> AsyncIterator[BrowserContext]:
        """A context for one page, whose pages are closed before the next one gets it; used up if this one fails.

        ConfigError if no browser has ever started; RenderFailed if one cannot be had now."""
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
                self._retire(chromium, "it does not answer")
                chromium.kill()
                raise RenderFailed("the browser does not answer") from None
            yield tab.context
            ended_well = True
        finally:
            # A task, so that a page that is cancelled gives its tab back too, but not before it is closed.
            self._begin(self._end(chromium, tab, ended_well))

    async def aclose(self) -> None:
        """End every browser; pages under way fail."""
        self._closed = True
        if self._launch is not None:
            await asyncio.wait((self._launch,))
        await asyncio.gather(*(self._close(chromium) for chromium in list(self._all)))
        while self._endings:
            await asyncio.wait(self._endings)

    def weigh(self) -> tuple[int, int]:
        """Processes and bytes of all browsers together."""
        found = [chromium.weigh() for chromium in list(self._all)]
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
                self._retire(current, "it is gone")
            if self._launch is None:
                self._launch = asyncio.create_task(self._start())
            # The browser is everyone's: a page that is cancelled meanwhile does not stop it from starting.
            await asyncio.shield(self._launch)
        raise RenderFailed("browsers die as soon as they are started")

    async def _start(self) -> Chromium:
        if not self.started and runs_as_root():
            log.warning("running as root, so Chromium has no sandbox: use another user for sites that you do not trust")
        try:
            async with asyncio.timeout(START_SECONDS + OPEN_SECONDS):
                chromium = await start_chromium(self._executable)
        except (ConfigError, TimeoutError) as error:
            if not self.started and isinstance(error, ConfigError):
                raise
            raise RenderFailed(f"no new browser: {error or 'it takes too long to start'}") from None
        finally:
            self._launch = None
        self.started += 1
        self._current = chromium
        self._all[chromium] = asyncio.create_task(self._watch(chromium))
        return chromium

    def _retire(self, chromium: Chromium, why: str) -> None:
        """No more pages for this one; it is ended with the last of those that it has."""
        if self._current is chromium:
            self._current = None
            self.replaced.append(why)
            log.info("a new browser: %s", why)
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
                self._retire(chromium, "a page did not close" if chromium.browser.is_connected() else "it is gone")
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
        """Weigh a browser while it has pages."""
        limit_bytes = self._settings.browser_memory_bytes
        while True:
            await asyncio.sleep(WEIGH_SECONDS)
            if not chromium.tabs:
                continue
            _, size = await asyncio.to_thread(chromium.weigh)
            if size > limit_bytes:
                self._retire(chromium, f"{size >> 20} MiB")
            if size > TOO_HEAVY * limit_bytes:
                chromium.kill()

    def _begin(self, ending: Any) -> None:
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
