"""The wheel and the sdist: complete, minimal, and working without the sources."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.cli.runner import refuse_windows
from gossamer.errors import ConfigError
from gossamer.lab.simweb.process import SimWeb

ROOT = Path(__file__).parents[2]
POSIX_ONLY = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "uvloop")


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist into a folder."""
    subprocess.run(
        [ROOT / "scripts" / "package", folder],
        env={**os.environ, "PYTHON": sys.executable}, check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


def sources(*folders: str, kind: str = "*") -> Iterator[str]:
    for folder in folders:
        for path in (ROOT / folder).rglob(kind):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT))


def test_wheel_contains_only_the_package_and_man_pages(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        about = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(wheel.read(about))
        points = wheel.read(about.replace("METADATA", "entry_points.txt")).decode()
        assert wheel.read(about.replace("METADATA", "licenses/LICENSE"))
    package = {name.removeprefix("src/") for name in sources("src/gossamer")}
    manual = f"gossamer-{metadata['Version']}.data/data/share/man/man1/gossamer.1"
    assert names == package | {manual}
    assert {Path(name).suffix for name in package} >= {".py", ".lua", ".sql", ".js", ".css", ".html", ".svg", ".typed"}
    assert re.search(r"^gossamer = gossamer\.__main__:main$", points, re.MULTILINE)
    assert metadata["Requires-Python"] == ">=3.11"
    extras = set(metadata.get_all("Provides-Extra") or ())
    assert {"redis", "service", "scrapy"} <= extras
    wanted = [re.match(r"([\w-]+).*extra == '(\w+)'", line) for line in metadata.get_all("Requires-Dist") or ()]
    parts = {(each[1], each[2] == "all") for each in wanted if each}
    assert {name for name, of_all in parts if of_all} == {name for name, of_all in parts if not of_all}
    assert str(metadata.get_payload()).startswith("# Gossamer")


def test_sdist_contains_only_what_build_and_tests_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {member.name.partition("/")[2] for member in sdist if member.isfile()}
    assert names >= {*sources("src"), *sources("tests", "examples", "benchmarks", kind="*.py")}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements-dev.lock", "scripts/setup"}
    litter = [name for name in names if re.search(r"\.(pyc|db|log|env)$|^(crawls|dist|build|\.venv)/|/\.env$", name)]
    assert litter == []


def test_builds_are_reproducible(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, _ = build(tmp_path)
    assert wheel.read_bytes() == built[0].read_bytes()


def test_every_module_loads_where_only_windows_modules_are() -> None:
    """Windows is not supported, but modules must not fail there because of unused imports."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({POSIX_ONLY!r}))
import importlib, pathlib, gossamer
root = pathlib.Path(gossamer.__file__).parent
for path in sorted(root.rglob("*.py")):
    name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
    if not name.startswith(("gossamer.testing", "gossamer.__main__", "gossamer.scrapy")):
        importlib.import_module(name)
        print(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 200


def test_crawl_on_windows_is_rejected_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError) as refused:
        refuse_windows()
    assert "WSL" in refused.value.hint


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pipx_runs_the_wheel_without_installing_it(built: tuple[Path, Path], tmp_path: Path) -> None:
    if shutil.which("pipx") is None:
        pytest.skip("pipx is not installed: `pipx run gossamer` is not checked (scripts/services installs it)")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    own |= {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_DEFAULT_PYTHON": sys.executable}
    with SimWeb(sites=2, pages_per_site=8) as web:
        options = ["--job", "first", "--delay", "0", "--allow-private", "--quiet"]
        words = ["pipx", "run", "--spec", str(built[0]), "gossamer", "crawl", *web.seeds, *options]
        done = subprocess.run(words, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
    assert len((tmp_path / "crawls" / "first" / "pages.jsonl").read_text().splitlines()) >= 16


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_an_installed_wheel_crawls_and_passes_the_tests_without_the_sources(tmp_path: Path) -> None:
    """In a fresh environment, from the lock file; `make test-wheel` runs all tests like that."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHON": sys.executable, "KEEP": str(tmp_path / "env")}
    some = ("tests/test_urls.py", "tests/test_settings.py", "tests/test_public_api.py", "tests/extract")
    more = (
        "tests/lab/test_sim_web.py", "tests/crawl/test_whole_crawls.py", "tests/service/test_dashboard.py",
        "tests/frontier/test_redis.py",
    )  # fmt: skip
    done = subprocess.run(
        [ROOT / "scripts" / "test-installed", "locked", *some, *more],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    programs = tmp_path / "env" / "bin"
    crawl = f"""
import subprocess
from gossamer.lab.simweb.process import SimWeb

with SimWeb(sites=2, pages_per_site=8) as web:
    options = ["--job", "first", "--delay", "0", "--allow-private", "--quiet"]
    subprocess.run([{str(programs / "gossamer")!r}, "crawl", *web.seeds, *options], check=True)
    assert not web.judge().missed
"""
    python = str(programs / "python")
    for words in ([python, "-c", crawl], [python, "-m", "gossamer", "status", "first"]):
        subprocess.run(words, cwd=tmp_path, env=environment, check=True, timeout=120, capture_output=True)
    assert len((tmp_path / "crawls" / "first" / "pages.jsonl").read_text().splitlines()) >= 16
    assert (tmp_path / "env" / "share" / "man" / "man1" / "gossamer.1").is_file()
