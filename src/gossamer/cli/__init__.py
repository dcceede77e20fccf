"""The command line: data to stdout, everything else to stderr, exit codes that scripts can rely on."""

from __future__ import annotations

import sys

import click

from gossamer.cli.crawl import add, crawl, pause, resume, status, stop, worker
from gossamer.cli.exits import Exit
from gossamer.errors import ConfigError, GossamerError
from gossamer.settings import VERSION
from gossamer.sim.command import simweb


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="gossamer")
def gossamer() -> None:
    """A web crawler that grows from a laptop to a fleet.

    \b
    gossamer crawl https://example.com      crawl a site, politely; the same command again resumes
    gossamer try https://example.com        look at 20 pages before a long crawl
    """


for command in (crawl, worker, status, pause, resume, stop, add, simweb):
    gossamer.add_command(command)


def main() -> None:
    """Run a command; a mistake of the user's is a message with a hint, never a traceback."""
    try:
        code = gossamer.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = Exit.USAGE
    except click.Abort:
        code = Exit.INTERRUPTED
    except GossamerError as error:
        click.echo(f"error: {error}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        code = Exit.USAGE if isinstance(error, ConfigError) else Exit.ERROR
    except BrokenPipeError:
        # The reader of our output has left; nothing more can be said to it.
        sys.stderr.close()
        code = Exit.OK
    except OSError as error:
        click.echo(f"error: {error}", err=True)
        code = Exit.ERROR
    raise SystemExit(int(code or 0))
