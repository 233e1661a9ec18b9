"""`offpath config show FILE`: prints every value of a configuration, and with ``--origin`` its source."""

from __future__ import annotations

import argparse
import json
import os
import sys

from offpath.cli.commands.config_check import add_overrides
from offpath.dpu_daemon.config import ConfigError
from offpath.dpu_daemon.config.sources import process_sources, values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("file", metavar="FILE", help="TOML configuration; environment variables override it")
    add_overrides(parser)
    parser.add_argument("--origin", action="store_true", help="also print the source of each value")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 78 (EX_CONFIG). Prints the names of token files, never their content."""
    try:
        loaded = process_sources(arguments.file, arguments.overrides).read()
    except ConfigError as fault:
        print(f"offpath: {fault}", file=sys.stderr)
        return os.EX_CONFIG
    rows = [(path, value, str(loaded.origins[path])) for path, value in values(loaded.config)]
    if arguments.json:
        shown = {
            path: {"value": value, "origin": origin} if arguments.origin else value for path, value, origin in rows
        }
        print(json.dumps(shown))
        return 0
    width = max(len(f"{path} = {json.dumps(value)}") for path, value, _ in rows)
    for path, value, origin in rows:
        line = f"{path} = {json.dumps(value)}"
        print(f"{line:<{width}}  # {origin}" if arguments.origin else line)
    return 0
