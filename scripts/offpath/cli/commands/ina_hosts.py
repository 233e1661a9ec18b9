"""`offpath ina hosts`: lists hosts, connected or quarantined; quarantines or releases one."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quarantine", metavar="HOST", help="ignore its reports, and fence its jobs' permissions")
    which.add_argument("--release", metavar="HOST", help="accept this host's reports again")


def main(arguments: argparse.Namespace) -> int:
    """Quarantine or release a host if requested, and print the hosts."""
    host = arguments.quarantine or arguments.release or ""
    wanted = None if not host else bool(arguments.quarantine)
    request = admin_client.request(ina_admin.HostsRequest, host=host, is_quarantined=wanted, limit=1)
    with controller_client.client(arguments.runtime_dir) as client:
        if host:
            client.query(request, ina_admin.Hosts)
        hosts: list[ina_admin.HostLine] = []
        for page in controller_client.pages(
            lambda n: client.query(ina_admin.HostsRequest(after=n), ina_admin.Hosts), 0
        ):
            hosts += page.hosts
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in hosts])
        return 0
    rows = [
        (
            each.host, "yes" if each.is_connected else "no", "no" if each.is_silent else "yes",
            each.quarantine or "-", each.detail or "-",
        )
        for each in hosts
    ]  # fmt: skip
    print(admin_client.table(rows, ("host", "connected", "reported", "quarantine", "why")))
    return 0
