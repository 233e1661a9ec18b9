"""`offpath job explain NAME`: explains why a job waits or where it is; of a training job, why it has its tree."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin, work_admin
from offpath.cli import admin_client, controller_client, manager_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the job's name")


def main(arguments: argparse.Namespace) -> int:
    """Print the reasons."""
    work = manager_client.found(arguments.name, arguments.runtime_dir, work_admin.ExplainRequest)
    if work is not None:
        manager_client.print_it(work, is_json=arguments.json)
        return 0
    request = admin_client.request(ina_admin.ExplainRequest, job=arguments.name)
    with controller_client.client(arguments.runtime_dir) as client:
        found = client.query(request, ina_admin.InaExplanation)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    print(controller_client.job_text(found.job))
    print(f"  {found.where}")
    for reason in found.reasons:
        print(f"  - {reason}")
    return 0
