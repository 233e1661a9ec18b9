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
        explanation = client.query(admin.ExplainRequest(**arguments.id), admin.Explanation)
    if arguments.json:
        admin_client.print_json(explanation)
    else:
        print(text(explanation))
    return 0


def text(explanation: admin.Explanation) -> str:
    """As text."""
    lines = [job_text(explanation.job), f"  {explanation.where}", *stage_lines(explanation.stages_ms)]
    if explanation.ahead:
        lines.append(f"  {explanation.ahead} of its tenant's jobs are ahead of it")
    if explanation.estimate_ms is not None:
        lines.append(f"  estimated to end in {explanation.estimate_ms:.1f} ms")
    for hold in explanation.holds:
        lines.append(f"{hold.cause}: {hold.text}")
        lines.append(f"  unblocked when: {', or '.join(hold.unblocked_by)}")
    if not explanation.holds and not explanation.job.is_ended:
        lines.append("nothing blocks it")
    return "\n".join(lines)
