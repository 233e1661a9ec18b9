"""`offpath inc show NAME`: prints a request with its tasks and their addresses."""

from __future__ import annotations

import argparse

from offpath.cli import admin_client, inc_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the request's name")


def main(arguments: argparse.Namespace) -> int:
    """Print it."""
    inc_client.print_it(inc_client.shown(arguments.name, arguments.runtime_dir), is_json=arguments.json)
    return 0
