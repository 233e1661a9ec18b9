"""`offpath collab request JOB`: asks for the devices of a federated job's round."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)
    parser.add_argument("job", metavar="JOB", help="the job's name")
    parser.add_argument("--round", type=int, required=True, metavar="N", help="above that of every earlier round")
    parser.add_argument("--demand", type=int, required=True, metavar="N", help="devices of the round")
    parser.add_argument("--deadline", type=float, required=True, metavar="S", help="from now; then the round ends")


def main(arguments: argparse.Namespace) -> int:
    """Print the job. The same request again changes nothing."""
    request = admin_client.request(
        collab_admin.DevicesRequest, job=arguments.job, round=arguments.round, demand=arguments.demand,
        deadline_s=arguments.deadline,
    )  # fmt: skip
    with collab_client.client(arguments.runtime_dir) as client:
        collab_client.print_job(client.query(request, collab_admin.JobAnswer), is_json=arguments.json)
    return 0
