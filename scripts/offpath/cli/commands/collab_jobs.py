"""`offpath collab jobs`: lists the federated jobs that are open, with their rounds."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the jobs, page by page, in the order of their names."""
    jobs: list[collab_admin.JobLine] = []
    with collab_client.client(arguments.runtime_dir) as client:
        for page in controller_client.pages(
            lambda after: client.query(collab_admin.JobsRequest(after=after), collab_admin.JobLines), ""
        ):
            jobs += page.jobs
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in jobs])
    else:
        print(admin_client.table([collab_client.row(each) for each in jobs], collab_client.HEAD))
    return 0
