"""`offpath lease list`: lists which tenant holds which instance, and its load."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import admin
from offpath.cli import admin_client

HEAD = ("lease", "tenant", "gpu", "profile", "start", "state", "jobs", "running", "share", "held s", "load s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("--tenant", metavar="NAME", help="only this tenant's")


def main(arguments: argparse.Namespace) -> int:
    """Print the leases."""
    with admin_client.AdminClient(arguments.runtime_dir) as client:
        leases = [each for each in admin_client.all_leases(client) if arguments.tenant in (None, each.tenant)]
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in leases])
    else:
        print(admin_client.table([row(each) for each in leases], HEAD))
    return 0


def row(lease: admin.LeaseLine) -> tuple[object, ...]:
    """A lease as cells of `HEAD`; the share in use and the lease's own, in percent of a GPU. A gang's further GPUs are
    counted."""
    state = lease.state + (" pinned" if lease.is_pinned else "")
    share = f"{lease.running_share}/{lease.alpha}"
    gpu = f"{lease.gpu} +{len(lease.others)}" if lease.others else lease.gpu
    held, load = f"{lease.held_ms / 1e3:.1f}", f"{lease.load_ms / 1e3:.1f}"
    return (
        lease.lease, lease.tenant, gpu, lease.profile, lease.start, state, lease.jobs, lease.running, share, held,
        load,
    )  # fmt: skip
