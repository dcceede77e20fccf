"""Splits Markdown at its headings, and where a part is still long, between its paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

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
"""Letters of such a script that count as one word; in Chinese and Japanese words have two of them on average."""


class Chunk(NamedTuple):
    """A part of a text, and the headings that it stands under, from the outermost."""

    headings: tuple[str, ...]
    text: str


def chunks(markdown: str, most_words: int) -> Iterator[Chunk]:
    """Parts of at most `most_words` words, none of which goes beyond a heading. Together they are the whole text.

    Paragraphs stay whole if they can; a longer one is cut between sentences, then between lines and words."""
    path: list[tuple[int, str]] = []
    held: list[str] = []
    for block in _blocks(markdown):
        heading = _HEADING.fullmatch(block)
        if heading is not None:
            yield from _joined(path, held, most_words)
            held = []
            level = len(heading[1])
            path = [*(one for one in path if one[0] < level), (level, _without_signs(heading[2]))]
        else:
            held.append(block)
    yield from _joined(path, held, most_words)


def _without_signs(heading: str) -> str:
    """The text of a heading without the signs that may close it."""
    text = heading.strip()
    bare = text.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else text


def count_words(text: str) -> int:
    """Words as they are counted here: what stands between white space; where a script has none, every two letters."""
    if text.isascii() or _HAS_SPACELESS.search(text) is None:
        return len(text.split())
    letters = len(_HAS_SPACELESS.findall(text))
    return len(_HAS_SPACELESS.sub(" ", text).split()) + (letters + _LETTERS_A_WORD - 1) // _LETTERS_A_WORD


def _blocks(markdown: str) -> Iterator[str]:
    """Headings, paragraphs, lists, tables and fenced code, each as it stands."""
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
    for piece, glue in _pieces(blocks, most_words):
        more = count_words(piece)
        if words and words + more > most_words:
            yield Chunk(headings, text)
            text, words = "", 0
        text, words = (f"{text}{glue}{piece}" if text else piece), words + more
    if text:
        yield Chunk(headings, text)


def _pieces(blocks: list[str], most_words: int) -> Iterator[tuple[str, str]]:
    """Pieces that are short enough, each with what stands before it."""
    for block in blocks:
        if count_words(block) <= most_words:
            yield block, "\n\n"
            continue
        is_code = _FENCE.match(block) is not None
        glue = "\n\n"
        for sentence in block.split("\n") if is_code or "\n" in block else _SENTENCE.split(block):
            if not sentence and not is_code:
                continue
            for part, is_apart in _cut(sentence, most_words):
                yield part, glue if is_apart else ""
                glue = "\n" if is_code or "\n" in block else "" if sentence.endswith(_FULL_STOPS) else " "


def _cut(sentence: str, most_words: int) -> Iterator[tuple[str, bool]]:
    """A sentence in parts that are short enough, and whether a space stood before each."""
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
