"""What every policy keeps to, whatever it prefers: one tenant per instance, MIG's rules, lanes and shares; and going on
from a state is going on."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from offpath.sched.gpu.baselines import BestFit, Exclusive, FirstFitPolicy, MpsOnly
from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.paper import paper_gpu
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Opening, Placement, Policy, PolicyState
from offpath.sched.plain import from_plain, to_plain

from ...sizes import sized
from ..gpus import MIB, a30, a100, is_legal

RUNS = sized(quick=5, fast=7, slow=30, full=500)
STEPS = 120
POLICIES: dict[str, type[Policy]] = {
    each.name: each
    for each in (GreedyFirstFit, ConspiratorPaper, MpsOnly, Exclusive, FirstFitPolicy, BestFit, OldestGpuFirst)
}


class Story:
    """Random openings, placements, ends and losses; the rules are looked at after each."""

    def __init__(self, kind: type[Policy], seed: str) -> None:
        self.random = Random(seed)
        self.kind = kind
        self.policy = kind()
        self.gpus: dict[str, GpuSpec] = {}
        self.views: dict[int, LeaseView] = {}
        self.open: set[int] = set()
        self.jobs: dict[int, tuple[Demand, Placement]] = {}
        self.now_ns = 0
        self._next = 0
        for _ in range(self.random.randint(1, 4)):
            self.add_gpu()

    def number(self) -> int:
        self._next += 1
        return self._next

    def add_gpu(self) -> None:
        made = self.random.choice((a100, a30, paper_gpu))(f"g{self.number()}")
        self.gpus[made.gpu] = made
        self.policy.gpu_added(made)

    def step(self) -> str:
        self.now_ns += self.random.choice((0, 1, 10**9, 60 * 10**9, 10**13))
        kinds = (self.submit, self.submit, self.submit, self.end, self.end, self.lose, self.go_on, self.swap_gpu)
        return self.random.choice(kinds)()

    def submit(self) -> str:
        share = self.random.choice((1, 10, 14, 25, 33, 50, 57, 81, 100))
        models = tuple((gpu.model, self.random.choice((share, 14, 50))) for gpu in self.gpus.values())
        models = tuple(dict(models if self.random.random() < 0.3 else ()).items())
        demand = Demand(
            self.number(), self.random.choice("abc"), min((each for _, each in models), default=share),
            self.random.choice((0, MIB)), models, self.random.choice((0, 0, 1, 2_400, 4_900, 10_000, 30_000)) * MIB,
        )  # fmt: skip
        placed = self.policy.place(demand, self.now_ns)
        if isinstance(placed, Placement):
            self.jobs[demand.job] = demand, placed
            return f"placed {placed}"
        plan = self.policy.plan(demand, self.now_ns, Opening(2 * MIB))
        if not isinstance(plan, LeasePlan):
            return f"refused {placed}, {plan}"
        lease = self.number()
        spec = self.gpus[plan.gpu]
        profile = spec.profile(plan.profile)
        assert profile is not None
        assert plan.alpha >= demand.share_on(spec.model) > 0
        assert profile.memory_bytes >= demand.memory_bytes
        lanes = self.random.choice((1, 2)) if demand.memory_bytes else 2
        view = LeaseView(
            lease, demand.tenant, plan.gpu, plan.profile, plan.start, plan.alpha, lanes, MIB, spec.model,
            profile.memory_bytes // lanes,
        )  # fmt: skip
        self.policy.lease_planned(view)
        self.views[lease] = view
        if self.random.random() < 0.9:
            self.policy.lease_opened(lease)
            self.open.add(lease)
        return f"planned {plan} after {placed}"

    def end(self) -> str:
        if not self.jobs:
            return "nothing"
        demand, placed = self.jobs.pop(self.random.choice(list(self.jobs)))
        self.policy.release(placed, demand.share_on(self.views[placed.lease].model), self.now_ns)
        if not any(p.lease == placed.lease for _, p in self.jobs.values()) and self.random.random() < 0.5:
            self.drop(placed.lease)
        return f"ended {placed}"

    def lose(self) -> str:
        if not self.views or self.random.random() < 0.7:
            return "nothing"
        lease = self.random.choice(list(self.views))
        if lease in self.open and self.random.random() < 0.5:
            self.policy.lease_draining(lease)
            self.open.discard(lease)
            return f"draining {lease}"
        self.drop(lease)
        return f"lost {lease}"

    def drop(self, lease: int) -> None:
        gone = [job for job, (_, placed) in self.jobs.items() if placed.lease == lease]
        self.policy.lease_lost(lease)
        model = self.views.pop(lease).model
        self.open.discard(lease)
        for job in gone:
            demand, placed = self.jobs.pop(job)
            self.policy.release(placed, demand.share_on(model), self.now_ns)  # the book says it in this order

    def swap_gpu(self) -> str:
        if self.random.random() < 0.8:
            return "nothing"
        name = self.random.choice(list(self.gpus))
        for lease in [lease for lease, view in self.views.items() if view.gpu == name]:
            self.drop(lease)
        self.policy.gpu_removed(name)
        del self.gpus[name]
        self.add_gpu()
        return f"{name} swapped"

    def go_on(self) -> str:
        """From the state, as a journal's checkpoint keeps it."""
        state = from_plain(PolicyState, to_plain(self.policy.state()))
        self.policy = self.kind()
        self.policy.restore(state)
        return "went on"

    def check(self) -> None:
        for name, spec in self.gpus.items():
            assert is_legal(spec, [(view.profile, view.start) for view in self.views.values() if view.gpu == name])
        lanes = [(placed.lease, placed.lane) for _, placed in self.jobs.values()]
        assert len(lanes) == len(set(lanes))
        for lease, view in self.views.items():
            mine = [(demand, placed) for demand, placed in self.jobs.values() if placed.lease == lease]
            assert {demand.tenant for demand, _ in mine} <= {view.tenant}
            shares = [demand.share_on(self.gpus[view.gpu].model) for demand, _ in mine]
            assert all(0 < share <= view.alpha for share in shares)
            assert all(0 <= placed.lane < view.lanes for _, placed in mine)
            profile = self.gpus[view.gpu].profile(view.profile)
            assert profile is not None
            assert all(demand.memory_bytes * view.lanes <= profile.memory_bytes for demand, _ in mine)
            if not any(placed.is_prefetch for _, placed in mine):
                assert sum(shares) <= view.alpha


def keeps_the_rules(kind: type[Policy], seed: str) -> None:
    story = Story(kind, seed)
    for _ in range(STEPS):
        story.step()
        story.check()


def goes_on_the_same(kind: type[Policy], seed: str) -> None:
    plain, resumed = Story(kind, seed), Story(kind, seed)
    plain.go_on = lambda: "went on"  # type: ignore[method-assign]
    for _ in range(STEPS):
        assert plain.step() == resumed.step()
        assert to_plain(plain.policy.state()) == to_plain(resumed.policy.state())


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_tenants_geometry_and_capacity(name: str) -> None:
    for seed in range(RUNS):
        keeps_the_rules(POLICIES[name], f"{name} {seed}")


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_goes_on_from_its_state_decides_the_same(name: str) -> None:
    for seed in range(RUNS):
        goes_on_the_same(POLICIES[name], f"{seed}")


@pytest.mark.parametrize("name", POLICIES)
def test_a_gpu_is_what_its_helper_says_whatever_other_gpus_of_that_name_were(name: str) -> None:
    """A policy that had seen them decides as one that had not, and keeps nothing of them."""
    policy, fresh = POLICIES[name](), POLICIES[name]()
    other = replace(a100("g1"), profiles=tuple(p for p in a100().profiles if p.compute_slices in (1, 7)))
    policy.gpu_added(a100("g0"))
    policy.gpu_removed("g0")
    for each in (policy, fresh):
        each.gpu_added(other)
    for share in (10, 42, 100):
        demand = Demand(share, "a", share, 0)
        assert policy.plan(demand, 0, Opening()) == fresh.plan(demand, 0, Opening())
    policy.gpu_added(a100("g2"))
    policy.gpu_removed("g1")
    plan = policy.plan(Demand(1, "a", 42, 0), 0, Opening())
    assert isinstance(plan, LeasePlan)
    assert plan.gpu == "g2"
    policy.gpu_removed("g2")
    kept = [getattr(policy, name, None) for name in ("_kinds", "_tables", "_legal", "_filed")]
    assert not any(kept)


def test_shipped_cuts_where_a_gpu_stays_in_use() -> None:
    """Old before full before first; an idle GPU last."""
    policy = OldestGpuFirst()
    for n in range(4):
        policy.gpu_added(paper_gpu(f"g{n}"))

    def open_on(lease: int, gpu: str, share: int, start: int, now_ns: int) -> None:
        view = LeaseView(lease, f"t{lease}", gpu, f"{share}%", start, share, 2, MIB)
        policy.lease_planned(view)
        policy.lease_opened(lease)
        assert isinstance(policy.place(Demand(lease, f"t{lease}", share, 0), now_ns), Placement)

    def where(now_ns: int) -> str:
        plan = policy.plan(Demand(99, "new", 14, 0), now_ns, Opening())
        assert isinstance(plan, LeasePlan)
        return plan.gpu

    minute = 60 * 10**9
    assert where(0) == "g0"
    open_on(1, "g2", 14, 0, 0)
    assert where(0) == "g2"  # in use
    open_on(2, "g3", 28, 7, 30 * 10**9)
    assert where(30 * 10**9) == "g3"  # fuller
    assert where(minute) == "g2"  # a minute old, the other is not
    assert where(90 * 10**9) == "g3"  # both are now
    assert where(4 * minute) == "g2"
    policy.release(Placement(1, 0, False), 14, 4 * minute)
    assert where(4 * minute) == "g3"


@pytest.mark.parametrize("base", [OldestGpuFirst, ConspiratorPaper, FirstFitPolicy, BestFit])
def test_a_policy_may_derive_from_a_built_in_one_and_is_called_by_it(base: Any) -> None:
    """As a plug-in does: on the fast build the class is not compiled, and its base is."""

    class Whole(base):  # type: ignore[misc]
        name = "whole"

        def offered(self, spec: GpuSpec) -> list[Profile]:
            return [profile for profile in super().offered(spec) if profile.compute_slices == spec.compute_slices]

        def suits(self, demand: Demand, warm: Any) -> bool:
            return False

    policy, plain = Whole(), base()
    for each in (policy, plain):
        each.gpu_added(a100("g0"))
    demand, opening = Demand(1, "a", 14, 0), Opening()
    assert (policy.plan(demand, 0, opening).alpha, plain.plan(demand, 0, opening).alpha) == (100, 14)
    for each in (policy, plain):
        each.lease_planned(LeaseView(1, "a", "g0", "7g.40gb", 0, 100, 2, MIB))
        each.lease_opened(1)
    assert isinstance(plain.place(demand, 0), Placement)
    assert not isinstance(policy.place(demand, 0), Placement), "no lease suits"
    assert (Whole.name, policy.name) == ("whole", "whole")
