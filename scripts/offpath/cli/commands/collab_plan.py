"""`offpath collab plan`: shows which group of federated jobs gets which devices now."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client

HEAD = ("requirement", "jobs", "waiting", "devices wanted", "check-ins/day", "given", "first job")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the groups, that with the scarcest devices first."""
    with collab_client.client(arguments.runtime_dir) as client:
        found = client.query(collab_admin.PlanRequest(), collab_admin.Plan)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    rows = [(g.requirement, g.jobs, g.waiting, g.remaining, g.supply, g.given, g.first or "-") for g in found.groups]
    policy = f"{found.policy}, fairness ε = {found.epsilon:g}" if found.epsilon else found.policy
    print(f"policy {policy}; {found.supply} check-ins in the last 24 h, {found.unused} of no use to any job now")
    print(admin_client.table(rows, HEAD))
    return 0
