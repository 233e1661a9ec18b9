"""`offpath job submit NAME`: places a training job and prints the environment of its ranks."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="letters, digits, '.', '_' and '-'; the same at each restart")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--hosts", type=int, metavar="N", help="number of hosts, chosen by the controller")
    which.add_argument("--on", metavar="HOST,…", help="these hosts, in the order of ranks")
    parser.add_argument("--ranks-per-host", type=int, default=1, metavar="R", help="processes on each (%(default)s)")


def main(arguments: argparse.Namespace) -> int:
    """Print NAME=VALUE lines for the environment of each rank on standard output, the rest on standard error."""
    request = admin_client.request(
        ina_admin.SubmitRequest, job=arguments.name, hosts=arguments.hosts or 0,
        on=arguments.on.split(",") if arguments.on else [], ranks_per_host=arguments.ranks_per_host,
    )  # fmt: skip
    with controller_client.client(arguments.runtime_dir) as client:
        found = client.query(request, ina_admin.InaJob)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    admin_client.echo(f"{controller_client.job_text(found.job)}\n  because: {'; '.join(found.reasons)}")
    for name, value in found.job.environment.items():
        print(f"{name}={value}")
    return 0
