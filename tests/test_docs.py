"""The documents: complete, up to date, with valid links and code that runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import msgspec
import pytest

from gossamer.cli import PLACES, named
from gossamer.cli import gossamer as command_line
from gossamer.frontier.base import Frontier
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import PageRow
from gossamer.settings import FIELDS, SiteSettings
from gossamer.testing.frontier import FrontierSuite

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gossamer"
REFERENCE = ROOT / "docs" / "reference"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WRITTEN = [path for path in DOCUMENTS if path.parent != REFERENCE]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SITE = "http://127.0.0.1:8000/"
"""The site in the documents' examples."""
NAMED = re.compile(r"`((?:tests|benchmarks|scripts|examples)/[\w./*]+)(?:::([\w:]+)| -k (\w+))?[^`]*`")
PLACE = re.compile(r"`([\w/]+\.\w+)::([\w.]+)`")
"""A function, a class, or a method of a module, or a statement, in a document."""
MACHINE_PATHS = re.compile(r"(?<![\w./~-])/(?:work|tmp|root|home|Users|var/folders)/")
REGISTRIES = [name + end for name, end in (("pypi", ".org"), ("pythonhosted", ".org"), ("npmjs", ".com"))]


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def generator() -> ModuleType:
    """Import scripts/reference as a module."""
    path = ROOT / "scripts" / "reference"
    module = ModuleType("reference")
    module.__file__ = str(path)
    exec(compile(path.read_text("utf-8"), path, "exec"), vars(module))
    return module


def test_every_document_exists() -> None:
    names = "README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs/tutorial.md docs/proof.md"
    assert [name for name in names.split() if not (ROOT / name).is_file()] == []


def test_every_package_is_in_the_architecture() -> None:
    written = text_of("ARCHITECTURE.md")
    rooms = [f"{path.parent.name}/" for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE]
    modules = [path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")]
    assert len(rooms) > 10
    assert [name for name in (*rooms, *modules) if f"`{name}`" not in written] == []


def test_the_reference_is_up_to_date() -> None:
    made = generator().pages()
    old = [name for name, text in made.items() if text_of(f"docs/reference/{name}") != text]
    assert old == [], "run `make reference`"
    assert sorted(made) == sorted(path.name for path in REFERENCE.iterdir()), "a page that nobody makes"


def test_every_setting_is_documented() -> None:
    job, one_site = text_of("docs/reference/settings.md").split("## One site")
    assert [name for name in FIELDS if f"| `{name}` |" not in job] == []
    assert [field.name for field in msgspec.structs.fields(SiteSettings) if f"| `{field.name}` |" not in one_site] == []


def test_every_command_and_option_is_documented() -> None:
    page = text_of("docs/reference/cli.md")
    parts = {part.split("\n")[0].strip(): part for part in page.split("## gossamer ")[1:]}
    assert sorted(parts) == sorted(PLACES)
    missing = [
        f"{name} {flag}"
        for name in PLACES
        for option in named(name).params
        if isinstance(option, click.Option) and not option.hidden
        for flag in (*option.opts, *option.secondary_opts)
        if f"`{flag}`" not in parts[name]
    ]
    assert missing == []


def test_every_error_is_documented() -> None:
    page = text_of("docs/reference/errors.md")
    names = [kind.__name__ for kind in generator().error_classes()]
    assert len(names) > 10
    assert [name for name in names if f"| `{name}` |" not in page] == []
    assert [name for name in names if not re.search(rf"^ *{name}\b", page, re.MULTILINE)] == []


def test_every_field_of_a_page_is_documented() -> None:
    reference, readme = text_of("docs/reference/files.md"), text_of("README.md")
    fields = msgspec.structs.fields(PageRow)
    assert [field.name for field in fields if f"| `{field.name}` |" not in reference] == []
    assert ", ".join(field.name for field in fields if field.default is not msgspec.UNSET) in readme


def test_every_promise_has_its_proof() -> None:
    proof = text_of("docs/proof.md")
    for name in [*(f"P{number}" for number in range(1, 11)), *(f"I{number}" for number in range(1, 10))]:
        row = re.search(rf"^\| {name} \|.*$", proof, re.MULTILINE)
        assert row is not None, name
        assert re.search(r"`(?:tests|benchmarks)/|in I\d", row[0]), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=short)
def test_every_link_resolves(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text("utf-8"))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        aim = (path.parent / name).resolve() if name else path
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            broken.append(target)
    assert broken == []


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as generated by common renderers."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def message_parts(text: str) -> list[str]:
    """Parts of three words or more of a quoted message that hold no example, such as a name or a number."""
    parts = re.split(r"\.\.\.|: |\. |^links |\bpid\b|'[^']*'|\S*[/\d]\S*|\b[A-Z]\b|\b[A-Z]{4}\b", text)
    return [part.strip(" :.,") for part in parts if len(part.split()) >= 3]


@pytest.mark.parametrize("name", ["troubleshooting", "delete-jobs", "upgrade"])
def test_quoted_messages_exist(name: str) -> None:
    """A message that a how-to explains is one of the program's: its parts are in the source."""
    text = re.sub(r"^```.*?^```", "", text_of(f"docs/howto/{name}.md"), flags=re.DOTALL | re.MULTILINE)
    commands = ("gossamer ", "--", "<", "find ", "pipx ", "pip ", "redis-cli ", "export ")
    quoted = [one for one in re.findall(r"`([^`]+)`", text) if not one.startswith(commands)]
    quoted += re.findall(r"^ {4}(?:error|hint): (.*)$", text, re.MULTILINE)
    parts = [part for one in quoted for part in message_parts(" ".join(one.split()))]
    source = " ".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    joined = re.sub(r'"\s+f?"', "", re.sub(r"\s+", " ", source))
    assert len(parts) >= 3
    assert [part for part in parts if part not in joined] == []


@pytest.mark.parametrize("path", WRITTEN, ids=short)
def test_every_test_that_is_named_exists(path: Path) -> None:
    missing = []
    suite = [one for one in dir(FrontierSuite) if one.startswith("test_")]
    for name, test, words in NAMED.findall(path.read_text("utf-8")):
        files = [file.read_text("utf-8") for file in ROOT.glob(name) if file.is_file()]
        if not files:
            missing.append(name)
        elif words and not any(words in one for one in suite if "class TestSqlite" in files[0]):
            missing.append(f"{name} -k {words}")
        elif test and not re.search(rf"^\s*(?:async )?(?:def|class) {test.split('::')[-1]}\b", files[0], re.MULTILINE):
            missing.append(f"{name}::{test}")
    assert missing == []


def test_proof_names_many_tests() -> None:
    assert len(NAMED.findall(text_of("docs/proof.md"))) > 100


def flags_of(command: click.Command) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("path", WRITTEN, ids=short)
def test_every_shown_command_exists(path: Path) -> None:
    wrong = []
    text = path.read_text("utf-8").replace("\\\n", " ")
    for name, rest in re.findall(r"(?:^ {4}(?:\$ )?|^\$ |`)gossamer ([a-z]+)((?: [^`\n&|;]*)?)", text, re.MULTILINE):
        command = named(name) if name in PLACES else None
        shown = re.findall(r"(?<= )--[a-z-]+", rest.split("  ")[0])
        wrong += [f"gossamer {name} {flag}" for flag in shown if command is not None and flag not in flags_of(command)]
        wrong += [f"gossamer {name}"] if command is None else []
    every = flags_of(command_line).union(*(flags_of(named(name)) for name in PLACES))
    if "howto" in path.parts or "explanation" in path.parts or path.name in ("README.md", "tutorial.md"):
        wrong += [flag for flag in re.findall(r"`(--[a-z-]+)", text) if flag not in every]
    assert wrong == []


@pytest.mark.parametrize("path", [*DOCUMENTS, *EXAMPLES], ids=short)
def test_nothing_names_a_machine_or_a_registry(path: Path) -> None:
    text = path.read_text("utf-8")
    assert MACHINE_PATHS.findall(text) == []
    assert [host for host in REGISTRIES if host in text] == []


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=2, pages_per_site=12, page_bytes=4000) as running:
        yield running


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_spider(spider: Path, web: SimWeb, folder: Path) -> None:
    """Crawl with the spider; it must find something."""
    options = ["--allow-private", "--delay", "0", "--max-pages", "8", "--quiet", "--job", str(folder / "job")]
    run(["-m", "gossamer", "crawl", web.seeds[0], "--spider", str(spider), *options], folder)
    assert (folder / "job" / "items.jsonl").stat().st_size > 0


@pytest.mark.parametrize("path", EXAMPLES, ids=short)
def test_example_runs(path: Path, web: SimWeb, tmp_path: Path) -> None:
    if "__main__" in path.read_text("utf-8"):
        assert run([str(path)], tmp_path).stdout
    else:
        run_spider(path, web, tmp_path)


def blocks() -> list[tuple[str, str]]:
    """Every piece of Python in the documents, with its place; what is about sinks and frontiers is run by
    tests/storage/test_sink_names.py and tests/crawl/test_lmdb_example.py."""
    found = []
    for path in WRITTEN:
        if path.name in ("write-a-sink.md", "write-a-frontier.md"):
            continue
        pieces = re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        found += [(f"{short(path)}-{number}", piece) for number, piece in enumerate(pieces, 1)]
    return found


def test_documents_contain_code_to_run() -> None:
    assert sum(name.startswith("README") for name, _ in blocks()) >= 2


@pytest.mark.parametrize("code", [pytest.param(piece, id=name) for name, piece in blocks()])
def test_code_in_the_documents_runs(code: str, web: SimWeb, tmp_path: Path) -> None:
    file = tmp_path / "test_piece.py"
    site = web.seeds[0]
    file.write_text(code.replace(SITE, site).replace(SITE[7:-1], site[7:-1]), "utf-8")
    if "def test_" in code:
        run(["-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)], tmp_path)
    elif "gossamer.open_job(" in code:
        options = ["--allow-private", "--delay", "0", "--max-pages", "8", "--quiet", "--job", "shop"]
        run(["-m", "gossamer", "crawl", site, *options], tmp_path)
        assert run([str(file)], tmp_path).stdout
    elif "gossamer.crawl(" in code:
        assert run([str(file)], tmp_path).stdout
    else:
        run_spider(file, web, tmp_path)


def test_every_promise_of_a_frontier_says_where_each_backend_keeps_it() -> None:
    lines = text_of("docs/explanation/promises.md").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| **P")]
    promises = re.findall(r"^ +(P\d+) +(.*)$", Frontier.__doc__ or "", re.MULTILINE)
    assert [row[0] for row in rows] == [f"**{number}** {promise}" for number, promise in promises]
    assert {len(row) for row in rows} == {5}
    assert [row[0] for row in rows for cell in row[1:] if "::" not in cell] == [], "a backend without a place"
    assert unknown_places("docs/explanation/promises.md", SOURCE / "frontier") == []


def test_every_function_of_the_tour_exists() -> None:
    assert len(PLACE.findall(text_of("docs/explanation/tour.md"))) > 100
    assert unknown_places("docs/explanation/tour.md", SOURCE) == []


@pytest.mark.parametrize(
    "name", ["CONTRIBUTING.md", "docs/explanation/design-decisions.md", "docs/explanation/tour.md"]
)
def test_every_module_that_is_named_exists(name: str) -> None:
    """Modules are named relative to the package or to the root; NAME is a placeholder."""
    named = re.findall(r"`((?:[a-z_]\w*/)*\w+\.(?:py|lua|sql))(?:::[\w.]+)?`", text_of(name))
    assert named
    assert [
        path for path in named if "NAME" not in path and not any((top / path).is_file() for top in (SOURCE, ROOT))
    ] == []


def unknown_places(document: str, folder: Path) -> list[str]:
    """The references `module.py::name` of a document that do not exist below a folder."""
    named = PLACE.findall(text_of(document))
    return [f"{path}::{name}" for path, name in named if name not in names_in(folder / path)]


@cache
def names_in(file: Path) -> set[str]:
    """The names that a module defines: functions, classes, methods, or SQL statements."""
    text = file.read_text("utf-8") if file.is_file() else ""
    if file.suffix == ".lua":
        return set(re.findall(r"^(?:local )?function ([\w.]+)", text, re.MULTILINE))
    if file.suffix == ".sql":
        return set(re.findall(r"^-- name: (\w+)", text, re.MULTILINE))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tops = [node for node in ast.parse(text).body if isinstance(node, kinds)]
    inside = [(top, node) for top in tops for node in top.body if isinstance(node, kinds)]
    return {top.name for top in tops} | {f"{top.name}.{node.name}" for top, node in inside}
