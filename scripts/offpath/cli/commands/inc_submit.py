"""`offpath inc submit FILE`: submits a request for servers and switches to the job manager."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import inc_admin
from offpath.cli import admin_client, inc_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("file", metavar="REQ.toml", help="the request (docs/hire.md)")
    parser.add_argument("--name", metavar="NAME", help="its name, instead of the file's")


def main(arguments: argparse.Namespace) -> int:
    """It is on the job manager's disk when this returns. The same request twice is one."""
    request = inc_client.read(arguments.file)
    if arguments.name is not None:
        request = admin_client.request(inc_admin.SubmitRequest, **{**request.model_dump(), "name": arguments.name})
    with inc_client.client(arguments.runtime_dir) as here:
        inc_client.print_it(here.query(request, inc_admin.Shown), is_json=arguments.json)
    return 0
