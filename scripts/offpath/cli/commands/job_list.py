"""`offpath job list`: lists the jobs of a job manager and of a controller."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client, manager_client

HEAD = ("job", "state", "ranks", "hosts", "tree", "since s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument("--ended", action="store_true", help="those on GPUs that have ended too")


def main(arguments: argparse.Namespace) -> int:
    """Print the jobs, the job manager's first."""
    works = list(manager_client.all_jobs(arguments.runtime_dir, is_ended=arguments.ended))
    if manager_client.is_here(arguments.runtime_dir) and not controller_client.is_here(arguments.runtime_dir):
        if arguments.json:
            admin_client.print_json([each.model_dump(mode="json") for each in works])
        else:
            print(admin_client.table([manager_client.row(each) for each in works], manager_client.HEAD))
        return 0
    with controller_client.client(arguments.runtime_dir) as client:
        jobs: list[ina_admin.InaJobLine] = []
        for page in controller_client.pages(
            lambda n: client.query(ina_admin.JobsRequest(after=n), ina_admin.InaJobs), ""
        ):
            jobs += page.jobs
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in (*works, *jobs)])
    else:
        if works:
            print(admin_client.table([manager_client.row(each) for each in works], manager_client.HEAD) + "\n")
        rows = [
            (job.job, job.state, job.ranks, ",".join(job.hosts), job.tree or "-", f"{job.age_ms / 1e3:.1f}")
            for job in jobs
        ]
        print(admin_client.table(rows, HEAD))
    return 0
