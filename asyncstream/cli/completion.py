"""
`asyncstream completion SHELL`: a script by which a shell completes commands, options and their values.

It is made of what the parser knows, so it cannot miss an option. What a value is, is told by its metavar: a
directory for DIR, a file for those in `_FILES`; of any other one nothing can be guessed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ("SHELLS", "add_completion_command", "script")

SHELLS = ("bash", "zsh", "fish")

_FILES = frozenset({"FILE", "IN", "OUT", "PATH", "STORE"})

Value: TypeAlias = Literal["directory", "file", "other"] | tuple[str, ...]
"""What stands for a value: a path, something else, or one of these words."""


@dataclass(frozen=True)
class _Option:
    names: tuple[str, ...]
    help: str
    value: Value | None


@dataclass(frozen=True)
class _Command:
    """
    A command.

    Attributes:
        words: that call it; none for the program itself.
        help: what it does.
        options: that it has.
        values: those that stand for themselves.
        commands: that follow.
    """

    words: tuple[str, ...]
    help: str
    options: tuple[_Option, ...]
    values: tuple[Value, ...]
    commands: tuple[str, ...]


def add_completion_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `completion` to the commands of a parser, with the options that every command has."""
    completion = commands.add_parser(
        "completion",
        parents=[shared],
        help="print a script that makes a shell complete this command",
        epilog='bash and zsh: put eval "$(asyncstream completion bash)", or zsh, into ~/.bashrc or ~/.zshrc; '
        "fish: asyncstream completion fish > ~/.config/fish/completions/asyncstream.fish",
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(do=_print)


def _print(options: argparse.Namespace) -> int:
    from asyncstream.cli.commands import parser  # which is made with this command in it

    print(script(parser(), options.shell), end="")
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell, one of `SHELLS`, by the parser of the whole program."""
    commands = list(_commands(parser, (), parser.description or ""))
    if shell == "fish":
        return _fish(parser.prog, commands)
    return _bash(parser.prog, commands, _ZSH if shell == "zsh" else "")


def _commands(parser: argparse.ArgumentParser, words: tuple[str, ...], help: str) -> Iterator[_Command]:
    options, values, below = [], [], []
    named: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            named = action.choices
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below = [found for name in named for found in _commands(named[name], (*words, name), texts[name])]
        elif action.option_strings:
            takes = None if action.nargs == 0 else _value(action)
            options.append(_Option(tuple(action.option_strings), action.help or "", takes))
        else:
            values.append(_value(action))
    yield _Command(words, help, tuple(options), tuple(values), tuple(named))
    yield from below


def _value(action: argparse.Action) -> Value:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.metavar == "DIR":
        return "directory"
    return "file" if action.metavar in _FILES else "other"


# ------------------------------------------------------------------ bash, and zsh which can do as bash does


_ZSH = """(( $+functions[compdef] )) || { autoload -U compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""


def _bash(program: str, commands: list[_Command], before: str) -> str:
    known = "|".join(f'"{" ".join(command.words)}"' for command in commands if command.words)
    values, words = [], []
    for command in commands:
        path = " ".join(command.words)
        for option in command.options:
            if option.value is not None:
                patterns = "|".join(f'"{path}>{name}"' for name in option.names)
                values.append(f"        {patterns}) {_offer(option.value)} return ;;")
        flags = " ".join(name for option in command.options for name in option.names)
        own = "; ".join(_offer(value) for value in dict.fromkeys(command.values) if value != "other")
        if command.commands:
            own = _offer(command.commands)
        words.append(f'        "{path}") flags="{flags}"; {own or ":"} ;;')
    return f"""{before}_{program}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command="" flags="" word
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
        case "${{command:+$command }}$word" in
        {known}) command="${{command:+$command }}$word" ;;
        esac
    done
    case "$command>$prev" in
{chr(10).join(values)}
    esac
    case "$command" in
{chr(10).join(words)}
    esac
    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "$flags" -- "$cur")); fi
}}
complete -o filenames -F _{program} {program}
"""


def _offer(value: Value) -> str:
    """The statement that offers what fits."""
    if value == "other":
        return ""
    how = (
        {"directory": "-d", "file": "-f"}.get(value) if isinstance(value, str) else f'-W "{" ".join(value)}"'
    )
    return f'COMPREPLY=($(compgen {how} -- "$cur"));'


# ------------------------------------------------------------------ fish


def _fish(program: str, commands: list[_Command]) -> str:
    lines = [f"complete -c {program} -f"]
    for command in commands:
        condition = _reached(command)
        for name in command.commands:
            text = next(found.help for found in commands if found.words == (*command.words, name))
            lines.append(f"complete -c {program} {condition} -a {name} -d {_quoted(text)}")
        for option in command.options:
            names = " ".join(
                f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" for name in option.names
            )
            follows = "" if option.value is None else _fish_value(option.value, needs=" -r", alone=" -x")
            lines.append(f"complete -c {program} {condition} {names} -d {_quoted(option.help)}{follows}")
        for value in dict.fromkeys(command.values):
            if value != "other":
                lines.append(f"complete -c {program} {condition}{_fish_value(value)}")
    return "\n".join(lines) + "\n"


def _reached(command: _Command) -> str:
    """The condition under which `command` is the last one that was written."""
    parts = [f"__fish_seen_subcommand_from {word}" for word in command.words]
    if command.commands:
        parts.append(f"not __fish_seen_subcommand_from {' '.join(command.commands)}")
    return f"-n {_quoted('; and '.join(parts))}"


def _fish_value(value: Value, needs: str = "", alone: str = "") -> str:
    """What offers values: `needs` says that one must follow, `alone` the same, and that files do not fit."""
    if isinstance(value, tuple):
        return f"{alone} -a {_quoted(' '.join(value))}"
    if value == "directory":
        return f"{alone} -a '(__fish_complete_directories)'"
    return f"{needs} -F" if value == "file" else alone


def _quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
