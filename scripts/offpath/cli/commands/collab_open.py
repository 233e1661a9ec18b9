"""`offpath collab open JOB`: opens a federated job, with what it requires of its devices."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client, collab_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    collab_client.add_arguments(parser)
    parser.add_argument("job", metavar="JOB", help="letters, digits, '.', '_' and '-'; the same again changes nothing")
    collab_client.add_requirement(parser)
    parser.add_argument(
        "--quorum", type=int, default=80, metavar="PERCENT", help="of a round's devices that must answer (%(default)s)"
    )
    parser.add_argument(
        "--alone", type=float, default=86_400, metavar="S", help="what the job would need alone, for fairness"
    )
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of the whole job, if known")
    parser.add_argument("--tiers", type=int, default=0, metavar="V", help="speed classes of devices (with --speed)")
    parser.add_argument("--speed", default="", metavar="NAME", help="the number by which devices are split into tiers")


def main(arguments: argparse.Namespace) -> int:
    """Print the job."""
    request = admin_client.request(
        collab_admin.OpenRequest, job=arguments.job, requirement=collab_client.requirement(arguments),
        quorum_percent=arguments.quorum, alone_s=arguments.alone, speed=arguments.speed, tiers=arguments.tiers,
        rounds=arguments.rounds,
    )  # fmt: skip
    with collab_client.client(arguments.runtime_dir) as client:
        collab_client.print_job(client.query(request, collab_admin.JobAnswer), is_json=arguments.json)
    return 0
