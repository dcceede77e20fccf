"""The frontier of another package, `examples/frontier_lmdb`: installed with pip, tested, and used for a crawl."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import command, environment, kill_tree, rows, stored, until

from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb

PACKAGE = Path(__file__).parents[2] / "examples" / "frontier_lmdb"
SPIDER = """
import gossamer

class Shop(gossamer.Spider):
    def parse(self, page):
        for item in page.css("div.item"):
            yield {"url": page.url, "name": item.css(".name::text").get()}
        yield from page.follow_all()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python in which the package is installed, which this one is not."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"),
            *("--no-deps", "--no-build-isolation", "--target", str(site), str(PACKAGE)),
        ],
        check=True,
        timeout=100,
    )
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return environment() | {"PYTHONPATH": os.pathsep.join(paths)}


def run(words: list[str], env: dict[str, str], timeout: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def suite(path: Path, env: dict[str, str], *options: str) -> str:
    """The pytest output of a passing suite, run against the installed package and not the source tree."""
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib", "-rs"]
    done = run([*words, *options, str(path)], env, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_the_installed_package_passes_its_suite(installed: dict[str, str]) -> None:
    assert "SKIPPED" not in suite(PACKAGE, installed)


def test_the_code_of_the_how_to_page_is_that_of_the_package(installed: dict[str, str], tmp_path: Path) -> None:
    page = (PACKAGE.parents[1] / "docs" / "howto" / "write-a-frontier.md").read_text("utf-8")
    backend, tests = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    source = (PACKAGE / "gossamer_lmdb.py").read_text("utf-8")
    for name in re.findall(r"def (\w+)\(", backend):
        assert f"def {name}(self, url: str" in source
    (entry,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert entry in (PACKAGE / "pyproject.toml").read_text("utf-8")
    path = tmp_path / "test_page.py"
    path.write_text(tests)
    suite(path, installed, "-k", "test_p7")


def test_without_the_package_its_address_is_an_error(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gossamer", "crawl", "http://a.test", "--job", str(tmp_path / "job")]
    done = run([*words, "--frontier", f"lmdb:{tmp_path}"], environment())
    assert done.returncode == 2
    assert "unknown frontier" in done.stderr


def has_grown(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


@pytest.mark.parametrize("workers", ["1", "2"])
def test_kills_leave_the_files_exact(installed: dict[str, str], tmp_path: Path, workers: str) -> None:
    spider, folder, kept = tmp_path / "shop.py", tmp_path / "job", tmp_path / "kept"
    spider.write_text(SPIDER)
    pages, deaths = folder / "pages.jsonl", 3
    options = ("--spider", str(spider), "--delay", "0.01", "--workers", workers, "--frontier", f"lmdb:{kept}")
    with SimWeb(sites=8, pages_per_site=60, page_bytes=2000, latency_seconds=0.02) as web:
        words = command(folder, web.seeds, *options)
        for death in range(deaths):
            crawling = subprocess.Popen(
                words, env=installed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            before = pages.stat().st_size if pages.exists() else 0
            until(partial(has_grown, pages, before))
            time.sleep(0.05 * death)
            assert crawling.poll() is None, "it was over before it could be killed"
            kill_tree(crawling)
        # To go on with a job takes no URL: the store has it.
        again = [*words[: words.index("--seeds")], *words[words.index("--seeds") + 2 :]]
        done = run(again, installed)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
        log, plan = web.log(), web.plan
    found = stored(folder)
    assert set(found.values()) == {1}
    assert set(found) == plan.reachable()
    assert sorted((item["url"], item["name"]) for item in rows(folder / "items.jsonl")) == sorted(
        (plan.url(site, plan.path(site, page)), item["name"])
        for site in range(8)
        for page in range(60)
        for item in plan.items(site, page)
    )
    # A kill costs what was fetched since the last commit, and not what was committed before.
    assert sum(fetched(log).values()) - len(found) <= deaths * 8 * 8
    assert not (folder / "frontier.db").exists()
    assert (kept / "job" / "data.mdb").exists()


PYTHON = """
import asyncio, sys
from pathlib import Path
import gossamer
from gossamer.clock import SystemClock
from gossamer.service.directory import LocalJobs

async def main():
    served = LocalJobs(Path("crawls"), clock=SystemClock(), most=1)
    for name in await served.names():
        counts = await (await served.open(name)).counts()
        print(name, counts.stored)
    await served.aclose()
    async with gossamer.open_job(sys.argv[1]) as job:
        print(await job.state(), (await job.counts()).stored, (await job.why(sys.argv[2]))["state"])

asyncio.run(main())
"""


def test_a_stopped_job_can_be_inspected_continued_and_deleted(installed: dict[str, str], tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "crawls" / "shop"
    away = ("--frontier", f"lmdb:{kept}")

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gossamer", *words],
            env=installed, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def read(*words: str) -> Any:
        done = ask(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with SimWeb(sites=2, pages_per_site=20, page_bytes=1000) as web:
        crawl = ["crawl", *web.seeds, "--job", "shop", "--delay", "0", "--allow-private", *away, "--sink", "jsonl"]
        done = ask(*crawl, "--max-pages", "10")
        assert done.returncode == 0, done.stderr
        seed = web.seeds[0]
        before = read("status", "shop")
        assert before["counts"]["stored"] >= 10
        assert before["counts"]["queued"] > 0
        assert {site["site"] for site in before["sites"]}
        # The store's address finds jobs whose folder does not name it.
        (folder / "frontier.url").unlink()
        assert ask("status", "shop").returncode == 2
        assert read("status", "shop", *away)["counts"] == before["counts"]
        assert [job["job"] for job in read("status", *away)] == ["shop"]
        nobody = ask("status", "other", *away)
        assert nobody.returncode == 2
        assert "there is no job 'other'" in nobody.stderr
        # The next run writes it down again, and needs no address from then on.
        done = ask("crawl", "--job", "shop", *away, "--max-pages", "20")
        assert done.returncode == 0, done.stderr
        assert (folder / "frontier.url").read_text() == f"lmdb:{kept}\n"
        done = ask("crawl", "--job", "shop", "--max-pages", "1000")
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
    found = read("status", "shop")
    assert (found["state"], found["counts"]["stored"]) == ("finished", 40)
    assert [(job["job"], job["state"]) for job in read("status")] == [("shop", "finished")]
    assert read("why", seed)["seen"]
    assert read("audit", seed.split("/")[2])["requests"]
    script = [sys.executable, "-c", PYTHON, "shop", seed]
    opened = subprocess.run(script, env=installed, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert opened.stdout.split() == ["shop", "40", "finished", "40", "done"], opened.stderr
    assert set(stored(folder).values()) == {1}
    done = ask("delete", "shop", "--yes")
    assert done.returncode == 0, done.stderr
    assert not (kept / "shop" / "data.mdb").exists()
    assert (folder / "pages.jsonl").exists()
    assert ask("status", "shop").returncode == 2
    assert read("status") == []
