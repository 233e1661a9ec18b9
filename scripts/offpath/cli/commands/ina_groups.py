"""`offpath ina groups`: lists which jobs share which root, and who may use it now."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the groups."""
    with controller_client.client(arguments.runtime_dir) as client:
        groups: list[ina_admin.GroupLine] = []
        for page in controller_client.pages(
            lambda n: client.query(ina_admin.GroupsRequest(after=n), ina_admin.Groups), 0
        ):
            groups += page.groups
            mode = page.mode
    if arguments.json:
        admin_client.print_json({"mode": mode, "groups": [each.model_dump(mode="json") for each in groups]})
        return 0
    rows = [(group.root, job, group.using.get(job, "nothing now")) for group in groups for job in group.jobs]
    print(f"mode {mode}")
    print(admin_client.table(rows, ("root", "job", "requests")))
    return 0
