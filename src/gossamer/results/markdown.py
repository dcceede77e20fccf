"""Exports pages as a folder of Markdown files, split at headings on request.

The front matter is written without PyYAML, which takes 28 us for a page instead of 5 us."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from gossamer import urls
from gossamer.cut import format_cut
from gossamer.errors import ConfigError
from gossamer.extract.page import Page
from gossamer.extract.spider import Handler, Spider
from gossamer.results.export import Export
from gossamer.results.process import Done
from gossamer.results.process_pool import ReplayPool
from gossamer.settings import Settings
from gossamer.storage.reader import open_stored

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]++(.*)")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？｡])\s*")
# Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana, Bopomofo, Han.
_SPACELESS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3100-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")
_HAS_SPACELESS = re.compile(rf"[{_SPACELESS}]")
_FULL_STOPS = ("。", "！", "？", "｡")
_LETTERS_A_WORD = 2
"""Letters of such a script that count as one word: the average in Chinese and Japanese."""


class Chunk(NamedTuple):
    """A part of a text, with the headings above it, from the outermost."""

    headings: tuple[str, ...]
    text: str


def chunks(markdown: str, most_words: int) -> Iterator[Chunk]:
    """Split Markdown at headings into parts of at most `most_words` words. Together they are the whole text.

    Paragraphs stay whole if they fit; a longer one is split between sentences, then between lines and words."""
    path: list[tuple[int, str]] = []
    held: list[str] = []
    for block in _blocks(markdown):
        heading = _HEADING.fullmatch(block)
        if heading is not None:
            yield from _joined(path, held, most_words)
            held = []
            level = len(heading[1])
            path = [*(one for one in path if one[0] < level), (level, _without_hashes(heading[2]))]
        else:
            held.append(block)
    yield from _joined(path, held, most_words)


def _without_hashes(heading: str) -> str:
    """The text of a heading without closing hash signs."""
    text = heading.strip()
    bare = text.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else text


def count_words(text: str) -> int:
    """Count words: runs between white space; in scripts without spaces, every two letters."""
    if text.isascii() or _HAS_SPACELESS.search(text) is None:
        return len(text.split())
    letters = len(_HAS_SPACELESS.findall(text))
    return len(_HAS_SPACELESS.sub(" ", text).split()) + (letters + _LETTERS_A_WORD - 1) // _LETTERS_A_WORD


def _blocks(markdown: str) -> Iterator[str]:
    """The blocks of a text, unchanged: headings, paragraphs, lists, tables, and fenced code."""
    lines: list[str] = []
    fence = ""
    for line in markdown.splitlines():
        mark = _FENCE.match(line)
        if fence:
            lines.append(line)
            if mark is not None and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                yield "\n".join(lines)
                lines, fence = [], ""
            continue
        if mark is not None or _HEADING.fullmatch(line) or not line.strip():
            if lines:
                yield "\n".join(lines)
            lines = []
            if mark is not None:
                fence, lines = mark[1], [line]
            elif line.strip():
                yield line
        else:
            lines.append(line)
    if lines:
        yield "\n".join(lines)


def _joined(path: list[tuple[int, str]], blocks: list[str], most_words: int) -> Iterator[Chunk]:
    headings = tuple(text for _, text in path)
    text, words = "", 0
    for part, separator in _parts(blocks, most_words):
        more = count_words(part)
        if words and words + more > most_words:
            yield Chunk(headings, text)
            text, words = "", 0
        text, words = (f"{text}{separator}{part}" if text else part), words + more
    if text:
        yield Chunk(headings, text)


def _parts(blocks: list[str], most_words: int) -> Iterator[tuple[str, str]]:
    """Split blocks into parts of at most `most_words` words, each with the separator before it."""
    for block in blocks:
        if count_words(block) <= most_words:
            yield block, "\n\n"
            continue
        is_code = _FENCE.match(block) is not None
        separator = "\n\n"
        for sentence in block.split("\n") if is_code or "\n" in block else _SENTENCE.split(block):
            if not sentence and not is_code:
                continue
            for part, is_apart in _cut(sentence, most_words):
                yield part, separator if is_apart else ""
                separator = "\n" if is_code or "\n" in block else "" if sentence.endswith(_FULL_STOPS) else " "


def _cut(sentence: str, most_words: int) -> Iterator[tuple[str, bool]]:
    """Split a sentence into parts of at most `most_words` words, each with whether a space precedes it."""
    if count_words(sentence) <= most_words:
        yield sentence, True
        return
    start, end, words, is_apart = 0, 0, 0.0, True
    for word in _WORD.finditer(sentence):
        weight = 1 / _LETTERS_A_WORD if _HAS_SPACELESS.match(word[0]) else 1.0
        if end and words + weight > most_words:
            yield sentence[start:end], is_apart
            start, words, is_apart = word.start(), 0.0, word.start() > end
        elif not end:
            start = word.start()
        end, words = word.end(), words + weight
    if end:
        yield sentence[start:end], is_apart


INDEX, CHUNKS = "index.jsonl", "chunks.jsonl"
_MOST_REPORTED = 20
_SPIDER = "gossamer.results.markdown:CleanPages"
_FRONT = ("title", "author", "date", "modified", "language", "description", "site_name", "cut")
_SLUG_CHARS, _HOST_CHARS = 80, 100
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)")
log = logging.getLogger("gossamer.export")
_encode = msgspec.json.Encoder().encode


def write_markdown(export: Export) -> int:
    """Write one file per page to HOST/, with front matter, index.jsonl, and with the option `chunks` chunks.jsonl."""
    assert export.out is not None
    folder = export.out
    if folder.exists() and not (folder / INDEX).exists() and any(folder.iterdir()):
        raise ConfigError(f"--out {folder} is not empty", hint="choose a new folder, or one of an earlier export")
    folder.mkdir(parents=True, exist_ok=True)
    with open_stored(export.source) as stored:
        pool = ReplayPool(stored, Settings(spider=_SPIDER), all_visits=export.all_visits, where=export.where.conditions)
        writer = _Writer(folder, most_words=export.options.get("chunks") or 0, all_visits=export.all_visits)
        try:
            asyncio.run(pool.run(writer.take))
        finally:
            writer.close()
    writer.finish()
    return writer.count


class _Writer:
    """Writes the files of pages; index.jsonl and chunks.jsonl are renamed into place at the end."""

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
        """Write the pages of one part."""
        for what in (*done.unread, *(f"{url}: {error}" for url, error in done.failures)):
            if self._unread < _MOST_REPORTED:
                log.warning("skipped: %s", what)
            self._unread += 1
        for line in done.items.splitlines():
            self._write(msgspec.json.decode(line))

    def close(self) -> None:
        """Close index.jsonl and chunks.jsonl."""
        for file in self._files.values():
            file.close()

    def finish(self) -> None:
        """Rename index.jsonl and chunks.jsonl into place."""
        for name, draft in self._drafts.items():
            draft.replace(self._folder / name)

    def _write(self, page: dict[str, Any]) -> None:
        text = page.pop("markdown")
        if not text:
            return
        name = file_name(page["url"], at=page["fetched_at"] if self._all_visits else None)
        path = self._folder / name
        if path.parent.is_symlink():
            raise ConfigError(f"{path.parent} is a symbolic link", hint="choose a new folder with --out")
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{path.name}")
        draft.unlink(missing_ok=True)
        with draft.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(f"{_front_matter(page)}\n{text}\n")
        # Replaces an existing file or link.
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
    """HOST/WORDS-OF-THE-PATH-DIGEST.md: valid on every file system, and unique per URL."""
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
    """A YAML string: JSON strings are valid YAML."""
    return json.dumps(text, ensure_ascii=False)


class CleanPages(Spider):
    """A spider that yields one item with Markdown and metadata per HTML page."""

    def handler(self, label: str) -> Handler:
        """One handler for all labels."""
        return self.parse

    def parse(self, page: Page) -> list[dict[str, Any]]:
        """The Markdown and metadata of a page."""
        if not page.is_html:
            return []
        metadata = page.metadata
        fields = {
            "title": metadata.title,
            "author": metadata.author,
            "date": metadata.date,
            "modified": metadata.modified,
            "language": metadata.language,
            "description": metadata.description,
            "site_name": metadata.site_name,
            "cut": format_cut(page.cut),
        }
        found = {name: value for name, value in fields.items() if value}
        return [{"url": page.url, "fetched_at": page.response.fetched_at, **found, "markdown": page.markdown}]
