"""`offpath collab devices`: prints how many devices check in, work, and are refused. Never their names."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the summary."""
    with collab_client.client(arguments.runtime_dir) as client:
        found = client.query(collab_admin.SummaryRequest(), collab_admin.Summary)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    print(f"policy {found.policy}, {found.jobs} jobs, {found.connections} connections, up {found.uptime_s:.0f} s")
    print(f"{found.leases} devices work now; {found.worked} got a job today")
    print(
        f"{found.check_ins} check-ins: {found.assigned} got a job, {found.idle} found none that needs them,"
        f" {found.spent} had worked today"
    )
    print(f"supply of the last 24 h: {found.supply} check-ins of {found.kinds} kinds of devices")
    refused = ", ".join(f"{count} {code}" for code, count in sorted(found.refused.items()))
    print(f"refused messages: {refused or 'none'}")
    return 0
