"""`offpath collab explain JOB`: explains why a federated job waits, and who gets the devices that it can use."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)
    parser.add_argument("job", metavar="JOB", help="the job's name")


def main(arguments: argparse.Namespace) -> int:
    """Print the reasons."""
    request = admin_client.request(collab_admin.ExplainRequest, job=arguments.job)
    with collab_client.client(arguments.runtime_dir) as client:
        found = client.query(request, collab_admin.Explanation)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    print(collab_client.text(found.job))
    print(f"  {found.where}")
    for reason in found.reasons:
        print(f"  - {reason}")
    return 0
