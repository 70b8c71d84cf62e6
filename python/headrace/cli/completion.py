"""``headrace completion``: a script that makes a shell complete commands, verbs, options and topics."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.cli._common import subcommands

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXAMPLES: Final = """\
examples:
  headrace completion bash > ~/.local/share/bash-completion/completions/headrace
  headrace completion zsh > "${fpath[1]}/_headrace"
  headrace completion fish > ~/.config/fish/completions/headrace.fish
"""

_BASH: Final = """\
# Made by: headrace completion {shell}
_headrace() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} at="" known="" each i
  for ((i = 1; i < COMP_CWORD; i++)); do
    each=${{COMP_WORDS[i]}}
    case "$at $each" in
{steps}
    esac
  done
  case "$at" in
{words}
  esac
  COMPREPLY=($(compgen -W "$known" -- "$word"))
  # What is no option may be a file.
  [[ ${{#COMPREPLY[@]}} -gt 0 || $word == -* ]] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -F _headrace headrace
"""


class Place(NamedTuple):
    """What may stand behind some words."""

    words: tuple[str, ...]
    inner: dict[str, str]
    """Commands or verbs, with what they are for."""
    options: dict[str, str]
    """Options that begin with two dashes, with what they are for."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Prints it."""
    from headrace.cli import command_line  # noqa: PLC0415  (it loads this module)

    places = list(_places(command_line("*"), ()))
    if options.shell == "fish":
        sys.stdout.write(_fish(places))
    elif options.shell == "zsh":
        # zsh runs the same through its own emulation.
        text = _bash(places, "zsh")
        sys.stdout.write(f"#compdef headrace\nautoload -U +X bashcompinit && bashcompinit\n{text}")
    else:
        sys.stdout.write(_bash(places, "bash"))


def _places(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Place]:
    inner = subcommands(parser)
    options: dict[str, str] = {}
    for action in parser._actions:  # noqa: SLF001  (argparse has no other way to ask)
        if action.help != argparse.SUPPRESS:
            options |= {name: action.help or "" for name in action.option_strings if name.startswith("--")}
    yield Place(words, {name: summary for name, (_, summary) in inner.items()}, options)
    for name, (each, _) in inner.items():
        yield from _places(each, (*words, name))


def _bash(places: list[Place], shell: str) -> str:
    steps, words = [], []
    for place in places:
        at = " ".join(place.words)
        steps += [f'      "{at} {name}") at="{" ".join((*place.words, name))}" ;;' for name in place.inner]
        known = " ".join([*place.inner, *place.options])
        words.append(f'    "{at}") known="{known}" ;;')
    return _BASH.format(shell=shell, steps="\n".join(steps), words="\n".join(words))


def _fish(places: list[Place]) -> str:
    lines = ["# Made by: headrace completion fish", "complete -c headrace -e"]
    for place in places:
        seen = [f"__fish_seen_subcommand_from {word}" for word in place.words]
        none = [f"not __fish_seen_subcommand_from {' '.join(place.inner)}"] if place.inner else []
        condition = "; and ".join([*seen, *none]) or "true"
        for name, what in place.inner.items():
            lines.append(f"complete -c headrace -n {_quoted(condition)} -f -a {name} -d {_quoted(_first(what))}")
        condition = "; and ".join(seen) or "__fish_use_subcommand"
        for name, what in place.options.items():
            lines.append(f"complete -c headrace -n {_quoted(condition)} -l {name[2:]} -d {_quoted(_first(what))}")
    return "\n".join(lines) + "\n"


def _first(text: str) -> str:
    """Up to where the explanation begins."""
    return text.replace("%(const)g", "").replace("%(default)g", "").partition(";")[0].partition(" (")[0]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
