"""Completion for shells: the command that prints it, and the names of jobs that it knows."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from gossamer.cli.exits import Exit
from gossamer.errors import ConfigError

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
