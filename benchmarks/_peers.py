"""Environments of the other crawlers in `.bench/`, created on first use with the then current versions."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import NamedTuple

from _tally import environment as own_environment

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "peers"
ENVIRONMENTS = HERE.parent / ".bench"
PYTHON_PACKAGES = {
    "scrapy": "scrapy",
    "scrapy-redis": "scrapy-redis==0.9.1",
    "crawlee": "crawlee[parsel]",
    "requests": "requests beautifulsoup4 lxml html5lib",
    "script": "aiohttp selectolax uvloop",
}
NODE_PACKAGES = {"spider": "@spider-rs/spider-rs@0.0.157"}
"""The newest version, 0.0.163, lacks its program; this one contains it for Linux."""
NATIVE = {
    "spider-native": (
        "spider",
        "cargo build --release",
        "target/release/spider-crawl",
        "cargo tree --depth 1",
        "spider v",
    ),
    "floor": ("floor", "cargo build --release", "target/release/floor", "cargo tree --depth 1", "reqwest v"),
    "colly": ("colly", "go build -mod=mod -o crawl .", "crawl", "go list -m all", "colly/v2 v"),
}
"""Programs in native/: folder, build command, program, and the command and prefix that show its version."""
SYSTEM_PACKAGES = {"wget2": "wget2"}


class NotInstalled(Exception):
    """A crawler that cannot be installed on this machine, with the reason."""


def environment(name: str) -> Path:
    """The path that runs a crawler: its environment's Python, its folder of Node modules, or its program."""
    if name in SYSTEM_PACKAGES:
        return _program(name)
    if name in NATIVE:
        return _built(name)
    folder = ENVIRONMENTS / name
    program = folder / "bin" / "python" if name in PYTHON_PACKAGES else folder
    if not (folder / "ready").exists():
        print(f"installing {name} ...", file=sys.stderr, flush=True)
        if name in PYTHON_PACKAGES:
            venv.create(folder, with_pip=True, clear=True)
            _run(str(program), "-m", "pip", "install", "-q", *PYTHON_PACKAGES[name].split())
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text("{}")
            _run("npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", NODE_PACKAGES[name])
        (folder / "ready").touch()
    return program


def version(name: str) -> str:
    """The installed version."""
    if name in SYSTEM_PACKAGES:
        return _run(name, "--version").splitlines()[0].split()[2]
    if name in NATIVE:
        folder, _, _, lister, mark = NATIVE[name]
        return _run(*lister.split(), folder=ENVIRONMENTS / "native" / folder).partition(mark)[2].split()[0]
    place = environment(name)
    if name in NODE_PACKAGES:
        found = place / "node_modules" / NODE_PACKAGES[name].rpartition("@")[0]
        return str(json.loads((found / "package.json").read_text())["version"])
    package = PYTHON_PACKAGES[name].split()[0].partition("[")[0].partition("==")[0]
    return _run(str(place), "-c", f"import importlib.metadata as m; print(m.version('{package}'))").strip()


class Run(NamedTuple):
    """Cost of one crawl."""

    cpu_seconds: float
    wall_seconds: float
    pages: int


def measure(command: list[str], output: Path) -> Run:
    """Run a command; returns the CPU of its process tree and the pages in its output."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, env=own_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if not output.exists():
        sys.exit(f"{command[0]} failed:\n{done.stderr.decode()[-2000:]}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Run(cpu, wall, len({json.loads(line)["url"] for line in output.open("rb")}))


def _built(name: str) -> Path:
    """Build a program from native/, in a copy of the folder, so that no lock file stays there."""
    source, build, program, _, _ = NATIVE[name]
    folder, source_folder = ENVIRONMENTS / "native" / source, SCRIPTS.parent / "native" / source
    built = folder / program
    changed = max(path.stat().st_mtime for path in source_folder.rglob("*"))
    if not built.exists() or built.stat().st_mtime < changed:
        print(f"building {name} ...", file=sys.stderr, flush=True)
        shutil.copytree(source_folder, folder, dirs_exist_ok=True)
        _run(*build.split(), folder=folder)
        built.touch()
    return built


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        try:
            _run("apt-get", "install", "-y", "--no-install-recommends", SYSTEM_PACKAGES[name])
        except NotInstalled as error:
            raise NotInstalled(f"it is a system package, and {error}") from None
        found = shutil.which(name)
    if found is None:
        raise NotInstalled(f"the system package {SYSTEM_PACKAGES[name]} has no program of that name")
    return Path(found)


def _run(*words: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
    except OSError as error:
        raise NotInstalled(f"{words[0]}: {error.strerror}") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason given"]
        raise NotInstalled(f"{Path(words[0]).name} failed: {last[0]}")
    return done.stdout
