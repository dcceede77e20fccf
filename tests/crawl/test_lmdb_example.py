"""The frontier of another package, `examples/frontier_lmdb`: installed with pip, tested, and crawled with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

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
    """What pytest says of a suite that passes, run over the installed package and not over the source beside it."""
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


def test_without_the_package_its_address_is_a_mistake(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gossamer", "crawl", "http://a.test", "--job", str(tmp_path / "job")]
    done = run([*words, "--frontier", f"lmdb:{tmp_path}"], environment())
    assert done.returncode == 2
    assert "there is no such frontier" in done.stderr


def has_grown(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


@pytest.mark.parametrize("workers", ["1", "2"])
def test_kills_leave_no_trace_in_the_files(installed: dict[str, str], tmp_path: Path, workers: str) -> None:
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
