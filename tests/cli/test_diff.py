"""The command `diff`: new, gone, and changed pages."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gossamer.cli import gossamer
from gossamer.model import PageRow, Record
from gossamer.results import diff
from gossamer.storage.jsonl import JsonlSink
from gossamer.storage.segments import SegmentSink


def row(name: str, **fields: Any) -> Record:
    given = {"status": 200, "digest": "d", **fields}
    return Record(key=hash(name) % 10**9, token=1, page=PageRow(url=f"http://a.example/{name}", **given))


BEFORE = [
    row("same"), row("body"), row("text", text="one", digest="x"), row("layout", text="same", digest="x"),
    row("gone"), row("missing"), row("failed"), row("was-bad", status=500), row("bad", status=404),
    row("status"), row("moved", status=301, location="http://a.example/1"), row("kept"),
]  # fmt: skip
AFTER = [
    row("new"), row("same"), row("body", digest="e"), row("text", text="two", digest="y"),
    row("layout", text="same", digest="y"), row("missing", status=404), row("failed", status=0, error="timeout: 10 s"),
    row("was-bad"), row("bad", status=410), row("status", status=302, location="x"), row("kept", status=304, digest=""),
    row("moved", status=301, location="http://a.example/2"), row("new-and-bad", status=404),
]  # fmt: skip
EXPECTED = """
~ body  (body)
- failed  (timeout: 10 s)
- gone  (not fetched)
~ layout  (body)
- missing  (404)
~ moved  (location)
+ new
~ status  (status 200 -> 302)
~ text  (body)
+ was-bad
"""


@pytest.fixture
def jobs(tmp_path: Path) -> list[str]:
    """One on a machine, one of a fleet."""

    async def run() -> None:
        for sink, records in ((JsonlSink(tmp_path / "a", {}), BEFORE), (SegmentSink(tmp_path / "b", "w"), AFTER)):
            await sink.write(records)
            await sink.aclose()

    asyncio.run(run())
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def run_diff(*words: str, code: int = 3) -> str:
    done = CliRunner().invoke(gossamer, ["diff", *words], standalone_mode=False)
    assert done.exception is None, done.exception
    assert done.return_value == code
    return done.stdout


def test_diff_lists_new_gone_and_changed_pages(jobs: list[str]) -> None:
    assert run_diff(*jobs).replace("http://a.example/", "") == EXPECTED.lstrip()
    said = [json.loads(line) for line in run_diff(*jobs, "--json", "--only", "gone").splitlines()]
    assert said[0] == {"kind": "gone", "url": "http://a.example/failed", "why": "timeout: 10 s"}
    assert said[-1] == {"gone": 3}
    assert run_diff(*jobs, "--count") == "2 new\n3 gone\n5 changed\n"
    assert run_diff(*jobs, "--where", "url~layout", "--by", "text", code=0) == ""
    assert run_diff(*jobs, "--where", "url~a.example/text", "--by", "text") == "~ http://a.example/text  (text)\n"
    assert run_diff(jobs[0], jobs[0], code=0) == ""


def test_diff_handles_more_pages_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    names = [f"{chance.randrange(10**6)}" for _ in range(500)]
    before, after = set(names[:400]), set(names[100:])
    expected = {("gone", name) for name in before - after} | {("new", name) for name in after - before}
    monkeypatch.setattr(diff, "_SORTED_AT_ONCE", 30)
    shuffled = [sorted(side, key=lambda _: chance.random()) for side in (before, after)]
    found = list(diff.differences(*(map(row, side) for side in shuffled)))
    assert {(one.kind, one.url.rpartition("/")[2]) for one in found} == expected
    assert [one.url for one in found] == sorted(one.url for one in found)
