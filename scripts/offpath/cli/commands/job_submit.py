"""`offpath job submit NAME`: submits a job on GPUs to the job manager, or places a training job's ranks on hosts."""

from __future__ import annotations

import argparse
import os

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import ina_admin, work_admin
from offpath.cli import admin_client, controller_client, manager_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="letters, digits, '.', '_' and '-'; the same at each restart")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--hosts", type=int, metavar="N", help="number of hosts, chosen by the controller")
    which.add_argument("--on", metavar="HOST,…", help="these hosts, in the order of ranks")
    which.add_argument("--gpus", type=int, metavar="N", help="number of GPUs, chosen by the job manager")
    parser.add_argument("--ranks-per-host", type=int, default=1, metavar="R", help="processes on each (%(default)s)")
    parser.add_argument(
        "--switch", metavar="NAME,…", help="with --on: its tree may use only these switches; again: these from now on"
    )
    on_gpus = parser.add_argument_group("with --gpus; the command that is started on each node follows after --")
    manager_client.add_job_arguments(on_gpus)
    on_gpus.add_argument(
        "--chdir", default=os.getcwd(), metavar="DIR", help="working directory on the nodes (this one)"
    )
    on_gpus.add_argument("--output", default="", metavar="FILE", help="the process on node n writes to FILE.n")
    on_gpus.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of its processes; may be repeated"
    )


def main(arguments: argparse.Namespace) -> int:
    """With --gpus print the job. Otherwise print NAME=VALUE lines for the environment of each rank on standard output,
    the rest on standard error."""
    if arguments.gpus is not None:
        return _on_gpus(arguments)
    request = admin_client.request(
        ina_admin.SubmitRequest, job=arguments.name, hosts=arguments.hosts or 0,
        on=arguments.on.split(",") if arguments.on else [], ranks_per_host=arguments.ranks_per_host,
        switches=arguments.switch.split(",") if arguments.switch else None,
    )  # fmt: skip
    with controller_client.client(arguments.runtime_dir) as client:
        found = client.query(request, ina_admin.InaJob)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    admin_client.echo(f"{controller_client.job_text(found.job)}\n  because: {'; '.join(found.reasons)}")
    for name, value in found.job.environment.items():
        print(f"{name}={value}")
    return 0


def _on_gpus(arguments: argparse.Namespace) -> int:
    if not arguments.command:
        raise manager_client.missing_command()
    pairs = [each.partition("=") for each in arguments.env]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise OffpathError(f"--env {wrong[0]}: give NAME=VALUE")
    request = admin_client.request(
        work_admin.SubmitRequest, job=arguments.name, gpus=arguments.gpus, model=arguments.model,
        data_bytes=arguments.data, value=arguments.value, argv=arguments.command,
        environment={name: value for name, _, value in pairs}, directory=os.path.abspath(arguments.chdir),
        output=os.path.abspath(arguments.output) if arguments.output else "",
    )  # fmt: skip
    with manager_client.client(arguments.runtime_dir) as client:
        manager_client.print_it(client.query(request, work_admin.Explanation), is_json=arguments.json)
    return 0
