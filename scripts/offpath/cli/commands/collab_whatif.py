"""`offpath collab whatif`: estimates how long a round of a federated job would wait for its devices."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)
    collab_client.add_requirement(parser)
    parser.add_argument("--demand", type=int, required=True, metavar="N", help="devices of a round")


def main(arguments: argparse.Namespace) -> int:
    """Print the estimate; exit code 1: no device meets the requirement."""
    request = admin_client.request(
        collab_admin.WhatIfRequest, requirement=collab_client.requirement(arguments), demand=arguments.demand
    )
    with collab_client.client(arguments.runtime_dir) as client:
        found = client.query(request, collab_admin.WhatIf)
    if arguments.json:
        admin_client.print_json(found)
        return int(not found.supply)
    if found.supply:
        print(
            f"{arguments.demand} devices: {found.alone_s:.0f} s alone, {found.shared_s:.0f} s beside the jobs that wait"
        )
    for reason in found.reasons:
        print(f"  - {reason}")
    return int(not found.supply)
