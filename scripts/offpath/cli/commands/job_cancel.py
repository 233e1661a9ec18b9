"""`offpath job cancel NAME`: removes a job's tree and frees its hosts for other jobs."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the job's name")


def main(arguments: argparse.Namespace) -> int:
    """Cancel the job; its processes keep running."""
    request = admin_client.request(ina_admin.CancelRequest, job=arguments.name)
    with controller_client.client(arguments.runtime_dir) as client:
        found = client.query(request, ina_admin.InaJob)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    print(controller_client.job_text(found.job))
    return 0
