"""`offpath inc explain NAME`: why each composite has its implementation, each task its place, and what waits."""

from __future__ import annotations

import argparse

from offpath.cli import admin_client, inc_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the request's name")


def main(arguments: argparse.Namespace) -> int:
    """Print the reasons."""
    found = inc_client.shown(arguments.name, arguments.runtime_dir)
    inc_client.print_it(found, is_json=arguments.json, is_explained=True)
    return 0
