"""`offpath manager status`: prints the job manager's engine, nodes and numbers of jobs."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import work_admin
from offpath.cli import admin_client, controller_client, manager_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Print the status."""
    with manager_client.client(arguments.runtime_dir) as client:
        now = client.query(work_admin.StatusRequest(), work_admin.Status)
    if arguments.json:
        admin_client.print_json(now)
        return 0
    state = f"does not answer: {now.engine_fault}" if now.engine_fault else "answers"
    print(f"engine {now.engine} {state}; policy {now.policy}, a batch every {now.batch_s:g} s, {now.batches} so far")
    print(", ".join(f"{count} {state}" for state, count in sorted(now.jobs.items())) or "no jobs")
    rows = [
        (node.node, node.switch or "-", node.gpus, node.free, "ready" if node.is_ready else node.reason or "not ready")
        for node in now.nodes
    ]
    if rows:
        print(admin_client.table(rows, ("node", "switch", "GPUs", "free", "state")))
    if now.node_count > len(rows):
        print(f"… and {now.node_count - len(rows)} more nodes")
    for line in unaccounted(now):
        print(line)
    return 0


def unaccounted(now: work_admin.Status) -> list[str]:
    """A line for each node with GPUs that the engine counts as given and that no job has."""
    return [
        f"{node.node}: engine {now.engine} counts {node.unaccounted} GPUs as given that no job has; fix: {node.remedy}"
        for node in now.nodes
        if node.unaccounted
    ]
