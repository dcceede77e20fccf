"""Workers that leave a slow shared folder give up every shard."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import Settings
from gossamer.storage.segments import current_records
from gossamer.testing.folder_worker import submit

JOB = "job"
SLOW_WORKER = """
import runpy, time
from gossamer.frontier.folder.files import SharedFolder

claim = SharedFolder.claim
def slow(self, name, data, **options):
    made = claim(self, name, data, **options)
    if name.startswith("claims/"):
        time.sleep({seconds})
    return made
SharedFolder.claim = slow
runpy.run_module("gossamer.testing.folder_worker", run_name="__main__")
"""


@pytest.mark.parametrize(
    "seconds",
    [0.02, 0.1, 0.3, *(pytest.param(one, marks=pytest.mark.long) for one in (0.0, 0.01, 0.04, 0.06, 0.15, 0.2, 0.4))],
)
def test_workers_that_leave_release_every_shard(tmp_path: Path, seconds: float) -> None:
    url, output = f"folder:{tmp_path / 'share'}?shards=12", tmp_path / "out"
    with SimWeb(sites=4, pages_per_site=8, page_bytes=1000) as web:
        settings = Settings(delay=0.02, allow_private=True, lease_seconds=8.0, commit_seconds=0.05)
        asyncio.run(submit(url, JOB, settings, web.seeds))
        script = SLOW_WORKER.format(seconds=seconds)
        command = [sys.executable, "-c", script, url, JOB]
        running = [subprocess.Popen([*command, name, str(output)]) for name in ("one", "two", "three")]
        try:
            assert [process.wait(110) for process in running] == [0, 0, 0]
        finally:
            for process in running:
                process.kill()
                process.wait()
        stored = [record.page.url for record in current_records(output)]
        assert sorted(stored) == sorted(web.reachable())
    asked = [sys.executable, "-m", "gossamer", "status", JOB, "--frontier", url.partition("?")[0], "--json"]
    said = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert (said["state"], said["counts"]["finished"], said["counts"]["stored"]) == ("finished", True, len(stored))
    assert said["warnings"] == []
    assert list((tmp_path / "share" / "frontier" / JOB / "workers").iterdir()) == []
    assert {shard["server"] for shard in said["shards"]} == {""}
