"""The export as a folder of Markdown files: the main part of each page, ready for search and for language models.

The front matter is written without PyYAML, which takes 28 us for a page instead of 5 us."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import msgspec

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.export import Export
from gossamer.export.chunks import chunks, count_words
from gossamer.replay.crew import ReplayPool
from gossamer.replay.orders import Done
from gossamer.settings import Settings
from gossamer.storage.reader import open_stored

INDEX, CHUNKS = "index.jsonl", "chunks.jsonl"
_TOLD = 20
_SPIDER = "gossamer.replay.clean:CleanPages"
_FRONT = ("title", "author", "date", "modified", "language", "description", "site_name", "cut")
_SLUG_CHARS, _HOST_CHARS = 80, 100
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)")
log = logging.getLogger("gossamer.export")
_encode = msgspec.json.Encoder().encode


def write_markdown(export: Export) -> int:
    """A file a page in HOST/, with front matter; index.jsonl lists them, and chunks.jsonl has their parts, if asked."""
    assert export.out is not None
    folder = export.out
    if folder.exists() and not (folder / INDEX).exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", hint="give --out a new folder, or one of an earlier export")
    folder.mkdir(parents=True, exist_ok=True)
    with open_stored(export.source) as stored:
        crew = ReplayPool(stored, Settings(spider=_SPIDER), all_visits=export.all_visits, where=export.where.conditions)
        writer = _Writer(folder, most_words=export.options.get("chunks") or 0, all_visits=export.all_visits)
        try:
            asyncio.run(crew.run(writer.take))
        finally:
            writer.close()
    writer.finish()
    return writer.count


class _Writer:
    """Writes the files as pages come; the lists take their names at the end."""

    def __init__(self, folder: Path, *, most_words: int, all_visits: bool) -> None:
        self._folder = folder
        self._most_words = most_words
        self._all_visits = all_visits
        names = (INDEX, CHUNKS) if most_words else (INDEX,)
        self._drafts = {name: folder / f".{name}.draft" for name in names}
        self._files: dict[str, IO[bytes]] = {name: path.open("wb") for name, path in self._drafts.items()}
        self.count = 0
        self._unread = 0

    def take(self, done: Done) -> None:
        """Write what a part of the pages gave."""
        for what in (*done.unread, *(f"{url}: {error}" for url, error in done.failures)):
            if self._unread < _TOLD:
                log.warning("not exported: %s", what)
            self._unread += 1
        for line in done.items.splitlines():
            self._write(msgspec.json.decode(line))

    def close(self) -> None:
        """Let go of the lists."""
        for file in self._files.values():
            file.close()

    def finish(self) -> None:
        """All is there."""
        for name, draft in self._drafts.items():
            draft.replace(self._folder / name)

    def _write(self, page: dict[str, Any]) -> None:
        text = page.pop("markdown")
        if not text:
            return
        name = file_name(page["url"], at=page["fetched_at"] if self._all_visits else None)
        path = self._folder / name
        if path.parent.is_symlink():
            raise ConfigError(f"{path.parent} is a link", hint="give --out a new folder")
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{path.name}")
        draft.unlink(missing_ok=True)
        with draft.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(f"{_front_matter(page)}\n{text}\n")
        # A name that is there already, and be it a link, gives way to the file.
        draft.replace(path)
        entry = {"file": name, **page, "words": count_words(text)}
        self._files[INDEX].write(_encode(entry) + b"\n")
        if self._most_words:
            self._split(name, page, text)
        self.count += 1

    def _split(self, name: str, page: Mapping[str, Any], text: str) -> None:
        known = {key: page[key] for key in ("url", "title", "date", "language") if key in page}
        for number, chunk in enumerate(chunks(text, self._most_words)):
            line = {
                "id": f"{name.removesuffix('.md')}#{number}",
                **known,
                "headings": chunk.headings,
                "words": count_words(chunk.text),
                "text": chunk.text,
            }
            self._files[CHUNKS].write(_encode(line) + b"\n")


def file_name(url: str, *, at: float | None = None) -> str:
    """HOST/WORDS-OF-THE-PATH-DIGEST.md: safe on every system, the same for the same URL, and no other's."""
    host = re.sub(r"[^a-z0-9.-]+", "_", urls.host_port(url).lower()).strip(".")[:_HOST_CHARS]
    if not host or _RESERVED.match(host):
        host = f"_{host}"
    slug = re.sub(r"[^a-z0-9]+", "-", urls.path_query(url).lower()).strip("-")[:_SLUG_CHARS].strip("-")
    digest = blake2b(url.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    stamp = time.strftime("-%Y%m%dT%H%M%S", time.gmtime(at)) if at is not None else ""
    return f"{host}/{slug or 'index'}-{digest}{stamp}.md"


def _front_matter(page: Mapping[str, Any]) -> str:
    fetched = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(page["fetched_at"]))
    lines = [f"url: {_quoted(page['url'])}", f"fetched_at: {fetched}"]
    lines += [f"{name}: {_quoted(page[name])}" for name in _FRONT if page.get(name)]
    return "\n".join(("---", *lines, "---", ""))


def _quoted(text: str) -> str:
    """A string of JSON is one of YAML; white space in all of them is single spaces."""
    return json.dumps(text, ensure_ascii=False)
