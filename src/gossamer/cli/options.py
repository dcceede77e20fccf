"""Command-line options made from the settings, help in sections, and shell completion."""

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
_PAIRS = {"extract": "NAME=SELECTOR", "headers": "NAME=VALUE", "regions": "NAME=PATTERN,..."}
_FLAGS = {
    "headers": "--header", "robots": "--robots/--no-robots", "nofollow": "--nofollow/--no-nofollow",
    "trail": "--trail/--no-trail",
}  # fmt: skip


def settings_options(command: Command) -> Command:
    """Give a command one option for every setting; those that are not used arrive as None or ()."""
    for name in reversed(FIELDS):
        if name not in _FILE_ONLY:
            command = _option(name)(command)
    return command


def some_settings(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of these settings only."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _option(name)(command)
        return command

    return decorate


def region_option(command: Command) -> Command:
    """The region of the workers that a command starts: theirs, and no setting of the job."""
    option = click.option(
        "--region",
        default="",
        envvar="GOSSAMER_REGION",
        callback=lambda _context, _option, value: check_region(value) if value else "",
        help="Region of this machine's workers: they take only its sites, and those of no region.",
    )
    return option(command)


def own_results_option(command: Command) -> Command:
    """Let a machine store in a folder of its own: of the machine, and no setting of the job."""
    option = click.option(
        "--own-results",
        is_flag=True,
        envvar="GOSSAMER_OWN_RESULTS",
        help="Store in this machine's own folder if the job's is not here; gather its segments yourself.",
    )
    return option(command)


def notice_options(command: Command) -> Command:
    """Whom to tell how a run goes: of the command and not of the job, since a command must never come from a store."""
    options = (
        click.option(
            "--notify",
            multiple=True,
            metavar="URL|exec:COMMAND",
            help="Tell a web hook, or a command, of the end, a stall, many errors.",
        ),
        click.option(
            "--stalled-after",
            type=click.FloatRange(1),
            default=600.0,
            help="With --notify: seconds without a page that are a stall.  [default: 600]",
        ),
        click.option(
            "--errors-above",
            type=click.FloatRange(0, 1),
            default=0.5,
            help="With --notify: the share of failures that are many.  [default: 0.5]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def shards_option(help_text: str) -> Callable[[Command], Command]:
    """The part of a job's shards that a command is about."""
    return click.option(
        "--shards",
        default="",
        metavar="A-B/N",
        envvar="GOSSAMER_SHARDS",
        callback=lambda _context, _option, value: str(parse_part(value)) if value else "",
        help=help_text,
    )


def as_arguments(values: Mapping[str, Any]) -> list[str]:
    """Settings as the words that say them on the command line."""
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
    """The settings that were set on the command line."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in FIELDS or value is None or value == ():
            continue
        if name == "recrawl" and "://" in value:
            raise ConfigError(f"--recrawl {value}: that is a URL", hint="give the URL first, or write --recrawl=table")
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
    return click.option(flag, name, **extra)


def _unwrap(kind: Any) -> tuple[Any, str]:
    """The bare type of a field, and its description."""
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
            flag, lacks = _FLAGS.get(name, f"--{name}"), "no name before the '='" if equals else "no '='"
            raise ConfigError(f"{flag} {value!r} has {lacks}", hint=f"write {_PAIRS[name]}")
        pairs[key.strip()] = text.strip()
    return pairs


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


SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_GOSSAMER_COMPLETE"
_JOBS, _MOST = Path("crawls"), 200


def job_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The jobs under `crawls/` whose names begin so, and then folders; those of a fleet are not asked for."""
    found: list[CompletionItem] = []
    if "/" not in incomplete and _JOBS.is_dir():
        with os.scandir(_JOBS) as entries:
            names = sorted(each.name for each in entries if each.name.startswith(incomplete) and each.is_dir())
        found = [CompletionItem(name) for name in names[:_MOST]]
    return found or [CompletionItem(incomplete, type="dir")]


@click.command(
    epilog="""\b
gossamer completion bash >~/.bash_gossamer       to read in ~/.bashrc
gossamer completion zsh >~/.zsh/_gossamer        a folder of your $fpath
gossamer completion fish >~/.config/fish/completions/gossamer.fish

It holds from the next shell on. bash has to be 4.4 or newer; that of macOS is not."""
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="[bash|zsh|fish]", required=False)
def completion(shell: str | None) -> int:
    """Print what makes your shell complete commands, options, their values, and the jobs in `crawls/`.

    Without a word it is for the shell that $SHELL names.
    """
    from gossamer.cli import gossamer

    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise ConfigError(f"no completion for {name or 'a shell without a name'}", hint="name one: bash, zsh or fish")
    text = kind(gossamer, {}, "gossamer", VARIABLE).source()
    # In a folder of $fpath, click's question is true for the first TAB of a shell only: the second would do nothing.
    click.echo(text.replace("$zsh_eval_context[-1] == loadautofunc", "$funcstack[1] == _gossamer"))
    return Exit.OK
