"""`offpath collab close JOB`: closes a federated job; no device works for it any more."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)
    parser.add_argument("job", metavar="JOB", help="the job's name")


def main(arguments: argparse.Namespace) -> int:
    """Print the job as it was."""
    request = admin_client.request(collab_admin.CloseRequest, job=arguments.job)
    with collab_client.client(arguments.runtime_dir) as client:
        collab_client.print_job(client.query(request, collab_admin.JobAnswer), is_json=arguments.json)
    return 0
