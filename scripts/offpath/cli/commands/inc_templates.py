"""`offpath inc templates`: what can be requested, and what the switches have left."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import inc_admin
from offpath.cli import admin_client, inc_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print templates and switches."""
    with inc_client.client(arguments.runtime_dir) as here:
        found = here.query(inc_admin.TemplatesRequest(), inc_admin.Templates)
    if arguments.json:
        admin_client.print_json(found)
        return 0
    rows = [(each.name, name, each.demands.get(name, "servers"))
            for each in found.templates for name in each.implementations]  # fmt: skip
    print(admin_client.table(rows, ("template", "implementation", "of each switch")))
    switches = [
        (each.name, ",".join(each.features) or "-", ",".join(each.services) or "-", *each.free, each.fault or "-")
        for each in found.switches
    ]
    head = ("switch", "features", "services", "recirculation %", "stages", "SRAM KiB", "fault")
    print("\n" + admin_client.table(switches, head))
    return 0
