"""The command line: data goes to stdout, messages go to stderr, and scripts can rely on the exit codes.

This module does not import the commands, so that the help and shell completion load fast."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import shlex
import sys
from difflib import get_close_matches
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
    """A command: `module:member` under `gossamer`, and a summary of at most 62 characters, which fits 80 columns."""

    place: str
    line: str


CONTENTS = {
    "Crawl": {
        "crawl": CommandEntry("cli.crawl:crawl", "Crawl from one or more URLs; run it again to resume."),
        "try": CommandEntry("cli.trial:trial", "Crawl 20 pages and report scope, robots.txt, and an estimate."),
        "fetch": CommandEntry("cli.fetch:fetch", "Fetch one page as a crawl would."),
        "shell": CommandEntry("cli.fetch:shell", "Open a Python shell on a page."),
        "init": CommandEntry("cli.init:init", "Create a settings file and a first spider."),
        "import": CommandEntry("cli.imports:take", "Import URLs or the state of another crawler."),
    },
    "Monitor and control": {
        "status": CommandEntry("cli.jobs:status", "Show the progress of a job, or list jobs."),
        "pause": CommandEntry("cli.jobs:pause", "Pause a running crawl."),
        "resume": CommandEntry("cli.jobs:resume", "Resume a paused crawl."),
        "stop": CommandEntry("cli.jobs:stop", "Stop a running crawl; it can be resumed."),
        "delete": CommandEntry("cli.jobs:delete", "Delete a job, and with --results its output."),
        "add": CommandEntry("cli.jobs:add", "Add URLs to a running crawl."),
        "why": CommandEntry("cli.inspect:why", "Explain why a URL was or was not fetched."),
        "audit": CommandEntry("cli.inspect:audit", "List every request to a site, with gaps and robots.txt rules."),
        "report": CommandEntry("cli.results:report", "Write an HTML report with charts."),
        "doctor": CommandEntry("cli.inspect:doctor", "Check this machine and suggest fixes."),
        "serve": CommandEntry("cli.serve:serve", "Start the REST API and the dashboard."),
    },
    "Use results": {
        "export": CommandEntry("cli.results:export", "Export pages or items as JSON Lines, CSV, Parquet, WARC, ..."),
        "sql": CommandEntry("cli.results:sql", "Query a job's results with SQL."),
        "diff": CommandEntry("cli.results:diff", "List pages that are new, gone, or changed between two jobs."),
        "replay": CommandEntry("cli.results:replay", "Run a spider over stored pages, without the network."),
    },
    "Fleets": {
        "submit": CommandEntry("cli.fleet:submit", "Create a job on a fleet's frontier."),
        "worker": CommandEntry("cli.crawl:worker", "Join a running crawl as one more worker."),
        "scale": CommandEntry("cli.fleet:scale", "Print how many workers a fleet's job can use."),
        "repair": CommandEntry("cli.fleet:repair", "Requeue stored pages whose records are lost."),
        "spread": CommandEntry("cli.fleet:spread", "Move a job's shards to other servers during the crawl."),
        "compact": CommandEntry("cli.fleet:compact", "Delete the rows of finished URLs of a job in SQL."),
    },
    "Test and plan": {
        "simweb": CommandEntry("cli.lab:simweb", "Serve a simulated web on loopback for test crawls."),
        "simulate": CommandEntry("cli.lab:simulate", "Test the engine in virtual time, with injected faults."),
        "verify": CommandEntry("cli.lab:verify", "Test your frontier and sink: kill workers, check for loss."),
        "bench": CommandEntry("cli.lab:bench", "Benchmark pages and frontiers on this machine."),
        "plan": CommandEntry("cli.plan:plan", "Estimate the machines, storage, and cost of a crawl."),
        "completion": CommandEntry("cli.options:completion", "Print the shell completion script."),
    },
}
"""Heading -> command -> entry, in the order of the help."""

PLACES = {name: entry.place for entries in CONTENTS.values() for name, entry in entries.items()}
"""Command -> `module:member`, in the order of the help."""
LINES = {name: entry.line for entries in CONTENTS.values() for name, entry in entries.items()}
"""Command -> its one-line summary."""

_OS_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "check the file permissions, or choose another path",
    errno.EPERM: "check the file permissions, or choose another path",
    errno.EROFS: "choose a path on a file system that is not read-only",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
    errno.EEXIST: "a file exists where a folder is needed: choose another path",
    errno.EISDIR: "name a file in that folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "free disk space",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
}


class Commands(click.Group):
    """The command group; imports only the command that is called, so that commands start without loading the engine."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and name not in PLACES and not name.startswith("-"):
            _refuse_unknown(name)
        return super().resolve_command(ctx, args)

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


def _refuse_unknown(name: str) -> NoReturn:
    similar = get_close_matches(name.lower(), PLACES, 1)
    hint = f"did you mean: gossamer {similar[0]}" if similar else "gossamer --help lists the commands"
    if "://" in name:
        hint = f"to crawl a URL: gossamer crawl {shlex.quote(name)}"
    raise ConfigError(f"{name!r} is not a command", hint=plain(hint))


def named(name: str) -> click.Command:
    """Import the command of this name."""
    module, member = PLACES[name].split(":")
    command = getattr(import_module(f"gossamer.{module}"), member)
    assert isinstance(command, click.Command)
    return command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`gossamer COMMAND --help` shows options and examples; `man gossamer` is the full manual.",
)
@click.version_option(VERSION, prog_name="gossamer")
@click.option(
    "--log-format",
    envvar=logs.VARIABLES["format"],
    type=click.Choice(logs.FORMATS),
    help="Format of log lines.  [default: text]",
)
@click.option(
    "--log-file", envvar=logs.VARIABLES["file"], help="Log file; log rotation is supported.  [default: stderr]"
)
@click.option(
    "--log-level",
    envvar=logs.VARIABLES["level"],
    help="Log level, such as info or warning,fetch=info.  [default: warning]",
)
def gossamer(log_format: str | None, log_file: str | None, log_level: str | None) -> None:
    """A web crawler that scales from a laptop to a cluster.

    \b
    gossamer try https://example.com     crawl 20 pages and estimate the rest
    gossamer crawl https://example.com   crawl the site; run it again to resume
    gossamer status example.com          show progress, from another terminal
    gossamer export example.com          print its pages as JSON Lines
    """
    for name, value in (("format", log_format), ("file", log_file), ("level", log_level)):
        if value:
            # Child processes inherit the logging options.
            os.environ[logs.VARIABLES[name]] = os.path.abspath(value) if name == "file" else value
    logs.check(log_format or "text", log_level or "")


def main() -> None:
    """Run a command; a user error prints a message and a hint, never a traceback."""
    code = run_command()
    error = flush_output()
    if error is not None and not isinstance(error, BrokenPipeError):
        say(f"error: cannot write to standard output: {error.strerror}")
        code = Exit.ERROR
    _leave(int(code))


def _leave(code: int) -> NoReturn:
    """Exit the process. Threads of the HTTP/2 client may call into an interpreter that is shutting down, which would
    abort it: if that client is loaded, the process exits right after the `atexit` functions."""
    logging.shutdown()
    if "pyreqwest" in sys.modules:
        # Functions registered last are called first, so this one calls the others.
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
        say(_usage_message(error))
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except GossamerError as error:
        say(f"error: {plain(str(error))}")
        if error.hint:
            say(f"hint: {error.hint}")
        return Exit.USAGE if isinstance(error, ConfigError) else Exit.ERROR
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        return Exit.OK
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        say(f"error: {plain(message)}")
        if error.errno in _OS_HINTS:
            say(f"hint: {_OS_HINTS[error.errno]}")
        return Exit.ERROR


def first_cause(group: ExceptionGroup[Exception]) -> Exception:
    """The first expected error in a group; the group itself if it also contains an unexpected one."""
    known, others = group.split((GossamerError, OSError))
    found: Exception = known if known is not None and others is None else group
    while found is not group and isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


def _usage_message(error: click.ClickException) -> str:
    """The message for a wrong command line, with a hint; without a command it is the help itself."""
    text = error.format_message()
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return f"error: {text}"
    if text.startswith("Usage:"):
        return text
    if isinstance(error, click.NoSuchOption) and error.option_name in {
        flag for one in gossamer.params for flag in one.opts
    }:
        return f"error: {error.option_name} goes before the command\nhint: gossamer {error.option_name} ... crawl ..."
    return f"error: {text}\nhint: {error.ctx.command_path} --help"
