"""MkDocs hooks: add the documents of the repository's root and a page with all examples to the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ABOVE = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
BOOSTED = ("howto/", "tutorial.md", "cookbook/")
"""Pages that the search shows first: they answer what people look for."""
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents of the repository's root, and a page with all examples."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for name in ABOVE:
        files.append(File.generated(config, name, content=(root / name).read_text("utf-8")))
    files.append(File.generated(config, "examples.md", content=examples(root)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to files of the repository to pages of the site."""
    source = page.file.src_uri
    page.meta["search"] = {"exclude": source == "CHANGELOG.md", "boost": 1.5 if source.startswith(BOOSTED) else 1}
    above = source in ABOVE
    home = "" if above else "docs/"
    root = Path(config.config_file_path).parent

    def led(found: re.Match[str]) -> str:
        aim = posixpath.normpath(posixpath.join(home + posixpath.dirname(source), found[1]))
        return relative(aim, posixpath.dirname(source), root) + (found[2] or "")

    return outside_code(markdown, lambda text: _LINK.sub(led, text))


def relative(aim: str, folder: str, root: Path) -> str:
    """Rewrite a link from a page in docs/ to a file of the repository."""
    name = aim.removeprefix("docs/")
    if aim == "README.md":
        name = "README.md"
    elif aim == "examples" or aim.startswith("examples/"):
        name = "examples.md"
    elif not aim.startswith("docs/") and aim not in ABOVE:
        raise ValueError(f"{folder}: no page of the site corresponds to {aim}")
    elif (root / aim).is_dir():
        name += "/README.md"
    return posixpath.relpath(name, folder or ".")


def examples(root: Path) -> str:
    """A page with all examples."""
    parts = ["# Examples\n\nRun by the tests. They are in `examples/` of the repository.\n"]
    for path in sorted((root / "examples").glob("*.py")):
        parts.append(f'## {path.stem}\n\n```python title="{path.name}"\n{path.read_text("utf-8")}```\n')
    return "\n".join(parts)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a function to the text outside of code."""
    parts = re.split(r"(^ *```.*?^ *```|`[^`\n]+`)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))
