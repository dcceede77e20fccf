"""The command line: data to stdout, everything else to stderr, exit codes that scripts can rely on.

Kept apart from the commands, so that neither the help nor a shell that completes a word has to load them all."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import sys
from importlib import import_module
from typing import NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from gossamer import logs
from gossamer.cli.console import Exit, flush_output, hold_standard_streams, say
from gossamer.engine.allocator import give_back_freed_memory
from gossamer.errors import ConfigError, GossamerError
from gossamer.jobs.signals import end_now
from gossamer.logs import plain
from gossamer.settings import VERSION


class CommandEntry(NamedTuple):
    """A command: `module:member` under `gossamer`, and a line of at most 62 letters, which fits every terminal."""

    place: str
    line: str


CONTENTS = {
    "Crawl": {
        "crawl": CommandEntry("cli.crawl:crawl", "Crawl from one or more URLs; the same command again resumes."),
        "try": CommandEntry("cli.trial:trial", "Look at 20 pages before a long crawl, with an estimate."),
        "fetch": CommandEntry("cli.fetch:fetch", "Fetch one page as a crawl would."),
        "shell": CommandEntry("cli.fetch:shell", "Explore a page in Python."),
        "init": CommandEntry("cli.init:init", "Write a settings file and a first spider into a folder."),
        "import": CommandEntry("cli.imports:take", "Take over what another crawler left, or a list of URLs."),
    },
    "Look and steer": {
        "status": CommandEntry("cli.jobs:status", "Show how far a job is, running or not."),
        "pause": CommandEntry("cli.jobs:pause", "Pause a running crawl."),
        "resume": CommandEntry("cli.jobs:resume", "Let a paused crawl go on."),
        "stop": CommandEntry("cli.jobs:stop", "Stop a running crawl; nothing is lost."),
        "delete": CommandEntry("cli.jobs:delete", "Delete a job; its results stay unless you say otherwise."),
        "add": CommandEntry("cli.jobs:add", "Add URLs to a running crawl."),
        "why": CommandEntry("cli.inspect:why", "Tell the whole story of a URL: found, let in, visited or not."),
        "audit": CommandEntry("cli.inspect:audit", "List every request to a site, with gaps and rules."),
        "report": CommandEntry("cli.results:report", "Write a report of a job with pictures, as one HTML file."),
        "doctor": CommandEntry("cli.inspect:doctor", "Check this machine, and say how to mend what is not well."),
        "serve": CommandEntry("cli.serve:serve", "Serve an API and a dashboard."),
    },
    "Use what was stored": {
        "export": CommandEntry("cli.results:export", "Write pages or items as JSON lines, CSV, Parquet, WARC, ..."),
        "sql": CommandEntry("cli.results:sql", "Ask a job's files in SQL."),
        "diff": CommandEntry("cli.results:diff", "List pages that are new, gone or changed between two jobs."),
        "replay": CommandEntry("cli.results:replay", "Run a spider over stored pages, without a network."),
    },
    "Fleets": {
        "submit": CommandEntry("cli.fleet:submit", "Put a job into a fleet's frontier."),
        "worker": CommandEntry("cli.crawl:worker", "Join a running crawl, here or of a fleet."),
        "scale": CommandEntry("cli.fleet:scale", "Print how many workers a fleet's job can feed."),
        "repair": CommandEntry("cli.fleet:repair", "Fetch stored pages again whose records are lost."),
        "spread": CommandEntry("cli.fleet:spread", "Move a job's shards to other servers while it is crawled."),
        "compact": CommandEntry("cli.fleet:compact", "Delete the rows of finished URLs of a job in SQL."),
    },
    "Try out and set up": {
        "simweb": CommandEntry("cli.lab:simweb", "Serve a simulated web on loopback, to try crawls on."),
        "simulate": CommandEntry("cli.lab:simulate", "Crawl simulated webs in virtual time, under faults."),
        "verify": CommandEntry("cli.lab:verify", "Prove your frontier and sink: kill workers, count what is lost."),
        "bench": CommandEntry("cli.lab:bench", "Measure what pages and frontiers cost on this machine."),
        "plan": CommandEntry("cli.plan:plan", "Compute what a crawl of any size takes."),
        "completion": CommandEntry("cli.options:completion", "Print what makes your shell complete commands and jobs."),
    },
}
"""Heading -> command -> entry, in the order of the help."""

PLACES = {name: entry.place for entries in CONTENTS.values() for name, entry in entries.items()}
"""Where each command is, in the order of the help."""
LINES = {name: entry.line for entries in CONTENTS.values() for name, entry in entries.items()}
"""What each command is for, in a line."""

_MENDING = {
    errno.ENOENT: "is the path right?",
    errno.EACCES: "the user that runs this needs the right to do that; or name another place",
    errno.EPERM: "the user that runs this needs the right to do that; or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOTDIR: "a part of the path is a file, and no folder: name another place",
    errno.EEXIST: "a file is where a folder should be: name another place",
    errno.EISDIR: "name a file in it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "make room on that disk",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
}


class Commands(click.Group):
    """The commands; only the one that is called is imported, since a quick question should not wait for the engine."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return named(cmd_name) if cmd_name in PLACES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, PLACES))
        for heading, entries in CONTENTS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), entry.line) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=line) for name, line in LINES.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def named(name: str) -> click.Command:
    """The command of that name."""
    module, member = PLACES[name].split(":")
    command = getattr(import_module(f"gossamer.{module}"), member)
    assert isinstance(command, click.Command)
    return command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`gossamer COMMAND --help` tells more of each, with examples; `man gossamer` has it all.",
)
@click.version_option(VERSION, prog_name="gossamer")
@click.option(
    "--log-format", envvar=logs.VARIABLES["format"], type=click.Choice(logs.FORMATS), help="Form of a log line."
)
@click.option(
    "--log-file", envvar=logs.VARIABLES["file"], help="Log to this file; it may be rotated.  [default: stderr]"
)
@click.option(
    "--log-level", envvar=logs.VARIABLES["level"], help="As in info, or warning,fetch=info.  [default: warning]"
)
def gossamer(log_format: str | None, log_file: str | None, log_level: str | None) -> None:
    """A web crawler that grows from a laptop to a fleet.

    \b
    gossamer try https://example.com     look at 20 pages before a long crawl
    gossamer crawl https://example.com   crawl it, politely; once more to resume
    gossamer status example.com          from another terminal: how far it is
    gossamer export example.com          its pages, as JSON lines
    """
    for name, value in (("format", log_format), ("file", log_file), ("level", log_level)):
        if value:
            # Processes that this one starts log in the same way.
            os.environ[logs.VARIABLES[name]] = os.path.abspath(value) if name == "file" else value
    logs.check(log_format or "text", log_level or "")


def main() -> None:
    """Run a command; a mistake of the user's is a message with a hint, never a traceback."""
    code = run_command()
    error = flush_output()
    if error is not None and not isinstance(error, BrokenPipeError):
        say(f"error: output could not be written: {error.strerror}")
        code = Exit.ERROR
    _leave(int(code))


def _leave(code: int) -> NoReturn:
    """End the process. Threads of the HTTP client may call into an interpreter that is being taken down, which would
    abort it with everything done: where that client is loaded, the process ends after the functions of `atexit`."""
    logging.shutdown()
    if "pyreqwest" in sys.modules:
        # What is registered last is called first, so this one calls the others.
        def end() -> None:
            atexit.unregister(end)
            end_now(code)

        atexit.register(end)
    raise SystemExit(code)


def run_command() -> int:
    """Run the command of this process, print its error if it fails, and return the exit code."""
    try:
        hold_standard_streams()
        give_back_freed_memory()
        try:
            return int(gossamer.main(standalone_mode=False) or Exit.OK)
        except ExceptionGroup as group:
            raise first_cause(group) from group
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
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        say(f"error: {plain(what)}")
        if error.errno in _MENDING:
            say(f"hint: {_MENDING[error.errno]}")
        return Exit.ERROR


def first_cause(group: ExceptionGroup[Exception]) -> Exception:
    """The first error in a group that can be told in a line; the group itself if there is another one in it."""
    known, others = group.split((GossamerError, OSError))
    found: Exception = known if known is not None and others is None else group
    while found is not group and isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


def _worded(error: click.ClickException) -> str:
    """What was wrong with the command line, and where to read on; a bare group is a question for its help."""
    text = error.format_message()
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return f"error: {text}"
    if text.startswith("Usage:"):
        return text
    if isinstance(error, click.NoSuchOption) and error.option_name in {
        flag for one in gossamer.params for flag in one.opts
    }:
        return f"error: {error.option_name} stands before the command\nhint: gossamer {error.option_name} ... crawl ..."
    return f"error: {text}\nhint: {error.ctx.command_path} --help"
