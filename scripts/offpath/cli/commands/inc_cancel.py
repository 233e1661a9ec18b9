"""`offpath inc cancel NAME`: ends a request for servers and switches."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import inc_admin
from offpath.cli import admin_client, inc_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the request's name")


def main(arguments: argparse.Namespace) -> int:
    """Its tasks are stopped; this returns before they have ended."""
    request = admin_client.request(inc_admin.CancelRequest, name=arguments.name)
    with inc_client.client(arguments.runtime_dir) as here:
        inc_client.print_it(here.query(request, inc_admin.Shown), is_json=arguments.json)
    return 0
