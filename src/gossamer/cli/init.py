"""The command `init`: a settings file and a first spider to start from."""

from __future__ import annotations

from pathlib import Path

import click

from gossamer.cli.console import Exit, say
from gossamer.errors import ConfigError

SETTINGS = """\
# Settings of every crawl that is started in this folder; the command line goes first.
# All of them: `gossamer crawl --help`. A misspelt name is an error.

spider = "spider.py"

# Say who is crawling, and how to reach you.
# user_agent = "NAME/1.0 (+https://your.site; you@your.site)"

delay = 1.0             # seconds between two requests to a site
# max_pages = 1000      # stop after so many pages
# max_depth = 5         # follow links at most so deep
# scope = "site"        # site, domain or any
# allow = ["/page/"]    # follow only URLs that match one of these regular expressions
# deny = ["/login"]     # never follow these
# links = "main"        # follow only the links inside this CSS region
# concurrency = 64      # fetches at once, over all sites
# workers = 1           # processes
# text = true           # keep the text of each page

# One site may have settings of its own.
# [sites."slow.example"]
# delay = 5.0
"""
SPIDER = """\
from gossamer import Spider


class Quotes(Spider):
    start = ["https://quotes.toscrape.com/"]

    def parse(self, page):
        for quote in page.css("div.quote"):
            yield {"text": quote.css(".text::text").get(), "author": quote.css(".author::text").get()}
        yield from page.follow_all("li.next a")
"""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def init(folder: Path, force: bool) -> int:
    """Write a settings file and a first spider into DIR."""
    files = {folder / "gossamer.toml": SETTINGS, folder / "spider.py": SPIDER}
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise ConfigError(
            f"{' and '.join(there)} exist already", hint="--force overwrites, `gossamer init DIR` goes elsewhere"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, "utf-8")
        say(f"wrote {path}")
    enter = "" if folder == Path() else f"cd {folder} && "
    say(f"hint: change spider.py to your site, then: {enter}gossamer crawl")
    return Exit.OK
