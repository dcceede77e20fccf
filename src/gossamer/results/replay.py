"""Replay: runs a spider over stored pages and writes its output files."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from gossamer.errors import ConfigError
from gossamer.results.process import Done
from gossamer.results.process_pool import ReplayPool
from gossamer.settings import Settings
from gossamer.storage.files import sync_folder, translate_error
from gossamer.storage.jsonl import ITEMS, PAGES, REJECTED
from gossamer.storage.reader import Stored

SETTINGS = "job.toml"
"""A folder with this file is the folder of a crawl."""
_EXAMPLES = 20


class Replayed(msgspec.Struct, kw_only=True):
    """The result of a replay."""

    pages: int = 0
    items: int = 0
    rejected: int = 0
    dropped: int = 0
    requests: int = 0
    """Requests that the spider yielded; a replay does not send them."""
    failed: int = 0
    unread: int = 0
    """Records that cannot be read, or whose bodies are missing."""
    bytes: int = 0
    seconds: float = 0.0
    failures: list[tuple[str, str]] = []
    """Examples of pages on which the spider failed, with the error."""
    faults: list[str] = []
    """Examples of records that cannot be read."""
    fields: dict[str, int] = {}
    """Rejected items by invalid field."""


class Replay:
    """Runs a spider over stored pages and writes pages.jsonl, items.jsonl, and, if any, items-rejected.jsonl.

    The lines are in the order of the stored pages, for any number of processes. The files are renamed into place at the
    end: a replay that is killed leaves the files of the previous one."""

    def __init__(
        self,
        stored: Stored,
        settings: Settings,
        out: Path,
        *,
        processes: int = 0,
        all_visits: bool = False,
        where: Sequence[str] = (),
    ) -> None:
        if (out / SETTINGS).exists():
            raise ConfigError(f"--out {out} is the folder of a crawl", hint="choose another folder with --out")
        self._pool = ReplayPool(stored, settings, processes=processes, all_visits=all_visits, where=where)
        self._out = out
        self._result = Replayed()
        self._fields: Counter[str] = Counter()

    def fork(self) -> None:
        """Fork the processes before `run`, which costs less; see `ReplayPool.fork`."""
        self._pool.fork()

    async def run(self, progress: Callable[[Replayed], None] = lambda _: None) -> Replayed:
        """Run to the end; `progress` is called after every part."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._out.mkdir(parents=True, exist_ok=True)
        drafts = {name: self._out / f".{name}.draft" for name in (PAGES, ITEMS, REJECTED)}
        try:
            with ExitStack() as stack:
                files = {name: stack.enter_context(path.open("wb")) for name, path in drafts.items()}
                await self._pool.run(lambda done: self._add(done, files, progress))
                for file in files.values():
                    file.flush()
                    os.fsync(file.fileno())
            for name, draft in drafts.items():
                if name == REJECTED and not draft.stat().st_size:
                    (self._out / name).unlink(missing_ok=True)
                else:
                    draft.replace(self._out / name)
            sync_folder(self._out)
        except OSError as error:
            raise translate_error(error) from error
        finally:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
        self._result.seconds = loop.time() - began
        self._result.fields = dict(self._fields.most_common())
        return self._result

    def _add(self, done: Done, files: Mapping[str, IO[bytes]], progress: Callable[[Replayed], None]) -> None:
        files[PAGES].write(done.pages)
        files[ITEMS].write(done.items)
        files[REJECTED].write(done.rejected)
        result = self._result
        result.pages += done.page_count
        result.items += done.item_count
        result.rejected += done.rejected_count
        result.dropped += done.dropped_count
        result.requests += done.request_count
        result.failed += done.failed_count
        result.unread += done.unread_count
        result.bytes += done.body_bytes
        result.failures = [*result.failures, *done.failures][:_EXAMPLES]
        result.faults = [*result.faults, *done.unread][:_EXAMPLES]
        self._fields.update(done.fields)
        progress(result)
