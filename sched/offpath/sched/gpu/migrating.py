"""`migrating`: `oldest-gpu-first` that also moves jobs, each at most once, if that frees a GPU (`consolidate`).

The shell does the move: it stops the job at a checkpoint and submits the rest again; this policy then sends it to its
target. So far only the simulator does this; `offpath lease plan` shows what would move.
"""

from __future__ import annotations

from typing import ClassVar

from offpath.sched.gpu.exact import Place
from offpath.sched.gpu.indexed import NO_LEASE, STARTS
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.policy import Demand, LeasePlan, Opening, Placement, Refusal, share_in


class Migrating(OldestGpuFirst):
    """`direct` sets the place of a job that will be submitted again."""

    name: ClassVar[str] = "migrating"

    def __init__(self, *, prefetch: bool = True) -> None:
        super().__init__(prefetch=prefetch)
        self._directed: dict[int, Place] = {}

    def direct(self, job: int, place: Place) -> None:
        """Send this job to ``place`` when it is submitted, if that is still possible."""
        self._directed[job] = place

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """The directed place, else as `OldestGpuFirst`."""
        place = self._directed.get(demand.job)
        if place is None:
            return super().place(demand, now_ns)
        warm = self.at.get(self.gpus[place[0]].slot * STARTS + place[2]) if place[0] in self.gpus else None
        if warm is None or not warm.is_open:
            return NO_LEASE
        del self._directed[demand.job]
        share = share_in(demand, warm.view)
        has_room = 0 < share <= warm.view.alpha - warm.placed_share
        if warm.view.tenant != demand.tenant or not warm.free_lanes or not has_room:
            return super().place(demand, now_ns)
        self._advance(now_ns)
        return self._taken(warm, self.take(warm, share))

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """The directed instance, else as `OldestGpuFirst`."""
        place = self._directed.get(demand.job)
        gpu = self.gpus.get(place[0]) if place is not None else None
        if place is not None and gpu is not None:
            spec = gpu.geometry.spec
            wanted = spec.profile(place[1])
            if wanted is not None and gpu.geometry.allows(wanted, place[2]):
                return LeasePlan(place[0], place[1], place[2], spec.alpha(wanted))
            del self._directed[demand.job]
        return super().plan(demand, now_ns, opening)
