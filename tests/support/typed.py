"""`offpath …` as help texts and pages show it: found in bash, and parsed by the command line's parser."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

from offpath.cli.main import COMMANDS, Commands, parsed

_REDIRECTION: Final = re.compile(r"(?<!\S)\d?(?:>>?|<)(?!\()\s*&?[^\s;&|()]+")
_OPERATORS: Final = "();<>|&\n"
_BEFORE_A_COMMAND: Final = {"until", "while", "if", "do", "then", "else", "!", "--", "exec", "time", "{"}
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")


def invocations(code: str) -> list[list[str]]:
    """The words after each `offpath`, also after `./scripts/run` and `--`; without redirections and comments."""
    code = re.sub(r"(^|\s)#[^\n]*", r"\1", code.replace("\\\n", " "))
    lexer = shlex.shlex(_REDIRECTION.sub("", code), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    found: list[list[str]] = []
    starts, taking = True, False
    for token in lexer:
        if set(token) <= set(_OPERATORS):
            starts, taking = True, False
        elif taking:
            found[-1].append(token)
        elif starts and token.rpartition("/")[2] == "offpath":
            found.append([])
            taking = True
        else:
            starts = token in _BEFORE_A_COMMAND or token == "./scripts/run" or bool(starts and _ASSIGNMENT.match(token))
    return found


def rejection(words: list[str], commands: Commands = COMMANDS) -> str | None:
    """Why the command line does not take the words; None: it does. Nothing is run."""
    errors = io.StringIO()
    try:
        with redirect_stderr(errors), redirect_stdout(io.StringIO()):  # --help prints
            parsed(words, commands)
    except SystemExit as ended:
        return errors.getvalue() if ended.code else None
    return None
