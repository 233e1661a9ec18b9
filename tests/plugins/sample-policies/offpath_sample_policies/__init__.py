"""A policy from outside offpath: each new lease goes to the GPU with the most slices left."""

from __future__ import annotations

from offpath.sched.gpu.indexed import IndexedPolicy
from offpath.sched.gpu.policy import Demand, LeasePlan, Opening, Placement, Refusal, share_in


class WorstFit(IndexedPolicy):
    """Spreads leases, as a cluster might that pays for heat rather than for GPUs."""

    name = "worst-fit"

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """The tenant's first lease with room."""
        room = self.first_room(demand)
        return self.take(room, share_in(demand, room.view)) if room is not None else self.refused(demand)

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """The smallest instance that holds the demand, on the emptiest GPU with a place for it."""
        self.lease_bytes = opening.lease_bytes
        mask = self.mask(demand, opening.profile)
        for gpu in sorted(self.gpus.values(), key=lambda gpu: (-gpu.level, gpu.slot)):
            plan = self.cut(gpu, mask, opening)
            if plan is not None:
                return plan
        return self.refusal(mask)
