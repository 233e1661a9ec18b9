"""The job manager's placement policy: a built-in one, or a plug-in in a process of its own with `netpack` as fallback.

The plug-in is handled as the controller's are (`controller.plugin_slots`): a deadline per answer, and quarantine at the
first answer that is late, broken or cannot be carried out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from offpath.dpu_daemon.controller.plugin_child import BATCH, PLACEMENT
from offpath.dpu_daemon.controller.plugin_slots import MOST_REASONS, PluginSlot
from offpath.dpu_daemon.manager.config import PolicyTable
from offpath.sched.errors import SchedError
from offpath.sched.gpu.plugin import PREFIX, one_line
from offpath.sched.ina.sharing.policies import PolicyFault
from offpath.sched.placement.batch_port import (
    BatchDecision,
    BatchPlacement,
    JobDecision,
    JobRequest,
    Reservation,
    admitted,
)
from offpath.sched.placement.batch_registry import make
from offpath.sched.placement.cluster_state import state_of
from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.plain import from_plain, to_plain

FALLBACK: Final = "netpack"


class AdvisedPlacement:
    """Implements `BatchPlacement` with a plug-in. Requests that no policy may place are refused before it is asked."""

    def __init__(self, slot: PluginSlot[BatchPlacement]) -> None:
        self.slot = slot
        self.name = slot.built_in.name

    def place_batch(
        self, cluster: GpuCluster, batch: Sequence[JobRequest], reservation: Reservation | None = None
    ) -> BatchDecision:
        """See `BatchPlacement`."""
        valid, refused = admitted(cluster, batch)

        def read(data: Any) -> BatchDecision:
            decision: BatchDecision = from_plain(BatchDecision, data)
            check(cluster, valid, decision)
            return replace(decision, jobs=tuple(_trimmed(each) for each in decision.jobs))

        found = self.slot.query(
            BATCH, to_plain(state_of(cluster)), to_plain(tuple(valid)), to_plain(reservation), read=read,
            instead=lambda: self.slot.built_in.place_batch(cluster, valid, reservation),
        )  # fmt: skip
        answers = iter(found.jobs)
        return replace(found, jobs=tuple(refused[at] if at in refused else next(answers) for at in range(len(batch))))


def check(cluster: GpuCluster, batch: Sequence[JobRequest], decision: BatchDecision) -> None:
    """Raises: PolicyFault: the decision is not one per request, in their order, or cannot be carried out."""
    if [each.job for each in decision.jobs] != [request.job for request in batch]:
        raise PolicyFault("the answer does not decide each job once, in the order of the batch")
    after = cluster.copied()
    for request, each in zip(batch, decision.jobs, strict=True):
        if each.placement is None:
            continue
        if each.placement.gpus != request.gpus:
            raise PolicyFault(f"job {request.job}: {each.placement.gpus} GPUs, {request.gpus} were asked for")
        try:
            after.start(each.job, each.placement, request.data_gbit)
        except SchedError as fault:
            raise PolicyFault(str(fault)) from None
        if each.placement.ps is not None and after.steady.rate_gbps(each.job) <= 0:
            raise PolicyFault(f"job {request.job}: its servers are not connected")
    kept = decision.reservation
    if kept is not None:
        known = any(each.job == kept.job and each.placement is None for each in decision.jobs)
        if not known or len(set(kept.servers)) < len(kept.servers):
            raise PolicyFault("a reservation is for a job that waits in the batch, and names each server once")
        if any(not 0 <= server < len(cluster.free) for server in kept.servers):
            raise PolicyFault("a reservation names a server that is not in the cluster")


def _trimmed(decision: JobDecision) -> JobDecision:
    reasons = tuple(replace(each, text=one_line(each.text)) for each in decision.reasons[:MOST_REASONS])
    return replace(decision, reasons=reasons)


@contextlib.contextmanager
def placement(table: PolicyTable) -> Iterator[BatchPlacement]:
    """The configured policy while the block runs. Blocks until a plug-in is loaded. Raises: PluginError."""
    if not table.name.startswith(PREFIX):
        yield make(table.name)
        return
    slot: PluginSlot[BatchPlacement] = PluginSlot.of(PLACEMENT, table.name, make(FALLBACK), table.plugin_ms / 1e3)
    try:
        yield AdvisedPlacement(slot)
    finally:
        slot.close()
