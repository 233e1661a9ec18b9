"""The instances that a helper's supervisor holds, and the workers of their lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from offpath.bindings.doca.lane import DocaLaneExporter, HostDevice
from offpath.bindings.loopback.lane import LoopbackLaneExporter, ResultExporter
from offpath.bindings.ports import Gpu, Lane, LaneExporter
from offpath.bindings.verbs.devices import Choice
from offpath.bindings.verbs.lane import VerbsLaneExporter
from offpath.bindings.wire import control
from offpath.host_helper.mps import LeaseMps


@dataclass(slots=True)
class Instance:
    """An instance of a lease, with its workers.

    ``renewed``: by lane, the last order to replace its worker. ``leaving``: lanes that wait for their new worker, with
    the time at which the former one is killed if it has not ended; monotonic, in s.
    """

    order: control.OpenInstance
    gpu: Gpu
    instance: int
    exporter: Callable[[Lane], LaneExporter]
    workers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """pidfd → pid, lane"""
    mps: LeaseMps | None = None
    renewed: dict[int, control.RenewWorker] = field(default_factory=dict)
    leaving: dict[int, float] = field(default_factory=dict)

    def renew(self, order: control.RenewWorker, until_s: float) -> None:
        """The lane's worker, which the daemon has dismissed, ends until ``until_s``; then another takes its place. A
        repeated order is the same one."""
        is_known = order.generation == self.order.generation and order.lane < self.order.lanes
        if is_known and order.renewal > self.renewal_of(order.lane):
            self.renewed[order.lane] = order
            self.leaving[order.lane] = until_s

    def order_of(self, lane: int) -> control.OpenInstance:
        """The order, with the token of this lane's worker."""
        renewed = self.renewed.get(lane)
        return self.order if renewed is None else self.order.model_copy(update={"token": renewed.token})

    def renewal_of(self, lane: int) -> int:
        """How often the lane's worker was replaced, or is to be."""
        return self.renewed[lane].renewal if lane in self.renewed else 0

    def worker_of(self, lane: int) -> int | None:
        """The pid of the lane's worker; None: it has none."""
        return next((pid for pid, held in self.workers.values() if held == lane), None)

    def lanes(self) -> list[tuple[int, int]]:
        """The lanes that have a worker, or get one, each with its `renewal_of`."""
        lanes = {lane for _, lane in self.workers.values()} | self.leaving.keys()
        return [(lane, self.renewal_of(lane)) for lane in lanes]


def exporter_for(
    order: control.OpenInstance, doca: HostDevice, rdma: Callable[[], Choice]
) -> Callable[[Lane], LaneExporter]:
    """Creates what gives the daemon's copy engine access to a lane; the worker opens the device after the fork. Raises:
    VerbsError.
    """
    if order.copy_engine == "doca":
        return partial(DocaLaneExporter, doca)
    if order.copy_engine == "cuda":
        return ResultExporter
    return partial(VerbsLaneExporter, rdma()) if order.copy_engine == "verbs" else LoopbackLaneExporter
