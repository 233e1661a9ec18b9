"""`offpath errors [CODE]`: prints a code's cause and fix; without a code, all of them."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from offpath.cli.errors.registry import Entry, families, look_up, registered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("code", nargs="?", metavar="CODE", help="as printed, case-insensitive; FAMILY.CODE selects one")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--json", action="store_true", help="one JSON document on stdout")
    style.add_argument("--markdown", action="store_true", help="print docs/errors.md")


def main(arguments: argparse.Namespace) -> int:
    """Look up; 1 if the code is unknown."""
    found = look_up(arguments.code) if arguments.code else list(registered().values())
    if not found:
        print(f"offpath: no error has the code {arguments.code!r}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([asdict(entry) for entry in found], ensure_ascii=False))
    elif arguments.markdown:
        print(markdown(), end="")
    else:
        print("\n".join(_text(entry) for entry in found))
    return 0


def _text(entry: Entry) -> str:
    return f"{entry.family}.{entry.code}\n  cause: {entry.cause}\n  do:    {entry.fix}"


def markdown() -> str:
    """The whole registry as a page."""
    parts = [
        "# Errors\n",
        "Every code that offpath reports, with cause and fix. Made by `offpath errors --markdown`: do not edit.\n",
    ]
    for family, text in families().items():
        parts.append(f"## {family}\n\n{text}\n")
        rows = [entry for entry in registered().values() if entry.family == family]
        table = "\n".join(f"| `{_cell(e.code)}` | {_cell(e.cause)} | {_cell(e.fix)} |" for e in rows)
        parts.append(f"| code | cause | do |\n| --- | --- | --- |\n{table}\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
