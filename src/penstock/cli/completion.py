"""Print a script that completes penstock's commands and options in a shell.

  echo 'source <(penstock completion bash)' >> ~/.bashrc
  echo 'source <(penstock completion zsh)' >> ~/.zshrc      # behind compinit
  penstock completion fish > ~/.config/fish/completions/penstock.fish

After an update, bash and zsh have the new options at once, fish when the file is written again.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.cli.main import COMMANDS
from penstock.cli.parser import Parser


@dataclass(frozen=True)
class _Option:
    names: tuple[str, ...]
    summary: str
    values: tuple[str, ...]
    """What may follow it, where that is one of a few."""
    takes_value: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell that runs the script")


def run(args: argparse.Namespace) -> int:
    print(_SCRIPTS[args.shell](), end="")
    return 0


def _options() -> dict[tuple[str, ...], list[_Option]]:
    """The options of each command."""
    found = {}
    for command in COMMANDS:
        module = importlib.import_module(f"penstock.cli.{command.module}")
        parser = Parser("penstock", "", getattr(module, "RARE", ()))
        module.add_arguments(parser)
        found[command.words] = [
            _Option(
                tuple(action.option_strings),
                (action.help or "").replace("%%", "%"),
                tuple(map(str, action.choices or ())),
                action.nargs != 0,
            )
            for action in parser._actions
            if action.option_strings
        ]
    return found


def _next_words() -> dict[tuple[str, ...], list[str]]:
    """The words that may follow each beginning of a command."""
    found: dict[tuple[str, ...], list[str]] = {}
    for command in COMMANDS:
        for i, word in enumerate(command.words):
            words = found.setdefault(command.words[:i], [])
            if word not in words:
                words.append(word)
    return found


def _bash() -> str:
    options, following = _options(), _next_words()
    known = [(*path, word) for path, words in following.items() for word in words]
    words = "\n".join(
        f"        {shlex.quote(' '.join(path))}) options={shlex.quote(' '.join(after))}; any=1 ;;"
        for path, after in following.items()
    )
    names = "\n".join(
        f"        {shlex.quote(' '.join(path))}) options={shlex.quote(_names(each))} ;;"
        for path, each in options.items()
    )
    values = "\n".join(
        f"        {shlex.quote(' '.join((*path, name)))}) options={shlex.quote(' '.join(o.values))}"
        "; any=1 ;;"
        for path, each in options.items()
        for o in each
        if o.values
        for name in o.names
    )
    return f"""\
_penstock() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="" next options="--help --version" any="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        next="$command${{command:+ }}${{COMP_WORDS[i]}}"
        case "$next" in
        {" | ".join(shlex.quote(" ".join(path)) for path in known)}) command="$next" ;;
        *) break ;;
        esac
    done
    case "$command" in
{words}
{names}
    esac
    case "$command $before" in
{values}
    esac
    COMPREPLY=()
    if [[ -n "$any" || "$current" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    fi
}}
complete -o default -F _penstock penstock
"""


def _zsh() -> str:
    return f"autoload -Uz bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = []
    summaries = {command.words: command.summary for command in COMMANDS}
    for path, words in _next_words().items():
        seen = f"__fish_seen_subcommand_from {path[-1]}" if path else "__fish_use_subcommand"
        for word in words:
            unseen = f"; and not __fish_seen_subcommand_from {' '.join(words)}" if path else ""
            summary = summaries.get((*path, word), "")
            lines.append(_fish_line(seen + unseen, f"-f -a {word}", summary))
    for path, options in _options().items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path)
        for option in options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            if option.values:
                names += f" -x -a {shlex.quote(' '.join(option.values))}"
            elif option.takes_value:
                names += " -r"
            lines.append(_fish_line(seen, names, option.summary))
    return "\n".join(lines) + "\n"


def _fish_line(condition: str, what: str, summary: str) -> str:
    summary = summary.partition(". ")[0].replace("\\", "\\\\").replace("'", "\\'")
    described = f" -d '{summary}'" if summary else ""
    return f"complete -c penstock -n '{condition}' {what}{described}"


def _names(options: Sequence[_Option]) -> str:
    return " ".join(name for option in options for name in option.names)


_SCRIPTS: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
