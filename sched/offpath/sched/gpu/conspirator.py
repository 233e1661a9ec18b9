"""`conspirator-paper`: Algorithm 1 of Conspirator (§3.3.2), corrected, logarithmic in the number of GPUs.

The paper's loop over GPUs and fractions ends at the first suitable fraction: either the tenant's own with room (lines
20-28) or an unoccupied one (29-40). A job is thus not placed in its tenant's room if an unoccupied fraction comes
before it: `place` then requests a new lease, and `plan` selects it. On the paper's model of a GPU each decision equals
that of `paper.Transcription`; on real geometry the policy also obeys MIG's rules.
"""

from __future__ import annotations

from typing import ClassVar

from offpath.sched.gpu.indexed import NO_LEASE, STARTS, IndexedPolicy
from offpath.sched.gpu.policy import Demand, LeasePlan, Opening, Placement, Refusal, share_in


class ConspiratorPaper(IndexedPolicy):
    """Implements `offpath.sched.gpu.policy.Policy`."""

    name: ClassVar[str] = "conspirator-paper"

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """The tenant's first fraction with room, unless a suitable unoccupied one comes before it."""
        own = self.first_room(demand)
        if own is None:
            return self.refused(demand)
        mask = self.mask(demand, None)
        slot = self.free.first(mask)
        if slot is not None and slot * STARTS <= own.position:
            plan = self.cut(self.by_slot[slot], mask)
            if plan is not None and slot * STARTS + plan.start < own.position:
                return NO_LEASE
        return self.take(own, share_in(demand, own.view))

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """The first GPU's smallest fraction that holds the demand (or is the requested ``profile``)."""
        self.lease_bytes = opening.lease_bytes
        mask = self.mask(demand, opening.profile)
        return self.first_cut(mask, opening) or self.refusal(mask)
