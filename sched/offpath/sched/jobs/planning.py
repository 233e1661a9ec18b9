"""Where a tenant's next lease would be, and what it would be like. Reads the ledger, and changes nothing."""

from __future__ import annotations

from typing import Final

from offpath.sched.gpu.geometry import GpuSpec, Profile, Slice
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Obstacle, Opening, Refusal, Unblocker
from offpath.sched.jobs import events, gangs
from offpath.sched.jobs.demands import demand_of
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Tenant
from offpath.sched.jobs.settings import TenantSpec

Need = tuple[int, int]
"""R in percent of the GPU, 0 if not known, and bytes of memory that each lane of a lease must have for a job."""
MOST_PROSPECTS: Final = 8
"""Leases that `Plans.prospects` looks for. A plan of a policy takes about 10 µs."""
_ANYBODY: Final = TenantSpec("")
QUOTA: Final = Refusal((Obstacle.QUOTA,), (Unblocker.LEASE_CLOSES, Unblocker.CONFIGURATION))


class Plans:
    """Plans leases on the GPUs of all helpers."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = self._ledger = ledger
        self._gpus: dict[str, GpuSpec] = {}

    @property
    def gpus(self) -> list[GpuSpec]:
        """The GPUs of all helpers: by helper as these joined, then in the helper's order."""
        return list(self._gpus.values())

    def prospects(self, demand: Demand, tenant: Tenant, now_ns: int) -> tuple[int, list[LeaseView]]:
        """The leases that a backlog of such jobs would open in what is free and not being cleared for others,
        `MOST_PROSPECTS` at most, and the time from now before which none is. They are opened one after the other, so
        later ones are even later. Leases that could be taken from others do not count. Call it within an event only: a
        policy notes what it was last asked for.
        """
        waits_ns = self._ledger.settings.grow_after_ns
        reserved = set[Slice]()
        for other in self._ledger.backlogged.values():
            if other is tenant:
                waits_ns -= min(waits_ns, now_ns - tenant.need_since_ns)
            else:
                reserved |= other.room
        found: list[LeaseView] = []
        left = tenant.spec.max_share - tenant.held_share
        while len(found) < MOST_PROSPECTS:
            plan = self._plan(demand, tenant, now_ns, frozenset(), reserved, is_forecast=True)
            if isinstance(plan, Refusal) or plan.alpha > left:
                break
            left -= plan.alpha
            reserved |= self._slices(plan)
            found.append(self._view(0, tenant, plan, self._need_on(plan, demand)))
        return max(waits_ns, tenant.retry_open_ns - now_ns), found

    def _plan(
        self,
        demand: Demand,
        tenant: Tenant,
        now_ns: int,
        assume_free: frozenset[int],
        reserved: set[Slice],
        *,
        is_forecast: bool = False,
    ) -> LeasePlan | Refusal:
        opening = Opening(self.lease_bytes, tenant.spec.profile, assume_free, frozenset(reserved))
        gone = sum(held.view.alpha for held in tenant.leases.values() if held.view.lease in assume_free)
        most = tenant.spec.max_share - tenant.held_share + gone
        if demand.share > 100:
            plan = gangs.plan(self.gpus, demand, opening, self._ledger.leases.values(), most)
        else:
            policy = self._ledger.policy
            policy = self._ledger.decisions.forecaster(policy) if is_forecast else policy
            plan = policy.plan(demand, now_ns, opening)
        if isinstance(plan, Refusal) or plan.alpha <= most:
            return plan
        # Policies do not know the quota. An instance of a GPU of another kind may be a smaller part of its GPU.
        alike = self._alike(self._gpus[plan.gpu])
        slices = {(gpu.gpu, slice_) for gpu in alike for slice_ in range(gpu.memory_slices)}
        if demand.share > 100 or len(alike) == len(self._gpus) or slices <= reserved:
            return QUOTA
        other = self._plan(demand, tenant, now_ns, assume_free, reserved | slices, is_forecast=is_forecast)
        return other if isinstance(other, LeasePlan) else QUOTA

    def _alike(self, gpu: GpuSpec) -> list[GpuSpec]:
        """The GPUs with its model and profiles, itself included."""
        return [each for each in self._gpus.values() if (each.model, each.profiles) == (gpu.model, gpu.profiles)]

    def _view(self, lease: int, tenant: Tenant, plan: LeasePlan, need: Need) -> LeaseView:
        """``need``: of the jobs that the lease is for, which sets the number of its lanes."""
        lanes, gpu = self._lanes(plan, need), self._gpus[plan.gpu]
        return LeaseView(
            lease, tenant.spec.name, plan.gpu, plan.profile, plan.start, plan.alpha, lanes,
            self._ledger.settings.landing_bytes, gpu.model, self._job_bytes(plan) // lanes, gpu.helper, plan.others,
        )  # fmt: skip

    def _slices(self, held: LeaseView | LeasePlan) -> set[Slice]:
        slices = self._profile(held).memory_slices
        return {(gpu, slice_) for gpu in held.gpus for slice_ in range(held.start, held.start + slices)}

    def _profile(self, held: LeaseView | LeasePlan) -> Profile:
        profile = self._gpus[held.gpu].profile(held.profile)
        assert profile is not None, "leases are planned from the GPU's own profiles"
        return profile

    def _lanes(self, plan: LeasePlan, need: Need) -> int:
        """A lane for each job that fits the lease's share at once, and one to copy the next into meanwhile; as many as
        the instance's memory holds. `lease_bytes` made sure that the least number fits.

        Lanes share the instance's memory equally, whatever runs in them. Jobs that state their memory get fewer lanes,
        down to one, so that each lane's part is enough for one of them."""
        settings, profile = self._ledger.settings, self._profile(plan)
        share, memory_bytes = need
        lanes = settings.lanes
        if share and settings.max_lanes > settings.lanes:
            useful = min(plan.alpha // share + 1, settings.max_lanes)
            lane_bytes = settings.landing_bytes + settings.result_bytes
            lanes = max(lanes, min(useful, profile.memory_bytes // lane_bytes) if lane_bytes else useful)
        return max(1, min(lanes, self._job_bytes(plan) // memory_bytes)) if memory_bytes else lanes

    def _job_bytes(self, plan: LeasePlan) -> int:
        """The memory for jobs on all GPUs of the lease; each counts as the smallest of them."""
        profiles = [self._gpus[gpu].profile(plan.profile) for gpu in plan.gpus]
        return len(profiles) * min([profile.job_bytes for profile in profiles if profile is not None])

    def _need_on(self, plan: LeasePlan, demand: Demand) -> Need:
        return demand.share_on(self._gpus[plan.gpu].model), demand.memory_bytes

    def _need_of_all(self, plan: LeasePlan, kernels: tuple[events.Kernel, ...]) -> Need:
        """The least share and the greatest memory of those kernels that can run on the instance at all."""
        demands = [demand_of(0, kernel, _ANYBODY, self._ledger.settings, 0, 0) for kernel in kernels]
        needs = [self._need_on(plan, demand) for demand in demands]
        nbytes = self._job_bytes(plan)
        able = [(share, memory) for share, memory in needs if 0 < share <= plan.alpha and memory <= nbytes]
        return min((share for share, _ in able), default=0), max((memory for _, memory in able), default=0)

    @property
    def lease_bytes(self) -> int:
        """The memory of a lease's lanes, if it has as few as the settings allow."""
        settings = self._ledger.settings
        return settings.lanes * (settings.landing_bytes + settings.result_bytes)
