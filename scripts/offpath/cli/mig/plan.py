"""`offpath mig plan`: what `offpath mig apply` would destroy and create. A dry run: nothing is changed."""

from __future__ import annotations

import argparse
from typing import Any

from offpath.cli.admin_client import print_json
from offpath.cli.mig import common
from offpath.host_helper.migd.layout_plan import GpuPlan, plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    common.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Query, plan, print."""
    with common.client(arguments) as migd:
        plans = [plan(each.found, each.wanted) for each in common.targets(migd, arguments)]
    if arguments.json:
        print_json([as_data(each) for each in plans])
    else:
        print("\n".join(line for each in plans for line in as_text(each)))
    return 0


def as_data(found: GpuPlan) -> dict[str, Any]:
    """A plan as JSON data."""
    return {
        "gpu": found.gpu.uuid,
        "index": found.gpu.index,
        "keep": [[line.profile, line.start] for line in found.keep],
        "destroy": [[line.profile, line.start, line.owner] for line in found.destroy],
        "create": [list(place) for place in found.create],
    }


def as_text(found: GpuPlan) -> list[str]:
    """A plan as lines."""
    head = f"{found.gpu.index}: {found.gpu.uuid}"
    if found.is_applied:
        return [f"{head} has the layout"]
    lines = [head]
    lines += [f"  keep    {common.place(line)}" for line in found.keep]
    lines += [f"  destroy {common.place(line)} ({line.owner})" for line in found.destroy]
    lines += [f"  create  {profile} at {start}" for profile, start in found.create]
    return lines
