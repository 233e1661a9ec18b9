"""`offpath request cancel ID`: cancels a job as an operator; its requester gets the answer CANCELLED."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import admin
from offpath.cli import admin_client
from offpath.cli.commands.request_show import job_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    admin_client.add_id(parser)


def main(arguments: argparse.Namespace) -> int:
    """Cancel; 1 if the job had ended otherwise before."""
    with admin_client.AdminClient(arguments.runtime_dir) as client:
        done = client.query(admin.CancelRequest(**arguments.id), admin.Cancelled)
    if arguments.json:
        admin_client.print_json(done)
    else:
        print(job_text(done.job))
    if done.job.state != "cancelled":
        admin_client.echo(f"not cancelled: job {done.job.job} had ended before")
    return 0 if done.job.state == "cancelled" else 1
