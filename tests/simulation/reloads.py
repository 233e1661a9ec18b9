"""A helper that reloads its kernels in the middle of everything: the supervisor's part of it, without forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offpath.bindings.wire import control
from offpath.host_helper.kernels import KernelTable
from offpath.host_helper.offers import kernels_reloaded

from . import batches, sequences, streams
from .setup import HELPER

if TYPE_CHECKING:
    from .host import SimHelper, SimInstance

MS = 1_000_000
KERNELS = (("small", 14), ("large", 14), ("half", 42), ("whole", 100), ("raises", 14))
LEAVE_NS = 5_000 * MS


class Reloading:
    """One helper's kernels. ``revision``: how often it has reloaded them."""

    def __init__(self, helper: SimHelper) -> None:
        self._helper = helper
        self.revision = 0
        self._announced = 0

    def table(self, names: tuple[str, ...]) -> KernelTable:
        """The first helper serves all kernels, the second some."""
        table = KernelTable()
        for kernel, demand in KERNELS:
            if self._helper.name == HELPER or kernel in names:
                table.kernel(kernel, demand=demand, tensors="pointer")(self._helper.world.kernel(kernel))
        if self._helper.world.setup.is_batching:
            batches.offer(table, self._helper.world, self.revision)
        if self._helper.world.setup.is_sequential:
            sequences.offer(table, self._helper.world)
        if self._helper.world.setup.is_streaming:
            streams.offer(table, self._helper.world)
        return table

    def strike(self) -> None:
        """Its file has changed: the second helper also adds and removes kernels."""
        helper, random = self._helper, self._helper.world.random
        if not helper.is_alive or helper.is_busy or helper.is_silent or helper.is_leaving:
            return
        names = tuple(name for name in helper.world.setup.second_kernels if random.random() < 0.6)
        self.revision += 1
        helper.table = self.table(names or helper.world.setup.second_kernels[:1])
        helper.world.log("helper %s reloads, revision %s: %s", helper, self.revision, list(helper.table.kernels))
        self.announce()

    def hello(self) -> int:
        """The revision that the next hello names."""
        self._announced = self.revision
        return self.revision

    def announce(self) -> None:
        """Tell a daemon that has joined it what it does not know."""
        helper = self._helper
        if helper.is_welcome and self.revision > self._announced:
            self._announced = self.revision
            for message in kernels_reloaded(helper.table, helper.gpus, self.revision):
                helper.send(message)

    def renew(self, order: control.RenewWorker) -> None:
        """As `Supervisor._order`: the former worker, which the daemon has dismissed, ends soon, or is killed."""
        helper = self._helper
        held = helper.instances.get(order.lease)
        if held is None:
            return
        held.real.renew(order, 0.0)
        former = next((worker for worker in held.workers if worker.lane == order.lane), None)
        if former is None:
            self.replace(held)
        elif former.renewal < order.renewal:
            helper.world.loop.after(LEAVE_NS, former.key, former.die)

    def replace(self, held: SimInstance) -> None:
        """Fork the new workers of lanes whose former one is gone, while a daemon is there."""
        helper = self._helper
        for lane in [lane for lane in held.real.leaving if held.real.worker_of(lane) is None]:
            if helper.is_welcome and not helper.is_cut_off():
                del held.real.leaving[lane]
                helper.fork(held, lane)
                helper.world.counts["renewed"] += 1
