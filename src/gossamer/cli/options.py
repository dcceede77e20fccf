"""Command-line options made from the settings, so that both have one name, one default and one explanation."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
import msgspec

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
