"""`greedy-first-fit`: a simple, correct form of Algorithm 1 of Conspirator, split into routing and leasing.

Routing is its branch "fraction already allocated to the tenant" (lines 20-28), leasing its branch "unoccupied fraction"
(29-40). Errors of the printed text are corrected: R > 0 finds the tenant; another tenant's fraction is skipped, a free
one is not; the fraction itself must hold R. Fractions are tried in Table 3's order, smallest first, and GPUs in the
order they joined, so "first that fits" takes the smallest fraction that holds the job. Placement obeys MIG's geometry,
which the paper's capacity model leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offpath.sched.errors import IllegalPlacement
from offpath.sched.gpu.geometry import GpuGeometry, GpuSpec, Profile, take_all
from offpath.sched.gpu.policy import (
    Demand,
    LeasePlan,
    LeaseView,
    Obstacle,
    Opening,
    Placement,
    PolicyState,
    Refusal,
    Unblocker,
    WarmState,
    runs_on,
)

_NO_LEASE = Refusal((Obstacle.NO_LEASE,), (Unblocker.LEASE_OPENS,))
_LANES = Refusal((Obstacle.LANES,), (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS))
_DEMAND = Refusal((Obstacle.DEMAND,), (Unblocker.LEASE_OPENS,))
_MEMORY = Refusal((Obstacle.MEMORY,), (Unblocker.CONFIGURATION,))
_NO_GPU = Refusal((Obstacle.NO_GPU,), (Unblocker.HELPER_JOINS,))
_NO_PROFILE = Refusal((Obstacle.NO_PROFILE,), (Unblocker.HELPER_JOINS, Unblocker.CONFIGURATION))
_GEOMETRY = Refusal((Obstacle.GEOMETRY, Obstacle.TENANT_CLASH), (Unblocker.LEASE_CLOSES, Unblocker.HELPER_JOINS))


@dataclass(slots=True)
class _Warm:
    """A lease with its free lanes (a stack: the lane used last is in cache) and the share placed on it."""

    view: LeaseView
    order: tuple[int, int]
    free_lanes: list[int] = field(default_factory=list)
    placed_share: int = 0


class GreedyFirstFit:
    """Implements `offpath.sched.gpu.policy.Policy`."""

    name: ClassVar[str] = "greedy-first-fit"

    def __init__(self) -> None:
        self._gpus: dict[str, GpuGeometry] = {}
        self._gpu_order: dict[str, int] = {}
        self._joined = 0
        self._leases: dict[int, _Warm] = {}
        self._by_tenant: dict[str, list[_Warm]] = {}

    def state(self) -> PolicyState:
        """See `Policy.state`."""
        gpus = tuple((geometry.spec, self._gpu_order[name]) for name, geometry in self._gpus.items())
        open_leases = {warm.view.lease for leases in self._by_tenant.values() for warm in leases}
        leases = tuple(
            WarmState(warm.view, tuple(warm.free_lanes), warm.placed_share, lease in open_leases)
            for lease, warm in self._leases.items()
        )
        return PolicyState(gpus, leases, self._joined)

    def restore(self, state: PolicyState) -> None:
        """See `Policy.restore`."""
        for spec, order in state.gpus:
            self._gpus[spec.gpu] = GpuGeometry(spec)
            self._gpu_order[spec.gpu] = order
        self._joined = state.joined
        for held in state.leases:
            for gpu in held.view.gpus:
                if gpu not in self._gpus or self._gpus[gpu].spec.profile(held.view.profile) is None:
                    raise IllegalPlacement(f"lease {held.view.lease} on {gpu}, which offers no such profile")
            self.lease_planned(held.view)
            if held.is_open:
                self.lease_opened(held.view.lease)
            warm = self._leases[held.view.lease]
            warm.free_lanes = list(held.free_lanes)
            warm.placed_share = held.placed_share

    def gpu_added(self, spec: GpuSpec) -> None:
        """See `Policy.gpu_added`."""
        self._gpus[spec.gpu] = GpuGeometry(spec)
        self._gpu_order[spec.gpu] = self._joined
        self._joined += 1

    def gpu_removed(self, gpu: str) -> None:
        """See `Policy.gpu_removed`."""
        self._gpus.pop(gpu, None)
        self._gpu_order.pop(gpu, None)

    def lease_planned(self, lease: LeaseView) -> None:
        """See `Policy.lease_planned`."""
        take_all([self._gpus[gpu] for gpu in lease.gpus], lease.lease, lease.profile, lease.start)
        self._leases[lease.lease] = _Warm(lease, (self._gpu_order[lease.gpu], lease.start))

    def lease_opened(self, lease: int) -> None:
        """See `Policy.lease_opened`."""
        warm = self._leases[lease]
        warm.free_lanes = list(range(warm.view.lanes - 1, -1, -1))
        leases = self._by_tenant.setdefault(warm.view.tenant, [])
        leases.append(warm)
        leases.sort(key=lambda w: w.order)

    def lease_draining(self, lease: int) -> None:
        """See `Policy.lease_draining`."""
        warm = self._leases[lease]
        leases = self._by_tenant.get(warm.view.tenant, [])
        if warm in leases:
            leases.remove(warm)
            if not leases:
                del self._by_tenant[warm.view.tenant]

    def lane_paused(self, lease: int, lane: int) -> None:
        """See `Policy.lane_paused`."""
        free_lanes = self._leases[lease].free_lanes
        if lane in free_lanes:
            free_lanes.remove(lane)

    def lane_taken(self, lease: int, lane: int, share: int, now_ns: int) -> None:
        """See `Policy.lane_taken`."""
        warm = self._leases[lease]
        warm.free_lanes.remove(lane)
        warm.placed_share += share

    def lease_lost(self, lease: int) -> None:
        """See `Policy.lease_lost`."""
        self.lease_draining(lease)
        warm = self._leases.pop(lease)
        for gpu in warm.view.gpus:
            if gpu in self._gpus:
                self._gpus[gpu].give_back(lease)

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """First fit over the tenant's warm leases; otherwise prefetch onto the least loaded one with a free lane."""
        leases = self._by_tenant.get(demand.tenant)
        if leases is None:
            return _NO_LEASE
        prefetch: _Warm | None = None
        share = held = demand.share
        refusal = _DEMAND
        for warm in leases:
            view = warm.view
            share = demand.share_on(view.model) if demand.models else demand.share
            if not 0 < share <= view.alpha or demand.memory_bytes > view.lane_bytes:
                continue
            if demand.helpers and view.helper not in demand.helpers:
                continue
            if view.landing_bytes < demand.payload_bytes:
                refusal = _MEMORY
                continue
            if not warm.free_lanes:
                refusal = _LANES
                continue
            if warm.placed_share + share <= view.alpha:
                warm.placed_share += share
                return Placement(view.lease, warm.free_lanes.pop(), False)
            if prefetch is None or warm.placed_share * prefetch.view.alpha < prefetch.placed_share * view.alpha:
                prefetch, held = warm, share
        if prefetch is not None:
            prefetch.placed_share += held
            return Placement(prefetch.view.lease, prefetch.free_lanes.pop(), True)
        return refusal

    def release(self, placement: Placement, share: int, now_ns: int) -> None:
        """See `Policy.release`."""
        warm = self._leases.get(placement.lease)
        if warm is not None:
            warm.placed_share -= share
            warm.free_lanes.append(placement.lane)

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """First GPU, smallest fraction, lowest start that holds the demand (or is the requested ``profile``)."""
        if not self._gpus:
            return _NO_GPU
        is_known = False
        for name, geometry in self._gpus.items():
            for candidate in candidates(geometry.spec, demand, opening.lease_bytes, opening.profile):
                is_known = True
                start = geometry.first_start(candidate, opening.assume_free, opening.reserved)
                if start is not None:
                    return LeasePlan(name, candidate.name, start, geometry.spec.alpha(candidate))
        return _GEOMETRY if is_known else _NO_PROFILE


def candidates(spec: GpuSpec, demand: Demand, lease_bytes: int, wanted: str | None) -> list[Profile]:
    """Profiles that hold the demand and lanes, in Table 3's order; media-engine variants ("+me") only if requested by
    name."""
    share = demand.share_on(spec.model) if runs_on(demand, spec) else 0
    fitting = [
        profile
        for profile in spec.profiles
        if 0 < share <= spec.alpha(profile)
        and profile.memory_bytes >= lease_bytes
        and profile.job_bytes >= demand.memory_bytes
    ]
    named = [p for p in fitting if p.name == wanted]
    if wanted is not None and named:
        return named
    plain = [p for p in fitting if "+" not in p.name]
    return sorted(plain, key=lambda p: (p.compute_slices, p.memory_slices))
