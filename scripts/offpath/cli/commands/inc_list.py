"""`offpath inc list`: lists requests for servers and switches."""

from __future__ import annotations

import argparse

from offpath.cli import admin_client, inc_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("--ended", action="store_true", help="those that have ended too")


def main(arguments: argparse.Namespace) -> int:
    """In the order of submission."""
    found = list(inc_client.all_requests(arguments.runtime_dir, is_ended=arguments.ended))
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in found])
    else:
        print(admin_client.table([inc_client.row(each) for each in found], inc_client.HEAD))
    return 0
