from __future__ import annotations

import asyncio
import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import ArchiveError, ConfigError
from gossamer.model import Exchange, PageRow, Record
from gossamer.results.export import Export, write
from gossamer.results.markdown import chunks, count_words, file_name
from gossamer.storage.query import Where
from gossamer.storage.warc.sink import WarcSink

HOSTILE = (
    "http://x.example/../../etc/passwd", "http://x.example/%2e%2e/%2e%2e/x", "http://con/", "http://nul.example/CON",
    "http://x.example/" + "a" * 3000, "http://x.example/C:\\x", "http://x.example/\x00\n", "http://[::1]:8080/",
    "http://x.example/A", "http://x.example/a", "http://x.example/a?", "http://x.example/a?b=1", "http://../",
)  # fmt: skip


def visit(number: int, url: str, html: str, *, kind: str = "text/html", **more: Any) -> Record:
    exchange = Exchange(version="HTTP/1.1", headers=(("content-type", kind),), wire_bytes=len(html.encode()))
    row = PageRow(url=url, status=200, fetched_at=1_700_000_000 + number, **more)
    return Record(key=number, token=1, page=row, body=html.encode(), exchange=exchange, label="any")


def store(job: Path, *records: Record) -> None:
    async def run() -> None:
        sink = WarcSink(job / "archive", None, prefix="job", max_bytes=10**9, home=job)
        await sink.write(records)
        await sink.aclose()

    asyncio.run(run())


def article(title: str) -> str:
    words = " ".join(random.Random(title).choices(["stone", "river", "bridge", "winter", "paper", "lamp"], k=60))
    return (
        f'<html lang="en"><title>{title}</title><nav>menu</nav><article><h1>Head</h1><p>{words}.</p>'
        f"<h2>Second</h2><p>{words} again.</p></article>"
    )


def test_markdown_folder_has_front_matter_and_parts(tmp_path: Path) -> None:
    title = 'A "title": yes\\no # \U0001f600'
    store(
        tmp_path / "job",
        visit(1, "http://x.example/a/b?c=1", article(title)),
        visit(2, "http://x.example/deep", article("deep"), depth=5),
        visit(3, "http://x.example/pic.png", "PNG", kind="image/png"),
    )
    out = tmp_path / "out"
    export = Export(folder=tmp_path / "job", out=out, options={"chunks": 40}, where=Where(["depth<5"]))
    assert write("markdown", export) == 1
    (entry,) = [json.loads(line) for line in (out / "index.jsonl").open()]
    assert entry["file"].startswith("x.example/a-b-c-1-")
    text = (out / entry["file"]).read_text()
    front = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert front is not None
    # Strings of this kind are the same in YAML and in TOML.
    fields = tomllib.loads(re.sub(r"^(\w+): ", r"\1 = ", front[1], flags=re.M))
    assert (fields["url"], fields["title"], fields["language"]) == ("http://x.example/a/b?c=1", title, "en")
    assert fields["fetched_at"].isoformat() == "2023-11-14T22:13:21+00:00"
    assert "## Second" in text
    assert "menu" not in text
    parts = [json.loads(line) for line in (out / "chunks.jsonl").open()]
    assert {tuple(part["headings"]) for part in parts} == {("Head",), ("Head", "Second")}
    assert max(part["words"] for part in parts) <= 40
    assert len({part["id"] for part in parts}) == len(parts)
    assert write("markdown", Export(folder=tmp_path / "job", out=out)) == 2


def test_nothing_is_overwritten_and_missing_bodies_are_reported(tmp_path: Path) -> None:
    store(tmp_path / "job", visit(1, "http://x.example/", article("t")))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ConfigError, match="not empty"):
        write("markdown", Export(folder=tmp_path / "job", out=tmp_path / "full"))
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "job.toml").write_text("")
    with pytest.raises(ArchiveError) as caught:
        write("markdown", Export(folder=tmp_path / "bare", out=tmp_path / "out"))
    assert "--sink warc" in caught.value.hint


def test_file_names_are_unique_and_stay_in_the_folder() -> None:
    """H48."""
    names = [file_name(url) for url in HOSTILE]
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        assert re.fullmatch(r"[a-z0-9._-]+/[a-z0-9-]+\.md", name), name
        host = name.partition("/")[0]
        assert host.strip(".") == host
        assert host.partition(".")[0] not in ("con", "nul")
        assert len(name.encode()) < 220


def test_parts_cover_the_text_and_end_at_headings() -> None:
    code = "```python\n# no heading\nx = 1\n\ny = 2\n```"
    sentences = " ".join(f"Sentence {n} is here." for n in range(30))
    text = f"intro\n\n# One\n\nshort\n\n{code}\n\n## Two\n\n{sentences}\n\n- a\n- b\n\n# Three #\n\n{'word ' * 95}"
    found = list(chunks(text, 40))
    assert {part.headings for part in found} == {(), ("One",), ("One", "Two"), ("Three",)}
    assert all(count_words(part.text) <= 40 for part in found)
    kept = " ".join(part.text for part in found).split()
    assert kept == [
        word for line in text.splitlines() if not re.match(r"#+ (One|Two|Three)", line) for word in line.split()
    ]
    assert code in found[1].text
    assert all(part.text.endswith(".") for part in found if part.text.startswith("Sentence"))
    assert list(chunks("", 40)) == []


def test_letters_are_counted_in_scripts_without_spaces() -> None:
    """Parts end behind sentences, or anywhere in a long one; nothing is added between letters."""
    sentence = "我们每天都在这里写一些文字。"
    text = f"# 一\n\n{sentence * 20}\n\n# 二\n\n{'字' * 100} Python 3.11 {'かな' * 30}"
    assert count_words(sentence) == 7 + 1
    assert count_words("plain words, naïve ones") == 4
    found = list(chunks(text, 20))
    assert all(0 < count_words(part.text) <= 20 for part in found)
    first = [part.text for part in found if part.headings == ("一",)]
    assert "".join(first) == sentence * 20
    assert all(part.endswith("。") for part in first)
    second = "".join(part.text for part in found if part.headings == ("二",))
    assert second.replace(" ", "") == f"{'字' * 100}Python3.11{'かな' * 30}"
