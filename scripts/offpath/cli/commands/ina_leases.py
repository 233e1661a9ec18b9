"""`offpath ina leases`: lists which jobs occupy a place at which switch, since when and why."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the permissions that occupy places."""
    with controller_client.client(arguments.runtime_dir) as client:
        holds: list[ina_admin.HoldLine] = []
        for page in controller_client.pages(
            lambda n: client.query(ina_admin.HoldsRequest(after=n), ina_admin.Holds), 0
        ):
            holds += page.holds
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in holds])
        return 0
    rows = [
        (
            hold.switch, hold.job, f"{hold.stamp >> 32}.{hold.stamp & 0xFFFF_FFFF}", hold.slot,
            f"{hold.since_ms / 1e3:.1f}", hold.why,
        )
        for hold in holds
    ]  # fmt: skip
    print(admin_client.table(rows, ("switch", "job", "epoch", "place of", "since s", "why")))
    return 0
