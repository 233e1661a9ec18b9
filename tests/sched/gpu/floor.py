"""A policy without a job book: what it places, leases and loses, all at once, as in the paper's model of time."""

from __future__ import annotations

from dataclasses import dataclass

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Opening, Placement, Policy

LANES = 128


@dataclass
class Held:
    view: LeaseView
    jobs: set[int]


class Floor:
    """``assign`` opens a lease where the policy places the job nowhere; ``end`` closes the lease of the last job."""

    def __init__(self, policy: Policy, gpus: list[GpuSpec]) -> None:
        self.policy = policy
        self.jobs: dict[int, tuple[Demand, Placement]] = {}
        self.leases: dict[int, Held] = {}
        self.models = {gpu.gpu: gpu.model for gpu in gpus}
        self._next = 1
        for gpu in gpus:
            policy.gpu_added(gpu)

    def assign(self, demand: Demand) -> tuple[str, int] | None:
        placed = self.policy.place(demand, 0)
        if not isinstance(placed, Placement):
            plan = self.policy.plan(demand, 0, Opening())
            if not isinstance(plan, LeasePlan):
                return None
            lease = self._next
            self._next += 1
            view = LeaseView(
                lease, demand.tenant, plan.gpu, plan.profile, plan.start, plan.alpha, LANES, 1 << 20,
                self.models[plan.gpu],
            )  # fmt: skip
            self.policy.lease_planned(view)
            self.policy.lease_opened(lease)
            self.leases[lease] = Held(view, set())
            placed = self.policy.place(demand, 0)
            assert isinstance(placed, Placement), placed
            assert placed.lease == lease
        held = self.leases[placed.lease]
        held.jobs.add(demand.job)
        self.jobs[demand.job] = demand, placed
        return held.view.gpu, held.view.start

    def end(self, job: int) -> None:
        demand, placed = self.jobs.pop(job)
        self.policy.release(placed, demand.share, 0)
        held = self.leases[placed.lease]
        held.jobs.remove(job)
        if not held.jobs:
            self.policy.lease_draining(placed.lease)
            self.policy.lease_lost(placed.lease)
            del self.leases[placed.lease]
