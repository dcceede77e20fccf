"""The command line: data to stdout, everything else to stderr, exit codes that scripts can rely on."""

from __future__ import annotations

import click

from gossamer.cli.audit import audit
from gossamer.cli.compact import compact
from gossamer.cli.crawl import crawl, worker
from gossamer.cli.exits import Exit
from gossamer.cli.fleet import export, submit
from gossamer.cli.init import init
from gossamer.cli.look import fetch, shell
from gossamer.cli.scale import scale
from gossamer.cli.spread import spread
from gossamer.cli.steer import add, pause, resume, status, stop
from gossamer.cli.take import take
from gossamer.cli.terminal import flush_output, hold_standard_streams, plain, say
from gossamer.cli.trial import trial
from gossamer.cli.why import why
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


commands = (
    crawl, trial, fetch, shell, init, worker, submit, status, pause, resume, stop, add, take, scale, spread, compact,
    export, why, audit, simweb,
)  # fmt: skip
for command in commands:
    gossamer.add_command(command)


def main() -> None:
    """Run a command; a mistake of the user's is a message with a hint, never a traceback."""
    hold_standard_streams()
    code = _run()
    error = flush_output()
    if error is not None and not isinstance(error, BrokenPipeError):
        say(f"error: output could not be written: {error.strerror}")
        code = Exit.ERROR
    raise SystemExit(int(code))


def _run() -> int:
    try:
        return int(gossamer.main(standalone_mode=False) or Exit.OK)
    except click.ClickException as error:
        say(_worded(error))
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except GossamerError as error:
        say(f"error: {plain(str(error))}")
        if error.hint:
            say(f"hint: {error.hint}")
        return Exit.USAGE if isinstance(error, ConfigError) else Exit.ERROR
    except BrokenPipeError:
        # The reader of our output has left; nothing more can be said to it.
        return Exit.OK
    except OSError as error:
        say(f"error: {plain(str(error))}")
        return Exit.ERROR


def _worded(error: click.ClickException) -> str:
    """What was wrong with the command line, and where to read on; a bare group is a question for its help."""
    text = error.format_message()
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return f"error: {text}"
    if text.startswith("Usage:"):
        return text
    return f"error: {text}\nhint: {error.ctx.command_path} --help"
