"""`offpath ina trees`: lists which tree each job has, since when, or why it has none."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the trees."""
    with controller_client.client(arguments.runtime_dir) as client:
        trees: list[ina_admin.TreeLine] = []
        for page in controller_client.pages(
            lambda n: client.query(ina_admin.TreesRequest(after=n), ina_admin.TreeLines), 0
        ):
            trees += page.trees
    if arguments.json:
        admin_client.print_json([each.model_dump(mode="json") for each in trees])
        return 0
    rows = [
        (
            tree.job, tree.root or "-", "+".join(tree.switches) or "-", "yes" if tree.is_granted else "no",
            f"{tree.since_ms / 1e3:.1f}", tree.why,
        )
        for tree in trees
    ]  # fmt: skip
    print(admin_client.table(rows, ("job", "root", "switches", "granted", "since s", "why")))
    return 0
