"""Help that can be read: the many options of a crawl under headings, and the words of each command in one place."""

from __future__ import annotations

import click

from gossamer.settings import FIELDS

SECTIONS = {
    "spider": "What to take",
    "max_pages": "Where to go, and when to stop",
    "delay": "Pace",
    "robots": "Manners, headers, addresses",
    "connect_seconds": "Limits",
    "browser_path": "Browser",
    "lease_seconds": "Leases, storing, trying again",
    "recrawl": "Crawl for ever",
}
"""A heading stands before the setting it names; a new setting falls under the heading where it is declared."""


def section_of() -> dict[str, str]:
    """Setting -> its heading."""
    found, heading = {}, ""
    for name in FIELDS:
        heading = SECTIONS.get(name, heading)
        found[name] = heading
    return found


def options_by_section(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """Heading -> options; the command's own come first, under an empty one."""
    headings = section_of()
    found: dict[str, list[click.Option]] = {"": [], **{heading: [] for heading in SECTIONS.values()}}
    for option in command.get_params(context):
        if isinstance(option, click.Option) and not option.hidden:
            found[headings.get(option.name or "", "")].append(option)
    return {heading: options for heading, options in found.items() if options}


class Sectioned(click.Command):
    """A command with an option for every setting: its own options first, then those under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, options in options_by_section(self, ctx).items():
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            with formatter.section(heading or "Options"):
                formatter.write_dl(records)
