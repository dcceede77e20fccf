"""Public names: changing them must be deliberate."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import gossamer
from gossamer.settings import VERSION

PUBLIC = (
    "AsyncJobHandle",
    "ConfigError",
    "CrawlSummary",
    "ExtractError",
    "FailedPage",
    "FetchError",
    "FrontierError",
    "GossamerError",
    "JobHandle",
    "Page",
    "Pages",
    "Request",
    "Response",
    "Results",
    "SeedsFailed",
    "Settings",
    "SinkError",
    "Spider",
    "crawl",
    "open_job",
    "secret",
)
REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"


def test_public_names_are_exactly_the_documented_ones() -> None:
    documented = re.findall(r"^## (\w+)$", REFERENCE.read_text("utf-8"), re.MULTILINE)
    assert tuple(gossamer.__all__) == PUBLIC
    assert sorted({*documented} - {"Selection"}) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_exists_with_a_docstring(name: str) -> None:
    value = getattr(gossamer, name)
    assert value.__doc__
    assert value.__module__.startswith("gossamer.")


def test_the_version_and_all_names_are_attributes() -> None:
    assert gossamer.__version__ == VERSION
    assert {*PUBLIC, "__version__"} <= {*dir(gossamer)}


def test_missing_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Spidr"):
        _ = gossamer.Spidr


def test_types_are_shipped() -> None:
    assert files("gossamer").joinpath("py.typed").is_file()


def test_importing_the_package_loads_little() -> None:
    assert loaded_by("import gossamer") & {"lxml", "rich", "selectolax", "pyreqwest"} == set()


def test_a_worker_loads_only_what_its_crawl_needs() -> None:
    """Every process pays for imports: no XPath, browser, databases, or drawing before they are used."""
    loaded = loaded_by("import gossamer.cli.crawl, gossamer.jobs.worker; gossamer.cli.main")
    heavy = {"aiodns", "cssselect", "duckdb", "lxml", "playwright", "pyarrow", "pycares", "redis", "rich", "starlette"}
    assert loaded & {*heavy, "gossamer.download.browser", "gossamer.results.report", "gossamer.storage.reader"} == set()


def loaded_by(code: str) -> set[str]:
    """The loaded modules of a process that runs this code."""
    asked = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    return set(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())


def renamed() -> list[tuple[str, str]]:
    """Return the old names of docs/howto/upgrade.md, each with the module that has it now."""
    text = (Path(__file__).parents[1] / "docs" / "howto" / "upgrade.md").read_text("utf-8")
    rows = re.findall(r"^\| (`gossamer\.[^|]*`) \| `([^|`]*)` \|$", text, re.MULTILINE)
    return [(name, module) for names, module in rows for name in re.findall(r"`([^`]+)`", names)]


def test_renamed_modules_are_listed() -> None:
    assert len(renamed()) > 10


@pytest.mark.parametrize(("old", "module"), renamed())
def test_an_old_name_still_works(old: str, module: str) -> None:
    place, _, name = old.rpartition(".")
    assert getattr(importlib.import_module(place), name) is getattr(importlib.import_module(module), name)
