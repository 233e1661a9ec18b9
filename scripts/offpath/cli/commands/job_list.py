"""`offpath job list`: lists the training jobs of a controller."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client

HEAD = ("job", "state", "ranks", "hosts", "tree", "since s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the jobs."""
    with controller_client.client(arguments.runtime_dir) as client:
        jobs: list[ina_admin.InaJobLine] = []
        for page in controller_client.pages(
            lambda n: client.query(ina_admin.JobsRequest(after=n), ina_admin.InaJobs), ""
        ):
            jobs += page.jobs
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in jobs])
    else:
        rows = [
            (job.job, job.state, job.ranks, ",".join(job.hosts), job.tree or "-", f"{job.age_ms / 1e3:.1f}")
            for job in jobs
        ]
        print(admin_client.table(rows, HEAD))
    return 0
