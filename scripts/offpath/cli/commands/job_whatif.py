"""`offpath job whatif`: shows where a job would go now, what rate it would get, and what that costs the others."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import work_admin
from offpath.cli import admin_client, controller_client, manager_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="number of GPUs")
    manager_client.add_job_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the proposal; exit code 1: the job would wait."""
    request = admin_client.request(
        work_admin.WhatIfRequest, job="whatif", gpus=arguments.gpus, model=arguments.model, data_bytes=arguments.data,
        value=arguments.value,
    )  # fmt: skip
    with manager_client.client(arguments.runtime_dir) as client:
        found = client.query(request, work_admin.WhatIf)
    if arguments.json:
        admin_client.print_json(found)
        return int(not found.shares)
    print(text(found))
    return int(not found.shares)


def text(found: work_admin.WhatIf) -> str:
    """As text."""
    reasons = [f"  - {reason}" for reason in found.reasons]
    if not found.shares:
        return "\n".join(["it would wait:", *reasons])
    server = (
        f", parameter server on {found.server}, aggregation {'on' if found.uses_ina else 'off'}" if found.server else ""
    )
    lines = [f"on {manager_client.shares_text(found.shares)}{server}"]
    if found.rate_bps:
        lines.append(
            f"  estimated {found.rate_bps / 1e9:.2f} Gbit/s for each worker, limited by {found.bottleneck};"
            f" {found.comm_s * 1e3:.1f} ms of traffic in each iteration"
        )
    lines += reasons
    for other in found.others:
        lines.append(f"  job {other.job}: {other.before_bps / 1e9:.2f} → {other.after_bps / 1e9:.2f} Gbit/s")
    return "\n".join(lines)
