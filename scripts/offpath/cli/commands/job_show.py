"""`offpath job show NAME`: prints one training job with its ranks."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the job's name")


def main(arguments: argparse.Namespace) -> int:
    """Print the job."""
    request = admin_client.request(ina_admin.JobRequest, job=arguments.name)
    with controller_client.client(arguments.runtime_dir) as client:
        found = client.query(request, ina_admin.InaJob)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    print(controller_client.job_text(found.job))
    for rank in found.ranks:
        where = "gone" if rank.is_gone else rank.host or "?"
        lost = f", lost the tree of {_epoch(rank.lost)}" if rank.lost else ""
        print(f"  rank {rank.rank} on {where}: holds epoch {_epoch(rank.held)}, applied {_epoch(rank.applied)}{lost}")
    return 0


def _epoch(stamp: int) -> str:
    """Term and number."""
    return f"{stamp >> 32}.{stamp & 0xFFFF_FFFF}"
