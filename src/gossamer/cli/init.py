"""The command `init`: creates a settings file and a first spider."""

from __future__ import annotations

from pathlib import Path

import click

from gossamer.cli.console import Exit, say
from gossamer.cli.templates import TEMPLATES
from gossamer.errors import ConfigError

SETTINGS = """\
# Settings of all crawls that are started in this folder. The command line overrides them.
# `gossamer crawl --help` lists all settings. An unknown name is an error.

spider = "spider.py"

# Identify your crawler, and say how to contact you.
# user_agent = "NAME/1.0 (+https://your.site; you@your.site)"

delay = 1.0             # seconds between two requests to a site
# max_pages = 1000      # stop after this many pages
# max_depth = 5         # max link depth from the seeds
# scope = "site"        # site, domain or any
# allow = ["/page/"]    # follow only URLs that match one of these regular expressions
# deny = ["/login"]     # never follow URLs that match one of these
# links = "main"        # follow only links inside elements that match this CSS selector
# concurrency = 64      # max concurrent fetches, over all sites
# workers = 1           # worker processes
# text = true           # store the text of each page

# Settings of a single site:
# [sites."slow.example"]
# delay = 5.0
"""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--template",
    type=click.Choice(list(TEMPLATES)),
    default="list",
    help="Spider to start from: items on list pages, every page of a site, products of a shop, news articles, "
    "the pages in a sitemap, or a JSON API.  [default: list]",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def init(folder: Path, template: str, force: bool) -> int:
    """Create a settings file and a first spider in DIR.

    DIR is the current folder by default.

    \b
    gossamer init                     a spider for list pages with a next link
    gossamer init --template shop     a spider for list pages and product pages
    """
    files = {folder / "gossamer.toml": SETTINGS, folder / "spider.py": TEMPLATES[template]}
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise ConfigError(
            f"{' and '.join(there)} already exist",
            hint="use --force to overwrite, or another folder: gossamer init DIR",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, "utf-8")
        say(f"wrote {path}")
    enter = "" if folder == Path() else f"cd {folder} && "
    say(f"hint: adapt spider.py to your site, then run: {enter}gossamer crawl")
    return Exit.OK
