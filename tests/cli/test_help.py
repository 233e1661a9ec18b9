"""`--help` says what every group and command is for and shows examples that can be typed; it has colours for nobody."""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.cli import host
from offpath.cli.examples import EXAMPLES, GROUPS
from offpath.cli.main import COMMANDS, Commands, parser_of

from ..support.command import offpath
from ..support.sources import ROOT
from ..support.typed import invocations, rejection

GROUP_WORDS = sorted({words[:1] for words in COMMANDS if len(words) > 1})
PLACES = [*GROUP_WORDS, *COMMANDS]


def parser_at(words: tuple[str, ...]) -> argparse.ArgumentParser:
    """The parser of a group or command."""
    below = next(command for command in COMMANDS if command[: len(words)] == words)
    parser = parser_of(words if words in COMMANDS else below)
    for word in words:
        (places,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        parser = places.choices[word]
    return parser


def test_every_group_says_what_it_is_for() -> None:
    assert set(GROUPS) == {words[0] for words in GROUP_WORDS if words not in COMMANDS}
    shown = offpath("--help").out
    for group, purpose in GROUPS.items():
        assert re.search(rf"^    {group} +{re.escape(purpose.split(',')[0])}", shown, re.M), group
    assert "…" not in shown


@pytest.mark.parametrize("words", PLACES, ids=" ".join)
def test_every_group_and_command_has_help_and_an_example(words: tuple[str, ...]) -> None:
    shown = parser_at(words).format_help()
    assert shown.startswith(f"usage: offpath {' '.join(words)} ")
    text, _, examples = shown.partition("\nexamples:\n")
    described = text.split("\n\n")[1]
    assert 10 < len(described) < 120
    assert not described.endswith(".")
    assert [line for line in examples.splitlines() if line.startswith(f"  offpath {' '.join(words)}")]


@pytest.mark.parametrize("words", PLACES, ids=" ".join)
def test_every_flag_of_a_command_says_what_it_does(words: tuple[str, ...]) -> None:
    silent = [
        " ".join(action.option_strings) for action in parser_at(words)._actions
        if action.option_strings and action.help is None
    ]  # fmt: skip
    assert silent == []


def parse(line: str, commands: Commands) -> None:
    """Its words and flags are those of a command; nothing is run."""
    (words,) = invocations(line)
    assert rejection(words, commands) is None, line


@pytest.mark.parametrize("line", sorted({line for lines in EXAMPLES.values() for line in lines}))
def test_every_example_can_be_typed(line: str) -> None:
    parse(line, COMMANDS)


@pytest.mark.parametrize("words", host.COMMANDS, ids=" ".join)
def test_every_example_for_hosts_can_be_typed_where_only_their_commands_are(words: tuple[str, ...]) -> None:
    for line in EXAMPLES[words]:
        parse(line, host.COMMANDS)


# -- colours ----------------------------------------------------------------------------------------------------------
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(*words: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-P", "-m", "offpath.cli.main", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: nobody holds the other end any more
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert done.wait() == 0
    return shown.decode()


def test_no_color_means_no_colour_also_on_a_terminal() -> None:
    shown = on_a_terminal("daemon", "--help", NO_COLOR="1")
    assert "examples:" in shown
    assert not COLOUR.search(shown)


def test_what_is_piped_has_no_colour_whatever_the_terminal_can() -> None:
    assert not COLOUR.search(offpath("daemon", "--help").out)


def test_nothing_of_the_command_line_sets_colours_itself() -> None:
    """argparse does from Python 3.14 on, by the rules above."""
    escape = re.compile(r"\\x1b\[[0-9;]*m|\\033\[[0-9;]*m")
    assert [path for path in Path(ROOT / "scripts" / "offpath").rglob("*.py") if escape.search(path.read_text())] == []
