"""The tutorial and the cookbook: writes their files, runs their commands, and compares the output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PLACE = "127.0.0.1:8000"
"""The site in the pages; tests use another port."""
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"\n]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if re.search(r"^\$ gossamer simweb ", path.read_text("utf-8"), re.MULTILINE)
]


CELL = re.compile(r"Cell \d+")
"""The title of a block that is a notebook's cell: one process runs the cells of a page in order."""
KERNEL = """
import ast, json, sys

names = {"__name__": "__main__"}
for cell in json.load(sys.stdin):
    *body, last = ast.parse(cell).body
    shows = isinstance(last, ast.Expr)
    exec(compile(ast.Module(body if shows else [*body, last], []), "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if shows else None
    print("" if value is None else repr(value), end="\\0")
"""


class Command(NamedTuple):
    """A command of a page, with its expected output."""

    line: str
    shown: str


def commands(block: str) -> Iterator[Command]:
    """The commands of a console block; a trailing backslash continues a command."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        found = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL)
        assert found is not None
        yield Command(found[1], found[2])


def pattern_of(shown: str) -> re.Pattern[str]:
    """Convert expected output to a pattern: `...` matches any text, and any lines if alone on a line."""
    lines = []
    for line in shown.splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*")
        else:
            lines.append(".*".join(re.escape(part) for part in line.split("...")) + r"\n")
    return re.compile("".join(lines))


class Cell(NamedTuple):
    """A notebook's cell of a page, with its expected output."""

    code: str
    shown: str


def cells(text: str) -> list[Cell]:
    """The cells of a page; a block of text after a cell is its output."""
    found: list[Cell] = []
    previous = ""
    for kind, title, body in BLOCK.findall(text):
        if CELL.fullmatch(title):
            found.append(Cell(body, ""))
        elif kind == "text" and CELL.fullmatch(previous):
            found[-1] = found[-1]._replace(shown=body)
        previous = title
    return found


class Reader:
    """A reader with a page, a folder, and a terminal for the simulated web."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.webs: list[subprocess.Popen[str]] = []
        self.place = PLACE
        tools = folder / "bin"
        tools.mkdir()
        for name, module in (("gossamer", "gossamer"), ("warcio", "warcio.cli")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', "utf-8")
            tool.chmod(0o755)
        self.work = folder / "work"
        self.work.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
        self.environment |= {"PATH": f"{tools}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "COLUMNS": "120"}

    def read(self, page: Path) -> int:
        """Follow a page in order; returns the number of compared outputs."""
        compared = 0
        for kind, title, body in BLOCK.findall(page.read_text("utf-8")):
            if title and not CELL.fullmatch(title):
                file = self.work / title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self.here(body), "utf-8")
            elif kind == "console":
                for command in commands(body):
                    compared += self.type(command)
        return compared

    def run_cells(self, found: list[Cell]) -> int:
        """Run the cells of a notebook in one process; returns the number of compared outputs."""
        done = subprocess.run(
            [sys.executable, "-c", KERNEL],
            cwd=self.work,
            env={**self.environment, "MPLBACKEND": "Agg"},
            input=json.dumps([self.here(cell.code) for cell in found]),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"a cell failed:\n{done.stderr[-3000:]}", pytrace=False)
        for cell, printed in zip(found, done.stdout.split("\0"), strict=False):
            # pandas pads its header lines.
            trimmed = re.sub(r" +$", "", f"{printed}\n", flags=re.MULTILINE)
            if cell.shown and pattern_of(self.here(cell.shown)).fullmatch(trimmed) is None:
                pytest.fail(f"{cell.code}\nprinted\n{printed[:3000]}", pytrace=False)
        return sum(bool(cell.shown) for cell in found)

    def here(self, text: str) -> str:
        return text.replace(PLACE, self.place)

    def type(self, command: Command) -> bool:
        if command.line.startswith("gossamer simweb "):
            self.start_web(command.line)
            return False
        name = re.fullmatch(r"export (\w+)=(\S+)", command.line)
        if name:
            self.environment[name[1]] = name[2]
            return False
        done = subprocess.run(
            ["bash", "-c", self.here(command.line)],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=200,
            check=False,
        )
        # Only a crawl that takes long says how far it is, which is a matter of the machine.
        said = re.sub(r"^progress .*\n", "", done.stdout, flags=re.MULTILINE)
        fits = not command.shown or pattern_of(self.here(command.shown)).fullmatch(said) is not None
        if done.returncode or not fits:
            pytest.fail(
                f"{command.line}\nended with {done.returncode}; it printed\n{done.stdout[:3000]}", pytrace=False
            )
        return bool(command.shown)

    def start_web(self, line: str) -> None:
        """Start the page's simulated web on a free port, with its seeds in the page's file."""
        words, _, file = line.replace("--port 8000", "--port 0").partition(" > ")
        web = subprocess.Popen(
            [str(self.folder / "bin" / "gossamer"), *words.split()[1:], "--quiet"],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.webs.append(web)
        assert web.stdout is not None
        first = web.stdout.readline()
        self.place = f"127.0.0.1:{first.strip().rstrip('/').rpartition(':')[2]}"
        if file:
            sites = re.search(r"--sites (\d+)", line)
            rest = [web.stdout.readline() for _ in range(int(sites[1]) - 1 if sites else 39)]
            (self.work / file).write_text(first + "".join(rest), "utf-8")

    def leave(self) -> None:
        for web in self.webs:
            web.terminate()
        for web in self.webs:
            web.wait(20)
            assert web.stdout is not None
            web.stdout.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_cookbook_page_shows_real_output(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    found = [cell for cell in cells(page.read_text("utf-8")) if "matplotlib" not in cell.code]
    try:
        compared = reader.read(page)
        if found:
            compared += reader.run_cells(found)
        assert compared > 0
    finally:
        reader.leave()


@pytest.mark.timeout(300)
def test_notebook_with_its_plot_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the cell with the plot needs matplotlib: pip install matplotlib")
    page = ROOT / "docs" / "cookbook" / "notebook.md"
    reader = Reader(tmp_path)
    try:
        reader.read(page)
        reader.run_cells(cells(page.read_text("utf-8")))
        assert (reader.work / "prices.png").stat().st_size > 0
    finally:
        reader.leave()


def test_every_recipe_runs() -> None:
    recipes = {path.name for path in (ROOT / "docs" / "cookbook").glob("*.md")}
    assert recipes - {path.name for path in PAGES} == {"README.md", "choose-a-setup.md"}


def test_cookbook_page_with_wrong_output_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    reader = Reader(tmp_path)
    page.write_text("```console\n$ echo one two\none ...\n```\n", "utf-8")
    assert reader.read(page) == 1
    for wrong in ("$ echo one\ntwo\n", "$ false\n", "$ printf 'a\\nb\\n'\na\n"):
        page.write_text(f"```console\n{wrong}```\n", "utf-8")
        with pytest.raises(pytest.fail.Exception):
            reader.read(page)


def test_notebook_cell_with_wrong_output_is_detected(tmp_path: Path) -> None:
    page = '```python title="Cell 1"\nx = 2\nx\n```\n\n```text\n2\n```\n\n```python title="Cell 2"\nx + 1\n```\n'
    reader = Reader(tmp_path)
    assert reader.run_cells(cells(page)) == 1
    for wrong in (page.replace("text\n2", "text\n3"), page.replace("x + 1", "y + 1")):
        with pytest.raises(pytest.fail.Exception):
            reader.run_cells(cells(wrong))
