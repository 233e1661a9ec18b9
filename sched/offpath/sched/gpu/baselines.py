"""Baseline policies: the systems that Conspirator is compared with (§4.2), and plain bin packers. Same port, same
book."""

from __future__ import annotations

from typing import ClassVar

from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.firstfit import FirstFit
from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.gpu.indexed import IndexedPolicy
from offpath.sched.gpu.policy import Demand, LeasePlan, Opening, Placement, Refusal, share_in
from offpath.sched.gpu.rooms import Warm


class MpsOnly(ConspiratorPaper):
    """No MIG: first fit over whole GPUs. Each GPU belongs to one tenant at a time; its jobs share it by MPS (§4.2)."""

    name: ClassVar[str] = "mps-only"

    def offered(self, spec: GpuSpec) -> list[Profile]:
        """Only the whole GPU."""
        return [profile for profile in super().offered(spec) if profile.compute_slices == spec.compute_slices]


class Exclusive(MpsOnly):
    """No sharing: one job per GPU, the default of container platforms (§2)."""

    name: ClassVar[str] = "exclusive"

    def room_mask(self, demand: Demand) -> int:
        """Only GPUs without a running job."""
        return 1 << 100


class FirstFitPolicy(IndexedPolicy):
    """The tenant's first lease with room, on any GPU; otherwise a new one, on the first GPU with a legal place."""

    name: ClassVar[str] = "first-fit"

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """Never wait for a new lease while an open one has room."""
        own = self.choose(demand)
        if own is not None:
            return self.take(own, share_in(demand, own.view))
        return self.refused(demand)

    def choose(self, demand: Demand) -> Warm | None:
        """Choose one of the tenant's leases."""
        return self.first_room(demand)

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """The first GPU's smallest fraction that holds the demand."""
        self.lease_bytes = opening.lease_bytes
        mask = self.mask(demand, opening.profile)
        return self.first_cut(mask, opening) or self.refusal(mask)


class BestFit(FirstFitPolicy):
    """The tenant's lease with the least sufficient room; otherwise a new one on the fullest GPU with a legal place."""

    name: ClassVar[str] = "best-fit"

    def __init__(self) -> None:
        super().__init__()
        self._by_level: dict[int, FirstFit] = {}

    def refiled(self, slot: int, before: int, level: int, bits: int) -> None:
        """See `IndexedPolicy.refiled`."""
        if before != level and before in self._by_level:
            self._by_level[before].put(slot, 0)
        self._by_level.setdefault(level, FirstFit()).put(slot, bits)

    def choose(self, demand: Demand) -> Warm | None:
        """By room, then by position."""
        rooms = self.rooms.get(demand.tenant)
        if rooms is None:
            return None
        for room in range(demand.share, 101):
            warm = self.first_in(rooms, 1 << room, demand)
            if warm is not None:
                return warm
        return None

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """By compute slices left, then by position."""
        self.lease_bytes = opening.lease_bytes
        mask = self.mask(demand, opening.profile)
        if opening.is_supposed:
            return self.first_cut(mask, opening) or self.refusal(mask)
        for level in sorted(self._by_level):
            slot = self._by_level[level].first(mask)
            if slot is not None:
                return self.cut(self.by_slot[slot], mask) or self.refusal(mask)
        return self.refusal(mask)
