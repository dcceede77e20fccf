from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gossamer"
MODULES = sorted(SOURCE.rglob("*.py"))
ORDER: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("extract", "download", "middleware", "frontier"),
    ("storage",),
    ("engine",),
    ("telemetry", "imports"),
    ("scrapy",),
    ("jobs",),
    ("results", "inspect"),
    ("api",),
    ("lab",),
    ("testing",),
    ("service",),
    ("cli",),
)
"""Packages import only packages of earlier steps, and none of their own step. Other modules are the core."""
STEP = {room: step for step, rooms in enumerate(ORDER) for room in rooms}
FRONT = {"__init__", "__main__", "sink", "stored"}
"""The package's public names, the entry point of the command, and aliases of public names."""
STORAGE_MAY = {"download.decoding", "extract.mime"}
"""Storage decodes WARC pages and sniffs trees; it imports nothing else from earlier packages."""
BACKENDS = "frontier/backends.py"
SCHEME = re.compile(
    r"(rediss?(\+sentinel)?|unix|postgres(ql)?|mysql|mariadb|folder|sqlite|memory)(:/{0,3})?", re.IGNORECASE
)
OWN_SCHEMES = ("frontier/redis/", "frontier/sql/", "frontier/embedded/")
"""Modules of a backend, which can compare its own schemes to select a kind of server, dialect, or store."""
NO_FRONTIERS = ("storage/", "testing/servers.py", "testing/network.py", "lab/verify.py")
"""Modules with addresses of sinks, test servers, and proxies."""
FORMAT = re.compile(
    r"(jsonl|csv|sqlite|warc|parquet|folder|mysql|mariadb|postgres(ql)?|(warc\+)?(s3|gs|az|file)|rediss?\+stream)(:/?)?"
)
WAYS_IN = {"cli", "service", "api"}
OPENED_BY_JOBS = {
    *(f"engine.{name}" for name in ("coordinator", "remote")),
    *(f"frontier.{path.relative_to(SOURCE / 'frontier').parts[0].removesuffix('.py')}"
      for path in (SOURCE / "frontier").rglob("*.py")),
} - {"frontier.backends", "frontier.base", "frontier.placement", "frontier.policy"}  # fmt: skip
SERVICE_NAMES = "service/schemas.py"
"""The module whose class names are published in the OpenAPI document."""
REGISTRY = {"Compacts", "MovesShards", "ability", "backend_of", "check", "find_backend", "is_address", "is_fleet",
            "is_in_memory"}  # fmt: skip
"""Functions of the frontier registry that entry packages may use: about an address, not about a job."""
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
PREFIXES = {"startswith", "removeprefix", "match", "fullmatch", "search", "index", "find", "split"}
MUTATORS = {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert", "remove", "discard"}

every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import of a module, at any level."""
    package = ["gossamer", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def part(path: Path) -> str:
    """The package or the top-level module of a file."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_modules_are_found() -> None:
    assert len(MODULES) > 5


def name_of(path: Path) -> str:
    """The module's dotted name, without the package's."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@every_module
def test_imports_follow_the_package_order(path: Path) -> None:
    if part(path) in FRONT:
        return
    here = part(path) if part(path) in STEP else "core"
    for line, name in imports(path):
        first, _, rest = name.partition(".")
        if first != "gossamer" or not rest:
            continue
        there = rest.split(".")[0] if rest.split(".")[0] in STEP else "core"
        known = there == here or STEP[there] < STEP[here]
        if here == "storage" and STEP[there] == 1:
            known = ".".join(rest.split(".")[:2]) in STORAGE_MAY
        assert known, f"{path}:{line} imports {name}"
        assert rest.split(".")[0] not in {"sink", "stored"}, f"{path}:{line} imports an alias, {name}"


def test_no_import_cycles() -> None:
    """No cycles among module-level imports."""
    modules = {name_of(path): path for path in MODULES}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        top = {line for node in tree(path).body for line in _runtime_lines(node)}
        found = set()
        for line, imported in imports(path):
            parts = imported.removeprefix("gossamer.").split(".")
            known = next((".".join(parts[:k]) for k in range(len(parts), 0, -1) if ".".join(parts[:k]) in modules), "")
            if line in top and imported.startswith("gossamer.") and known and known != name:
                found.add(known)
        graph[name] = found
    while ready := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in ready:
            del graph[name]
    assert sorted(graph) == []


def _runtime_lines(node: ast.stmt) -> set[int]:
    """The lines of imports that run when a module is loaded, without imports for types and in functions."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {node.lineno}
    return {line for inner in node.body for line in _runtime_lines(inner)} if isinstance(node, ast.Try) else set()


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    several = {name: found for name, found in places.items() if len(set(found) - {SERVICE_NAMES}) > 1}
    assert several == {}


@every_module
def test_schemes_of_frontiers_are_compared_in_one_module(path: Path) -> None:
    """All other modules use the registry, so that third-party backends work like built-in ones."""
    name = path.relative_to(SOURCE).as_posix()
    if name == BACKENDS or name.startswith((*OWN_SCHEMES, *NO_FRONTIERS)):
        return
    for node in ast.walk(tree(path)):
        for text in _compared(node):
            whole = text.value if isinstance(text.value, str) else ""
            assert not (SCHEME.fullmatch(whole) and ":" in whole), f"{path}:{text.lineno} compares {whole!r}"


@every_module
def test_frontier_schemes_are_parsed_in_one_module(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    if name == BACKENDS or name.startswith((*OWN_SCHEMES, *NO_FRONTIERS)):
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Compare) and "scheme" in ast.unparse(node):
            schemes = [text.value for text in _compared(node) if SCHEME.fullmatch(str(text.value))]
            assert not schemes, f"{path}:{node.lineno} compares a scheme with {schemes}"


@every_module
def test_formats_of_sinks_are_compared_in_storage_only(path: Path) -> None:
    """Other packages ask storage/registry.py what a format can do, so that a new format is registered there only."""
    if path.relative_to(SOURCE).parts[0] == "storage":
        return
    for node in ast.walk(tree(path)):
        formats = [text.value for text in _compared(node) if FORMAT.fullmatch(str(text.value))]
        where = f"{path}:{node.lineno}" if isinstance(node, ast.expr) else str(path)
        if isinstance(node, ast.Compare | ast.Call):
            assert not formats or "sink" not in ast.unparse(node), f"{where} compares a sink with {formats}"
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            assert not 1 < len(formats) == len(node.elts), f"{where} lists formats: {formats}"


def _compared(node: ast.AST) -> Iterator[ast.Constant]:
    """Constants in comparisons, patterns, prefixes, and collections of them."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        parts = [*node.args] if node.func.attr in PREFIXES else []
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        parts = [*node.elts]
    elif isinstance(node, ast.Dict):
        parts = [*node.keys]
    elif isinstance(node, ast.MatchValue):
        parts = [node.value]
    yield from (part for part in parts if isinstance(part, ast.Constant))


@every_module
def test_entry_packages_do_not_import_one_another(path: Path) -> None:
    """The commands, the service, and the Python API use the same packages; only `serve` starts the service."""
    here = part(path)
    if here not in WAYS_IN or path == SOURCE / "cli" / "serve.py":
        return
    for line, name in imports(path):
        first, _, rest = name.partition(".")
        if first == "gossamer":
            assert rest.split(".")[0] not in WAYS_IN - {here}, f"{path}:{line} imports {name}"


@every_module
def test_entry_packages_use_job_handles_only(path: Path) -> None:
    """They open no frontier, socket, or frontier file themselves: `jobs/` does, for every kind of job."""
    if part(path) not in WAYS_IN:
        return
    for line, name in imports(path):
        room, _, rest = name.removeprefix("gossamer.").partition(".")
        module, _, thing = rest.partition(".")
        opens = (room == "frontier" and module == "backends" and thing not in REGISTRY) or (
            name.startswith("gossamer.") and f"{room}.{module}" in OPENED_BY_JOBS
        )
        assert not opens, f"{path}:{line} imports {name}"


@every_module
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    for line, name in imports(path):
        assert name.split(".")[0] not in UNSAFE_MODULES, f"{path}:{line} imports {name}"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in UNSAFE_CALLS, f"{path}:{node.lineno} calls {node.func.id}"


@every_module
def test_modules_have_no_global_state(path: Path) -> None:
    """No `global`, no empty module-level containers, and no changes to module-level containers."""
    module = tree(path)
    containers: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
                containers.update(target.id for target in targets if isinstance(target, ast.Name))
            assert not _is_empty_container(node.value), f"{path}:{node.lineno} keeps an empty container"
    for part in ast.walk(module):
        assert not isinstance(part, ast.Global), f"{path}:{part.lineno} uses global"
        assert _changed(part) not in containers, f"{path}:{getattr(part, 'lineno', 0)} changes a module's container"


def _is_empty_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return (
            value.func.id in {"dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter"}
            and not value.args
        )
    return (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, ast.List) and not value.elts)


def _changed(node: ast.AST) -> str | None:
    """The name whose container a node changes, if it does."""
    owner: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        owner = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        owner = node.func.value
    return owner.id if isinstance(owner, ast.Name) else None


@every_module
def test_every_module_has_a_docstring(path: Path) -> None:
    words = ast.get_docstring(tree(path))
    assert words, f"{path} has no docstring"
    assert words.split("\n\n")[0].rstrip().endswith("."), f"{path}: the docstring does not open with a sentence"


def test_forbidden_import_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check above fails for a module that violates it."""
    monkeypatch.setattr("test_architecture.SOURCE", tmp_path)
    (tmp_path / "storage").mkdir()
    (tmp_path / "cli").mkdir()
    for text in ('url.startswith("redis://")', 'url in ("", "memory:")', 'KINDS = {"folder:": 1}', 'x == "sqlite:"'):
        asking = tmp_path / "cli" / "asking.py"
        asking.write_text(text)
        with pytest.raises(AssertionError):
            test_schemes_of_frontiers_are_compared_in_one_module(asking)
    asking.write_text('kind = urlsplit(url).scheme == "postgresql"')
    with pytest.raises(AssertionError):
        test_frontier_schemes_are_parsed_in_one_module(asking)
    for text in ('any(sink.partition(":")[0] == "warc" for sink in sinks)', 'TABLES = ("postgresql", "mysql")'):
        asking.write_text(text)
        with pytest.raises(AssertionError):
            test_formats_of_sinks_are_compared_in_storage_only(asking)
    bad = tmp_path / "storage" / "bad.py"
    bad.write_text("'no sentence'\nimport pickle\nfrom gossamer.engine import run\nSEEN = {}\n")
    for check in (
        test_imports_follow_the_package_order,
        test_nothing_is_unpickled_or_evaluated,
        test_modules_have_no_global_state,
        test_every_module_has_a_docstring,
    ):
        with pytest.raises(AssertionError):
            check(bad)
    bad.write_text("from .. import engine\n")
    with pytest.raises(AssertionError):
        test_imports_follow_the_package_order(bad)
    (tmp_path / "service").mkdir()
    bad = tmp_path / "service" / "bad.py"
    bad.write_text("def ask():\n    from gossamer.cli.inspect import why\n")
    with pytest.raises(AssertionError):
        test_entry_packages_do_not_import_one_another(bad)
    openings = ("engine.remote import connect", "frontier.backends import open_fleet", "frontier.embedded import x")
    for opening in openings:
        bad.write_text(f"from gossamer.{opening}\n")
        with pytest.raises(AssertionError):
            test_entry_packages_use_job_handles_only(bad)
