"""`conspirator-paper`: Algorithm 1 of Conspirator (§3.3.2), corrected, in a logarithm of the number of GPUs.

Its loop over GPUs and fractions ends at the first that will do, be it the tenant's own with room (lines 20-28) or one
that is not in use (29-40). So a job whose tenant has room further on is not placed there while an unoccupied fraction
comes before: `place` then says that a lease should open, and `plan` says which. Equal to `paper.Transcription`
decision by decision on the paper's model of a GPU; on real geometry it obeys that.
"""

from __future__ import annotations

from offpath.sched.gpu.indexed import NO_LEASE, STARTS, IndexedPolicy
from offpath.sched.gpu.policy import Demand, LeasePlan, Opening, Placement, Refusal


class ConspiratorPaper(IndexedPolicy):
    """Implements `offpath.sched.gpu.policy.Policy`."""

    name = "conspirator-paper"

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """The tenant's first fraction with room, if no unoccupied one that would do comes before it."""
        own = self.first_room(demand)
        if own is None:
            return self.refused(demand)
        mask = self.mask(demand, None)
        slot = self.free.first(mask)
        if slot is not None and slot * STARTS <= own.position:
            plan = self.cut(self.by_slot[slot], mask)
            if plan is not None and slot * STARTS + plan.start < own.position:
                return NO_LEASE
        return self.take(own, demand.share)

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """The first GPU's smallest fraction that holds the demand (or is ``profile``, if that is named)."""
        self.lease_bytes = opening.lease_bytes
        mask = self.mask(demand, opening.profile)
        return self.first_cut(mask, opening) or self.refusal(mask)
