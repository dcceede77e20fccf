from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_sinks import captures, tools_find_no_fault

from gossamer.testing.servers import BucketServer
from gossamer.testing.sinks import Kept, SinkSuite

STRINGS = Path(__file__).parents[2] / "../shared/suites/hostile-strings/blns.json"


class _Objects(SinkSuite):
    opens = "gossamer.storage.objects:open_objects"
    kind = "s3"

    @pytest.fixture(autouse=True)
    def _server(self, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in bucket_server.environment().items():
            monkeypatch.setenv(name, value)
        self.server, self.bucket = bucket_server, f"b{secrets.token_hex(6)}"
        bucket_server.make(self.bucket)
        self.target = f"//{self.bucket}/some/where"

    def strings(self) -> Sequence[str]:
        if not STRINGS.exists():
            pytest.skip(f"{STRINGS} is not there: its strings are not checked")
        return [*super().strings(), *json.loads(STRINGS.read_text("utf-8"))]

    def all_files(self, folder: Path) -> Mapping[str, bytes]:
        """What is in the bucket, and what a killed writer of an embedded job has in its spool."""
        stored = {name.removeprefix("some/where/"): data for name, data in self.server.objects(self.bucket).items()}
        if not self.fleet:
            for path in sorted((folder / "spool").rglob("*")):
                if path.is_file() and path.suffix and path.name not in stored and path.name[0] != ".":
                    stored[path.name.removesuffix(".open")] = path.read_bytes()
        return {name: data for name, data in stored.items() if data}

    def check(self, folder: Path) -> None:
        """A run that has come to its end leaves nothing in the spool."""
        assert not [path for path in (folder / "spool").rglob("*") if path.is_file() and path.suffix]


class TestLines(_Objects):
    """JSON lines in S3, of a job on one machine, read with the program that people have."""

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        if shutil.which("zstd") is None:
            pytest.skip("zstd is not installed (scripts/services installs it)")
        pages: dict[tuple[int, int], Any] = {}
        items: dict[tuple[int, int], list[Any]] = {}
        count = 0
        for name, data in self.all_files(folder).items():
            # A writer that was killed may have left half a frame, which is no line.
            done = subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=False)
            for text in done.stdout.split(b"\n"):
                if not text.endswith(b"}"):
                    continue
                line = json.loads(text)
                visit = line["key"], line["token"]
                if name.startswith("items-"):
                    items.setdefault(visit, []).append(line["item"])
                else:
                    count += 1
                    pages[visit] = line
        assert self.fleet or count == len(pages)
        for visit, page in pages.items():
            if visit in items:
                yield Kept(page["url"], page["title"], None, tuple(items[visit][:1]))


class TestLinesOfFleet(TestLines):
    """What `write` has returned for is in the bucket."""

    fleet, exact = True, False
    test_every_hostile_string_comes_back = None  # type: ignore[assignment]
    test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room = None  # type: ignore[assignment]
    test_a_later_visit_is_kept_too_or_takes_the_place = None  # type: ignore[assignment]

    @pytest.mark.long
    def test_kills_at_any_moment_leave_each_record_once(self, tmp_path: Path) -> None:
        super().test_kills_at_any_moment_leave_each_record_once(tmp_path)


class TestWarc(_Objects):
    kind = "warc+s3"

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        place = folder / f"read-{secrets.token_hex(4)}"
        place.mkdir()
        for name, data in self.all_files(folder).items():
            if ".warc.gz" in name:
                (place / name).write_bytes(data)
        seen = set()
        for said, body in captures(place):
            if not self.fleet or (said["key"], said["token"]) not in seen:
                seen.add((said["key"], said["token"]))
                yield Kept(said["page"]["url"], said["page"]["title"], body, tuple(said["items"]))
        shutil.rmtree(place)

    def check(self, folder: Path) -> None:
        super().check(folder)
        place = folder / "fetched"
        place.mkdir()
        for name, data in self.server.objects(self.bucket).items():
            if "-piece-" not in name:
                (place / Path(name).name).write_bytes(data)
        tools_find_no_fault(place)

    # What goes into a record does not hang on the place.
    test_every_hostile_string_comes_back = None  # type: ignore[assignment]
    test_a_later_visit_is_kept_too_or_takes_the_place = None  # type: ignore[assignment]
    test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room = None  # type: ignore[assignment]
    test_kills_at_any_moment_leave_each_record_once = None  # type: ignore[assignment]


class TestWarcOfFleet(TestWarc):
    fleet, exact = True, False
    test_what_write_returned_for_survives_a_kill = None  # type: ignore[assignment]
