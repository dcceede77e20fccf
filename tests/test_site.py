"""The documentation site: builds without warnings, has every page, and loads no external resources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import markdown
import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
ABOVE = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
LOADED = re.compile(r"<(?:script|img|link|iframe|source|object)\b[^>]*?(?:src|href|data)=\"?([^\"\s>]+)")
# Seconds of work, but a machine may be slow.
pytestmark = pytest.mark.timeout(300)
SHAPES = ("ul", "ol", "li", "pre", "table", "tr", "td", "th", "h1", "h2", "h3", "img", "blockquote")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in a temporary folder; warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    made = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    for name in (*PAGES, *ABOVE, "examples.md"):
        assert re.sub(r"README\.md$", "index.md", name).removesuffix(".md") + ".html" in made
    for path in site.rglob("*.html"):
        strange = [url for url in LOADED.findall(path.read_text("utf-8")) if re.match(r"(?:\w+:)?//", url)]
        assert strange == [], path


def test_every_page_is_in_the_navigation_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    named = Counter(re.findall(r"- ([\w./-]+\.md)$", nav, re.MULTILINE))
    assert named == Counter([*PAGES, *ABOVE, "examples.md"])


def test_index_pages_link_to_every_page_of_their_kind() -> None:
    first = (ROOT / "docs" / "README.md").read_text("utf-8")
    recipes = (ROOT / "docs" / "cookbook" / "README.md").read_text("utf-8")
    assert [
        name for name in PAGES if name.startswith(("howto/", "reference/", "explanation/")) and name not in first
    ] == []
    assert [
        name for name in PAGES if name.startswith("cookbook/") and Path(name).name not in recipes + "README.md"
    ] == []


@pytest.mark.parametrize("name", [*(f"docs/{page}" for page in PAGES), *ABOVE, "README.md"])
def test_a_page_has_the_same_shape_on_the_site_and_in_the_repository(name: str) -> None:
    """The site and code hosts use different renderers: lists and code must render in both."""
    text = (ROOT / name).read_text("utf-8")
    extensions = ["attr_list", "tables", "sane_lists", "pymdownx.highlight", "pymdownx.superfences"]
    assert shape(markdown.markdown(text, extensions=extensions)) == shape(
        MarkdownIt("commonmark").enable("table").render(text)
    )


def shape(html: str) -> Counter[str]:
    plain = re.sub(r"<pre.*?</pre>", "<pre>", html, flags=re.DOTALL)
    return Counter(tag for tag in re.findall(r"<(\w+)", plain) if tag in SHAPES)
