"""`offpath completion SHELL`: a completion script for bash, zsh or fish, made from the commands and their flags.

The script is static: it contains this release's words and flags, and starts nothing when a user presses Tab.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, field
from typing import Final

from offpath.cli.main import Commands, parser_of

SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = ("FILE", "PATH", "JOURNAL", "TOPOLOGY")
"""Parts of the metavars that stand for files."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a flag or of a positional argument: one of ``words``, a file, a folder, or anything."""

    words: tuple[str, ...] = ()
    is_file: bool = False
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with its spellings; ``value`` is None if it takes none."""

    names: tuple[str, ...]
    text: str
    value: Value | None


@dataclass(slots=True)
class Node:
    """A position in a command line: the words, flags and arguments that can follow."""

    words: dict[str, str] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)

    @property
    def choices(self) -> list[str]:
        """All words that can follow."""
        return [*self.words, *(word for value in self.arguments for word in value.words)]

    @property
    def takes_files(self) -> bool:
        """Whether a file's name can follow."""
        return any(value.is_file for value in self.arguments)


Nodes = dict[tuple[str, ...], Node]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def main(arguments: argparse.Namespace) -> int:
    """Print the script."""
    write = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell]
    print(write(nodes(arguments.commands)), end="")
    return 0


def nodes(commands: Commands) -> Nodes:
    """All positions, by the words before them. A command without its extra installed has no flags."""
    found: Nodes = {}
    for command in commands:
        try:
            parser = parser_of(command, commands)
        except ImportError:
            parser = parser_of(None, commands)
        for depth in range(len(command) + 1):
            node = found.setdefault(command[:depth], Node())
            below = _read(parser, node)
            if depth < len(command) and below is not None:
                parser = below[command[depth]]
    return found


def _read(parser: argparse.ArgumentParser, node: Node) -> dict[str, argparse.ArgumentParser] | None:
    """Add ``parser``'s words and flags to ``node``. Returns the parsers of its words, if any."""
    below = None
    known = {name for flag in node.flags for name in flag.names}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            node.words |= {each.dest: each.help or "" for each in action._choices_actions}
        elif not action.option_strings:
            if (value := _value(action)) not in node.arguments:
                node.arguments.append(value)
        elif not known.issuperset(action.option_strings) and action.help != argparse.SUPPRESS:
            text = (action.help or "").split(";")[0].split("(")[0].split(":")[0].strip().replace("%%", "%")
            node.flags.append(Flag(tuple(action.option_strings), text, None if action.nargs == 0 else _value(action)))
    return below


def _value(action: argparse.Action) -> Value:
    shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return Value(
        tuple(str(choice) for choice in action.choices or ()),
        is_file=not action.choices and any(each in shown for each in _FILES),
        is_folder=shown == "DIR",
    )


def _steps(tree: Nodes) -> str:
    """A pattern of WORDS/WORD for each word that leads from one position to the next."""
    return "|".join(f"{shlex.quote(' '.join(at[:-1]) + '/' + at[-1])}" for at in tree if at)


def _before(tree: Nodes, kind: str) -> dict[str, str]:
    """The flags that take a value of one kind: a pattern of WORDS FLAG for each, by the words to choose from."""
    found: dict[str, list[str]] = {}
    for at, node in tree.items():
        for flag in node.flags:
            if (value := flag.value) is None:
                continue
            is_kind = {"file": value.is_file, "folder": value.is_folder, "choice": bool(value.words)}
            is_kind["any"] = not any(is_kind.values())
            if is_kind[kind]:
                patterns = found.setdefault(" ".join(value.words), [])
                patterns += [shlex.quote(f"{' '.join(at)} {name}") for name in flag.names]
    return {words: "|".join(patterns) for words, patterns in found.items()}


def bash(tree: Nodes) -> str:
    """For `source <(offpath completion bash)`, or a file in the folder of bash-completion."""
    lines = [
        "# bash completion of offpath, made by `offpath completion bash`",
        "_offpath() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} at= words= flags= files= i",
        '    [[ $cur == "=" ]] && cur=',
        '    [[ $prev == "=" ]] && prev=${COMP_WORDS[COMP_CWORD - 2]}',
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        case "$at/${COMP_WORDS[i]}" in',
        f'            {_steps(tree)}) at="${{at:+$at }}${{COMP_WORDS[i]}}" ;;',
        "        esac",
        "    done",
        '    case "$at $prev" in',
    ]
    reply = 'mapfile -t COMPREPLY < <(compgen {} -- "$cur"); return ;;'
    names = "compopt -o filenames 2> /dev/null; "
    lines += [f"        {each}) {names}{reply.format('-f')}" for each in _before(tree, "file").values()]
    lines += [f"        {each}) {names}{reply.format('-d')}" for each in _before(tree, "folder").values()]
    for words, each in _before(tree, "choice").items():
        lines.append(f"        {each}) {reply.format('-W ' + shlex.quote(words))}")
    lines += [f"        {each}) COMPREPLY=(); return ;;" for each in _before(tree, "any").values()]
    lines += ["    esac", "    case $at in"]
    for at, node in tree.items():
        flags = " ".join(name for flag in node.flags for name in flag.names)
        files = "; files=1" if node.takes_files else ""
        words = shlex.quote(" ".join(node.choices))
        lines.append(f"        {shlex.quote(' '.join(at))}) words={words}; flags={shlex.quote(flags)}{files} ;;")
    lines += [
        "    esac",
        "    if [[ $cur == -* ]]; then",
        '        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")',
        "    elif [[ $files ]]; then",
        f'        {names}mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur"; compgen -f -- "$cur")',
        "    else",
        '        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")',
        "    fi",
        "}",
        "complete -F _offpath offpath",
    ]
    return "\n".join(lines) + "\n"


def zsh(tree: Nodes) -> str:
    """For a file `_offpath` in a folder of fpath, or `source <(offpath completion zsh)` after compinit."""

    def described(name: str, text: str) -> str:
        return shlex.quote(f"{name}:{text}" if text else name)

    lines = [
        "#compdef offpath",
        "# zsh completion of offpath, made by `offpath completion zsh`",
        "_offpath() {",
        "    local at= files=",
        "    local -a choices flags",
        "    local -i i",
        "    for ((i = 2; i < CURRENT; i++)); do",
        '        case "$at/${words[i]}" in',
        f'            ({_steps(tree)}) at="${{at:+$at }}${{words[i]}}" ;;',
        "        esac",
        "    done",
        '    case "$at ${words[CURRENT-1]}" in',
    ]
    lines += [f"        ({each}) _files; return ;;" for each in _before(tree, "file").values()]
    lines += [f"        ({each}) _files -/; return ;;" for each in _before(tree, "folder").values()]
    lines += [f"        ({each}) compadd -- {words}; return ;;" for words, each in _before(tree, "choice").items()]
    lines += [f"        ({each}) return ;;" for each in _before(tree, "any").values()]
    lines += ["    esac", "    case $at in"]
    for at, node in tree.items():
        known = [described(word, node.words.get(word, "").replace(":", "")) for word in node.choices]
        flags = [described(name, flag.text) for flag in node.flags for name in flag.names]
        files = "; files=1" if node.takes_files else ""
        lines.append(f"        ({shlex.quote(' '.join(at))})")
        lines.append(f"            choices=({' '.join(known)})")
        lines.append(f"            flags=({' '.join(flags)}){files} ;;")
    lines += [
        "    esac",
        "    if [[ ${words[CURRENT]} == -* ]]; then",
        "        _describe -o flag flags",
        "    else",
        "        (( $#choices )) && _describe command choices",
        "        [[ -n $files ]] && _files",
        "        return 0",
        "    fi",
        "}",
        'if [[ "${funcstack[1]}" == _offpath ]]; then _offpath "$@"; else compdef _offpath offpath; fi',
    ]
    return "\n".join(lines) + "\n"


def fish(tree: Nodes) -> str:
    """For `offpath completion fish | source`, or a file offpath.fish in fish's folder of completions."""

    def quote(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    steps = " ".join(quote(" ".join(at[:-1]) + "/" + at[-1]) for at in tree if at)
    lines = [
        "# fish completion of offpath, made by `offpath completion fish`",
        "function __offpath_at",
        "    set -l typed (commandline -opc)",
        "    set -e typed[1]",
        "    set -l at ''",
        "    for word in $typed",
        '        switch "$at/$word"',
        f"            case {steps}",
        '                set at (string trim -- "$at $word")',
        "        end",
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
        "complete -c offpath -f",
    ]
    for at, node in tree.items():
        start = f"complete -c offpath -n {quote('__offpath_at ' + quote(' '.join(at)))}"
        lines += [f"{start} -a {quote(word)} -d {quote(node.words.get(word, ''))}" for word in node.choices]
        if node.takes_files:
            lines.append(f"{start} -F")
        for flag in node.flags:
            spelled = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
            lines.append(f"{start} {spelled} {_fish_value(flag.value)}-d {quote(flag.text)}".rstrip())
    return "\n".join(lines) + "\n"


def _fish_value(value: Value | None) -> str:
    if value is None:
        return ""
    if value.is_file:
        return "-r -F "
    if value.is_folder:
        return "-x -a '(__fish_complete_directories)' "
    return f"-x -a '{' '.join(value.words)}' " if value.words else "-x "
