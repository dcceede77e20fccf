"""Shell completion in real shells, installed as documented: bash, zsh, and fish."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import environment
from commands import gossamer as run

pytestmark = pytest.mark.timeout(300)
LINES = ("gossamer re", "gossamer status --frontier redis://x sh", "gossamer diff --by ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three jobs, and the command on PATH."""
    for name in ("shop", "shoes", "news"):
        (tmp_path / "crawls" / name).mkdir(parents=True)
    command = tmp_path / "bin" / "gossamer"
    command.parent.mkdir()
    start = "import sys; sys.argv[0] = 'gossamer'; from gossamer.cli import main; main()"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    command.chmod(0o755)
    return tmp_path


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: completion in it is not checked (scripts/services installs it)")


def at_home(folder: Path) -> dict[str, str]:
    """The environment of a user whose home is this folder."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return environment(PATH=path, HOME=str(folder), ZDOTDIR=str(folder), XDG_CONFIG_HOME=str(folder / ".config"))


def test_bash_completes_commands_options_values_and_jobs(folder: Path) -> None:
    needs("bash")
    script = """
        eval "$(gossamer completion bash)"
        while IFS= read -r line; do
            read -ra COMP_WORDS <<<"$line"
            case $line in *" ") COMP_WORDS+=("") ;; esac
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
            _gossamer_completion gossamer
            echo "${COMPREPLY[@]}"
        done
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], input="\n".join((*LINES, "")),
        cwd=folder, env=at_home(folder), capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["resume report replay repair", "shoes shop", "body text"], done.stderr


def test_fish_completes_commands_values_and_jobs(folder: Path) -> None:
    needs("fish")
    completions = folder / ".config" / "fish" / "completions"
    completions.mkdir(parents=True)
    (completions / "gossamer.fish").write_bytes(run("completion", "fish", cwd=folder).stdout)
    script = "".join(f"complete -C '{line}'; echo ====;" for line in LINES)
    done = subprocess.run(
        ["fish", "-c", script],
        cwd=folder, env=at_home(folder), capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    commands, jobs, values, _ = done.stdout.split("====\n") if done.stdout.count("====\n") == 3 else [done.stderr] * 4
    assert [line.partition("\t")[0] for line in commands.splitlines()] == ["repair", "replay", "report", "resume"]
    assert "stored pages" in commands
    assert (jobs.split(), values.split()) == (["shoes", "shop"], ["body", "text"])


ZSHRC = """
fpath=(~/.zsh $fpath)
autoload -Uz compinit
compinit -u -D
ready() { print -n READY }
zle -N zle-line-init ready
"""


def test_zsh_completes_what_is_typed(folder: Path) -> None:
    """In a terminal, with TAB after part of a word. zsh completes nothing while input is pending, so wait each time."""
    needs("zsh")
    (folder / ".zsh").mkdir()
    (folder / ".zsh" / "_gossamer").write_bytes(run("completion", "zsh", cwd=folder).stdout)
    (folder / ".zshrc").write_text(ZSHRC)
    keyboard, terminal = pty.openpty()
    shell = subprocess.Popen(
        # Who opens a terminal as the first of its session is governed by it, as shells are.
        ["sh", "-c", 'exec zsh -d -i <>"$0" >&0 2>&0', os.ttyname(terminal)],
        cwd=folder, env=at_home(folder) | {"TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    try:
        for typed, rest in (
            ("gossamer resu", "me"),
            ("gossamer status --frontier redis://x ne", "ws"),
            ("gossamer diff --by te", "xt"),
        ):
            read_until(keyboard, "READY")
            os.write(keyboard, typed.encode())
            read_until(keyboard, typed)
            os.write(keyboard, b"\t")
            read_until(keyboard, rest)
            os.write(keyboard, b"\x15\n")
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
        os.close(keyboard)


def read_until(terminal: int, wanted: str) -> None:
    """Read until this text appears; fails after the timeout."""
    shown, end = "", time.monotonic() + 100
    while wanted not in shown:
        assert select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0], shown
        shown += os.read(terminal, 1).decode()


def test_other_shells_are_refused_with_a_hint(folder: Path) -> None:
    assert b"complete --no-files --command gossamer" in run("completion", cwd=folder, SHELL="/usr/bin/fish").stdout
    refused = run("completion", cwd=folder, SHELL="/bin/dash")
    assert refused.returncode == 2
    assert b"hint: supported: bash, zsh, fish" in refused.stderr
