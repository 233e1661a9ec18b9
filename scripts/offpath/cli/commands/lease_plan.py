"""`offpath lease plan`: proposes moves of leases' work that would free GPUs. A dry run: nothing is moved.

Computed here from the daemon's list of leases, so that the daemon's loop is not loaded. The work on a lease moves as a
unit: to free capacity of its tenant, or to a new instance on a GPU that is in use already.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offpath.bindings.wire import admin
from offpath.cli import admin_client
from offpath.cli.gpus import gpu_spec
from offpath.sched.gpu.consolidate import consolidate
from offpath.sched.gpu.exact import LiveJob, Place

HEAD = ("lease", "tenant", "running", "from", "to")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Query, propose, print."""
    with admin_client.AdminClient(arguments.runtime_dir) as client:
        status = client.query(admin.StatusRequest(), admin.Status)
        leases = list(admin_client.all_leases(client))
    found = proposal(status.gpus, leases)
    if arguments.json:
        admin_client.print_json(found.data())
    else:
        print(found.text())
    return 0


@dataclass(slots=True)
class Proposal:
    """``moves``: a lease and the new place of its work. ``idle``: leases that could be closed."""

    leases: dict[int, admin.LeaseLine]
    moves: dict[int, Place]
    idle: list[int]
    gpus_now: list[str]
    gpus_then: list[str]

    def data(self) -> dict[str, Any]:
        """As JSON data."""
        moves = [
            {"lease": number, "tenant": self.leases[number].tenant, "from": _place(self.leases[number]), "to": place}
            for number, place in self.moves.items()
        ]
        return {"moves": moves, "idle": self.idle, "gpus_now": self.gpus_now, "gpus_then": self.gpus_then}

    def text(self) -> str:
        """As text."""
        rows = [
            (
                n,
                self.leases[n].tenant,
                f"{self.leases[n].running_share} %",
                _shown(_place(self.leases[n])),
                _shown(place),
            )
            for n, place in self.moves.items()
        ]
        freed = [gpu for gpu in self.gpus_now if gpu not in self.gpus_then]
        lines = [admin_client.table(rows, HEAD)] if rows else ["nothing to move"]
        if self.idle:
            lines.append(f"idle, could close: {', '.join(map(str, self.idle))}")
        lines.append(
            f"GPUs at work: {len(self.gpus_now)} → {len(self.gpus_then)}; free then: {', '.join(freed) or 'none'}"
        )
        return "\n".join(lines)


def proposal(gpus: Sequence[admin.GpuLine], leases: Sequence[admin.LeaseLine]) -> Proposal:
    """What could move. Pinned leases keep their place, and so do those whose jobs need memory or a certain model; other
    idle leases could close, and their slices count as free. Nothing moves to the GPUs of a gang that works.

    Raises: DeviceError: the tables lack a GPU's model.
    """
    busy = [lease for lease in leases if (lease.running_share > 0 or lease.is_pinned) and not lease.others]
    ganged = {gpu for each in leases if each.others and each.running_share for gpu in (each.gpu, *each.others)}
    specs = [gpu_spec(line.gpu, line.model) for line in gpus if line.gpu not in ganged]
    jobs = [LiveJob(each.lease, each.tenant, max(1, each.running_share), place=_place(each)) for each in busy]
    moves = consolidate(specs, jobs, {each.lease for each in busy if not (each.is_pinned or each.is_restricted)})
    now = {each.gpu for each in busy} | ganged
    then = {moves[each.lease][0] if each.lease in moves else each.gpu for each in busy} | ganged
    order = [line.gpu for line in gpus]
    return Proposal(
        {each.lease: each for each in leases}, moves,
        [each.lease for each in leases if each.running_share == 0 and not each.is_pinned],
        [gpu for gpu in order if gpu in now], [gpu for gpu in order if gpu in then],
    )  # fmt: skip


def _place(lease: admin.LeaseLine) -> Place:
    return lease.gpu, lease.profile, lease.start


def _shown(place: Place) -> str:
    return f"{place[0]} {place[1]} at {place[2]}"
