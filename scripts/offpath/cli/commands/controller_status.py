"""`offpath controller status`: prints the controller's term and connections."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the status."""
    with controller_client.client(arguments.runtime_dir) as client:
        now = client.query(ina_admin.StatusRequest(), ina_admin.ControllerStatus)
    if arguments.json:
        admin_client.print_json(now)
        return 0
    down = sorted(name for name, is_up in now.switches.items() if not is_up)
    print(f"term {now.term} for {now.uptime_ms / 1e3:.1f} s, mode {now.mode}: {now.jobs} jobs, {now.holds} permissions")
    print(f"agents: {len(now.agents)}" + (f", of which silent: {', '.join(now.silent)}" if now.silent else ""))
    for host, code in now.quarantined.items():
        print(f"host {host} is quarantined: {code} (release it with offpath ina hosts --release {host})")
    if now.memory:
        print(f"state file: {now.memory}")
    print(f"switches: {len(now.switches) - len(down)}" + (f", away: {', '.join(down)}" if down else ""))
    if now.downtime_ms:
        mean = sum(now.downtime_ms) / len(now.downtime_ms)
        print(f"{now.migrations} migrations, {mean:.0f} ms without a tree on average of the last")
    return 0
