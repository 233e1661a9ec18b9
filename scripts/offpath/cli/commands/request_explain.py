"""`offpath request explain ID`: shows a job's stage, what delays it, and what would unblock it."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import admin
from offpath.cli import admin_client
from offpath.cli.commands.request_show import job_text, stage_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    admin_client.add_id(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    with admin_client.AdminClient(arguments.runtime_dir) as client:
        told = client.query(admin.ExplainRequest(**arguments.id), admin.Explanation)
    if arguments.json:
        admin_client.print_json(told)
    else:
        print(text(told))
    return 0


def text(told: admin.Explanation) -> str:
    """As text."""
    lines = [job_text(told.job), f"  {told.where}", *stage_lines(told.stages_ms)]
    if told.ahead:
        lines.append(f"  {told.ahead} of its tenant's jobs are ahead of it")
    if told.estimate_ms is not None:
        lines.append(f"  estimated to end in {told.estimate_ms:.1f} ms")
    for hold in told.holds:
        lines.append(f"{hold.cause}: {hold.text}")
        lines.append(f"  unblocked when: {', or '.join(hold.unblocked_by)}")
    if not told.holds and not told.job.is_ended:
        lines.append("nothing blocks it")
    return "\n".join(lines)
