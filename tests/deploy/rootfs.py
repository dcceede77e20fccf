"""Executes a Dockerfile without a container engine: runs its instructions in root file systems.

What an engine would do is done by chroot; the base image is a folder that the caller brings. Networks, limits and
layers are not there, and ENTRYPOINT, HEALTHCHECK and the like are only kept for the caller to run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

_WORD = re.compile(r"\$\{?([A-Z_]+)\}?")
_KEPT = ("ENTRYPOINT", "CMD", "HEALTHCHECK", "VOLUME", "EXPOSE", "STOPSIGNAL")


@dataclass
class Stage:
    """A root file system during the build."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    kept: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, seconds: float = 900.0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as its user, and wait."""
        return subprocess.run(self.words(*words), env=self.variables(**more), timeout=seconds, check=False,
                              capture_output=True, text=True)  # fmt: skip

    def start(self, *words: str, **more: str) -> subprocess.Popen[bytes]:
        """Start a command in it, as its user."""
        return subprocess.Popen(self.words(*words), env=self.variables(**more))

    def words(self, *words: str) -> list[str]:
        shell = ["sh", "-c", f'cd {shlex.quote(self.folder)} && exec "$@"', "sh", *words]
        return ["chroot", f"--userspec={self.user}", "--groups=", str(self.root), *shell]

    def variables(self, **more: str) -> dict[str, str]:
        """Its own environment, plus our package index variables."""
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        ours = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_CERT"))}
        return {**path, **ours, **self.environment, **more}


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile as (name, arguments), without comments."""
    lines = [line for line in dockerfile.read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def build(dockerfile: Path, context: Path, base: Path, folder: Path) -> Stage:
    """Build every stage of a Dockerfile on a copy of the base; returns the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Stage] = {}
    stage = Stage(folder)
    for name, rest in instructions(dockerfile):
        if name == "FROM":
            label = rest.split()[-1] if " AS " in rest else f"stage-{len(stages)}"
            stage = stages[label] = Stage(folder / label)
            subprocess.run(["cp", "-a", "--reflink=auto", base, stage.root], check=True)
        elif name == "ENV":
            for pair in shlex.split(rest):
                key, _, value = pair.partition("=")
                stage.environment[key] = _filled(value, stage.variables())
        elif name == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            stage.user = rest
        elif name == "COPY":
            _copy(stage, rest, stages, context)
        elif name == "RUN":
            done = stage.run("sh", "-ec", rest)
            assert done.returncode == 0, f"{rest}\n{done.stdout}{done.stderr}"
        elif name in _KEPT:
            stage.kept[name] = rest
        else:
            assert name == "ARG", f"{name}: not an instruction that is known here"
    return stage


def listed(text: str) -> list[str]:
    """Parse an instruction in exec form."""
    found: list[str] = json.loads(text[text.index("[") :])
    return found


def _filled(text: str, variables: dict[str, str]) -> str:
    return _WORD.sub(lambda hit: variables.get(hit[1], ""), text)


def _copy(stage: Stage, rest: str, stages: dict[str, Stage], context: Path) -> None:
    words = rest.split()
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, aim = words
    target = stage.root / os.path.join(stage.folder, aim).lstrip("/")
    for name in names:
        found = source / name.lstrip("/")
        if found.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc") if source is context else None
            shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, target)
