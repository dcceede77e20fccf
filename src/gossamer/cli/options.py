"""Command-line options generated from the settings, help in sections, and shell completion."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
import msgspec
from click.shell_completion import CompletionItem, get_completion_class

from gossamer.cli.console import Exit
from gossamer.errors import ConfigError
from gossamer.frontier.placement import check_region, parse_part
from gossamer.settings import FIELDS

Command = TypeVar("Command", bound=Callable[..., Any])
_FILE_ONLY = frozenset(("sites", "header_sets", "results_id"))
_PAIRS = {
    "spider_args": "NAME=VALUE",
    "extract": "NAME=SELECTOR",
    "headers": "NAME=VALUE",
    "regions": "NAME=PATTERN,...",
}
_FLAGS = {
    "spider_args": "--spider-arg",
    "headers": "--header", "robots": "--robots/--no-robots", "nofollow": "--nofollow/--no-nofollow",
    "trail": "--trail/--no-trail",
}  # fmt: skip

_SHORT = {"spider_args": ("-a",)}


def settings_options(command: Command) -> Command:
    """Add an option for every setting to a command; options that are not given are None or ()."""
    for name in reversed(FIELDS):
        if name not in _FILE_ONLY:
            command = _option(name)(command)
    return command


def some_settings(*names: str) -> Callable[[Command], Command]:
    """Add the options of these settings to a command."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _option(name)(command)
        return command

    return decorate


def region_option(command: Command) -> Command:
    """Add `--region`: a property of the workers that the command starts, not a setting of the job."""
    option = click.option(
        "--region",
        default="",
        envvar="GOSSAMER_REGION",
        callback=lambda _context, _option, value: check_region(value) if value else "",
        help="Region of this machine's workers; they crawl its sites and those without a region.",
    )
    return option(command)


def frontier_option(command: Command) -> Command:
    """Add `--frontier`, which locates the job of a fleet."""
    option = click.option(
        "--frontier",
        default="",
        metavar="URL",
        envvar="GOSSAMER_FRONTIER",
        help="Address of the frontier, for a job of a fleet.",
    )
    return option(command)


def own_results_option(command: Command) -> Command:
    """Add `--own-results`: a property of the machine, not a setting of the job."""
    option = click.option(
        "--own-results",
        is_flag=True,
        envvar="GOSSAMER_OWN_RESULTS",
        help="Store results locally if the job's results folder is not mounted; collect the segments yourself.",
    )
    return option(command)


def notice_options(command: Command) -> Command:
    """Add the notification options. They belong to the command, not to the job: a frontier must never supply a command
    to run."""
    options = (
        click.option(
            "--notify",
            multiple=True,
            metavar="URL|exec:COMMAND",
            help="Webhook or command to notify when a job ends, stalls, or has many errors.",
        ),
        click.option(
            "--stalled-after",
            type=click.FloatRange(1),
            default=600.0,
            help="With --notify: seconds without a page before a job counts as stalled.  [default: 600]",
        ),
        click.option(
            "--errors-above",
            type=click.FloatRange(0, 1),
            default=0.5,
            help="With --notify: share of failed pages above which to notify.  [default: 0.5]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def shards_option(help_text: str) -> Callable[[Command], Command]:
    """An option for a range of a job's shards."""
    return click.option(
        "--shards",
        default="",
        metavar="A-B/N",
        envvar="GOSSAMER_SHARDS",
        callback=lambda _context, _option, value: str(parse_part(value)) if value else "",
        help=help_text,
    )


def as_arguments(values: Mapping[str, Any]) -> list[str]:
    """Settings as command-line arguments."""
    words: list[str] = []
    for name, value in values.items():
        flag, _, negative = _FLAGS.get(name, "--" + name.replace("_", "-")).partition("/")
        if isinstance(value, bool):
            words += [flag] if value else [negative] if negative else []
        elif isinstance(value, Mapping):
            words += [word for key, text in value.items() for word in (flag, f"{key}={_joined(text)}")]
        elif isinstance(value, tuple | list):
            words += [word for text in value for word in (flag, str(text))]
        else:
            words += [flag, str(value)]
    return words


def _joined(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the command line sets."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in FIELDS or value is None or value == ():
            continue
        if name == "recrawl" and "://" in value:
            raise ConfigError(
                f"--recrawl {value}: expected a mode, got a URL", hint="put the URL first, or write --recrawl=table"
            )
        values[name] = _pairs(name, value) if name in _PAIRS else value
        if name == "regions":
            values[name] = {region: text.replace(" ", "").split(",") for region, text in values[name].items()}
    return values


def _option(name: str) -> Callable[[Command], Command]:
    field = FIELDS[name]
    kind, description = _unwrap(field.type)
    default = field.default
    shown = (
        ""
        if default in (None, "", msgspec.NODEFAULT, False, True) or isinstance(default, tuple)
        else f"  [default: {default}]"
    )
    flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
    extra: dict[str, Any] = {"help": description + shown, "default": None}
    if kind is bool:
        extra["is_flag"] = True
    elif get_origin(kind) is Literal:
        extra["type"] = click.Choice(list(get_args(kind)))
    elif get_origin(kind) in (tuple, dict):
        extra.update(multiple=True, metavar=_PAIRS.get(name, "TEXT"))
    elif name == "recrawl":
        extra.update(is_flag=False, flag_value="table", metavar="[table|adaptive|budget=N/d]")
    else:
        extra["type"] = kind
    return click.option(*_SHORT.get(name, ()), flag, name, **extra)


def _unwrap(kind: Any) -> tuple[Any, str]:
    """The type of a field without annotations and None, and its description."""
    description = ""
    while True:
        if hasattr(kind, "__metadata__"):
            description = description or next((meta.description for meta in kind.__metadata__ if meta.description), "")
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, types.UnionType):
            kind = next(part for part in get_args(kind) if part is not type(None))
        else:
            return kind, description


def _pairs(name: str, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            flag, missing = _FLAGS.get(name, f"--{name}"), "name before the '='" if equals else "'='"
            raise ConfigError(f"{flag} {value!r}: missing {missing}", hint=f"write {_PAIRS[name]}")
        pairs[key.strip()] = text.strip()
    return pairs


SECTIONS = {
    "spider": "Extraction and output",
    "max_pages": "Scope and limits of the crawl",
    "delay": "Speed and concurrency",
    "robots": "Robots.txt, headers, and network",
    "connect_seconds": "Limits per page",
    "browser_path": "Browser",
    "lease_seconds": "Leases, commits, and retries",
    "recrawl": "Continuous crawling",
}
"""Setting -> the heading that precedes it in the help; settings declared after it are under the same heading."""


def section_of() -> dict[str, str]:
    """Map each setting to its heading."""
    found, heading = {}, ""
    for name in FIELDS:
        heading = SECTIONS.get(name, heading)
        found[name] = heading
    return found


def options_by_section(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """Map headings to options; the command's own options come first, under an empty heading."""
    headings = section_of()
    found: dict[str, list[click.Option]] = {"": [], **{heading: [] for heading in SECTIONS.values()}}
    for option in command.get_params(context):
        if isinstance(option, click.Option) and not option.hidden:
            found[headings.get(option.name or "", "")].append(option)
    return {heading: options for heading, options in found.items() if options}


class Sectioned(click.Command):
    """A command with an option for every setting; the help lists its own options first, then the settings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, options in options_by_section(self, ctx).items():
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            with formatter.section(heading or "Options"):
                formatter.write_dl(records)


SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_GOSSAMER_COMPLETE"
_JOBS, _MOST = Path("crawls"), 200


def job_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of jobs in `crawls/`, or else folders; a fleet's frontier is not queried."""
    found: list[CompletionItem] = []
    if "/" not in incomplete and _JOBS.is_dir():
        with os.scandir(_JOBS) as entries:
            names = sorted(each.name for each in entries if each.name.startswith(incomplete) and each.is_dir())
        found = [CompletionItem(name) for name in names[:_MOST]]
    return found or [CompletionItem(incomplete, type="dir")]


@click.command(
    epilog="""\b
gossamer completion bash >~/.bash_gossamer       source it in ~/.bashrc
gossamer completion zsh >~/.zsh/_gossamer        in a folder of your $fpath
gossamer completion fish >~/.config/fish/completions/gossamer.fish

Completion works in new shells. bash must be 4.4 or newer; the one that ships with macOS is older."""
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="[bash|zsh|fish]", required=False)
def completion(shell: str | None) -> int:
    """Print the shell completion script, for commands, options, their values, and the jobs in `crawls/`.

    The default is the shell in $SHELL.
    """
    from gossamer.cli import gossamer

    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise ConfigError(f"no completion for {name or 'an unknown shell'}", hint="supported: bash, zsh, fish")
    text = kind(gossamer, {}, "gossamer", VARIABLE).source()
    # In a folder of $fpath, click's condition is true only for the first TAB of a shell: the second would do nothing.
    click.echo(text.replace("$zsh_eval_context[-1] == loadautofunc", "$funcstack[1] == _gossamer"))
    return Exit.OK
