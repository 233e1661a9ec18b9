"""`greedy-first-fit`: which lease a job is routed to, where the next lease is cut, and what a refusal says."""

from __future__ import annotations

import pytest

from offpath.sched.errors import IllegalPlacement
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Obstacle, Opening, Placement, Refusal, Unblocker

from ..gpus import MIB, a30, a100

ALPHA = {"1g.5gb": 14, "1g.10gb": 14, "2g.10gb": 28, "3g.20gb": 42, "4g.20gb": 57, "7g.40gb": 100}


def demand(share: int, tenant: str = "ada", payload: int = 0) -> Demand:
    return Demand(1, tenant, share, payload)


class Fleet:
    """A policy over A100s named gpu-0, gpu-1, …"""

    def __init__(self, gpus: int = 1) -> None:
        self.policy = GreedyFirstFit()
        self.leases = 0
        for number in range(gpus):
            self.policy.gpu_added(a100(f"gpu-{number}"))

    def plan_lease(self, profile: str, start: int, tenant: str = "ada", gpu: int = 0, lanes: int = 2) -> int:
        self.leases += 1
        view = LeaseView(self.leases, tenant, f"gpu-{gpu}", profile, start, ALPHA[profile], lanes, MIB)
        self.policy.lease_planned(view)
        return self.leases

    def warm(self, profile: str, start: int, tenant: str = "ada", gpu: int = 0, lanes: int = 2) -> int:
        lease = self.plan_lease(profile, start, tenant, gpu, lanes)
        self.policy.lease_opened(lease)
        return lease

    def place(self, share: int, tenant: str = "ada", payload: int = 0) -> Placement | Refusal:
        return self.policy.place(demand(share, tenant, payload), 0)

    def plan(
        self, share: int, *, lease_bytes: int = 0, profile: str | None = None, gone: tuple[int, ...] = ()
    ) -> object:
        return self.policy.plan(demand(share), 0, Opening(lease_bytes, profile, frozenset(gone)))


# -- leasing: which instance is cut -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "profile"),
    [
        (1, "1g.5gb"), (14, "1g.5gb"), (15, "2g.10gb"), (28, "2g.10gb"), (29, "3g.20gb"), (42, "3g.20gb"),
        (43, "4g.20gb"), (57, "4g.20gb"), (58, "7g.40gb"), (100, "7g.40gb"),
    ],
)  # fmt: skip
def test_the_smallest_fraction_of_table_3_that_holds_the_demand_is_cut(share: int, profile: str) -> None:
    assert Fleet().plan(share) == LeasePlan("gpu-0", profile, 0, ALPHA[profile])


def test_lanes_that_do_not_fit_the_smallest_memory_take_the_next_profile_of_the_same_fraction() -> None:
    """1g.5gb offers 4 864 MiB; 1g.10gb has one compute slice too, and comes before 2g.10gb."""
    assert Fleet().plan(14, lease_bytes=4_864 * MIB) == LeasePlan("gpu-0", "1g.5gb", 0, 14)
    assert Fleet().plan(14, lease_bytes=4_865 * MIB) == LeasePlan("gpu-0", "1g.10gb", 0, 14)


def test_media_engines_are_cut_only_for_who_names_them() -> None:
    assert Fleet().plan(14, profile="1g.5gb+me") == LeasePlan("gpu-0", "1g.5gb+me", 0, 14)


def test_a_named_profile_is_cut_when_it_holds_the_demand_and_else_the_smallest_that_does() -> None:
    fleet = Fleet()
    assert fleet.plan(14, profile="3g.20gb") == LeasePlan("gpu-0", "3g.20gb", 0, 42)
    assert fleet.plan(50, profile="3g.20gb") == LeasePlan("gpu-0", "4g.20gb", 0, 57)


def test_the_lowest_legal_start_on_the_first_gpu_that_has_room_is_taken() -> None:
    fleet = Fleet(gpus=2)
    fleet.plan_lease("1g.5gb", 0)
    fleet.plan_lease("2g.10gb", 2)
    assert fleet.plan(14) == LeasePlan("gpu-0", "1g.5gb", 1, 14)
    assert fleet.plan(42) == LeasePlan("gpu-0", "3g.20gb", 4, 42)
    assert fleet.plan(57) == LeasePlan("gpu-1", "4g.20gb", 0, 57)


def test_on_a_gpu_without_the_smallest_fraction_the_next_one_is_cut_before_another_gpu_is_asked() -> None:
    """First GPU, then smallest fraction: slices 0-3 are free, compute for three of them is not used up by 3g at 4."""
    fleet = Fleet(gpus=2)
    fleet.plan_lease("3g.20gb", 0)
    fleet.plan_lease("1g.5gb", 6)
    assert fleet.plan(29) == LeasePlan("gpu-1", "3g.20gb", 0, 42)
    assert fleet.plan(28) == LeasePlan("gpu-0", "2g.10gb", 4, 28)


def test_a_plan_takes_nothing() -> None:
    fleet = Fleet()
    assert [fleet.plan(100) for _ in range(3)] == [LeasePlan("gpu-0", "7g.40gb", 0, 100)] * 3


def test_a_plan_may_assume_leases_gone() -> None:
    fleet = Fleet()
    first, second = fleet.plan_lease("4g.20gb", 0), fleet.plan_lease("3g.20gb", 4)
    assert fleet.plan(100, gone=(first,)) == Refusal(
        (Obstacle.GEOMETRY, Obstacle.TENANT_CLASH), (Unblocker.LEASE_CLOSES, Unblocker.HELPER_JOINS)
    )
    assert fleet.plan(100, gone=(first, second)) == LeasePlan("gpu-0", "7g.40gb", 0, 100)


def test_a_planned_lease_holds_its_slices_until_it_is_lost() -> None:
    fleet = Fleet()
    lease = fleet.warm("7g.40gb", 0)
    with pytest.raises(IllegalPlacement):
        fleet.plan_lease("1g.5gb", 0)
    fleet.policy.lease_draining(lease)
    with pytest.raises(IllegalPlacement):
        fleet.plan_lease("1g.5gb", 0)
    fleet.policy.lease_lost(lease)
    assert fleet.plan(100) == LeasePlan("gpu-0", "7g.40gb", 0, 100)


def test_without_a_gpu_only_a_helper_can_lift_the_refusal() -> None:
    assert Fleet(gpus=0).plan(14) == Refusal((Obstacle.NO_GPU,), (Unblocker.HELPER_JOINS,))


def test_a_demand_that_no_profile_holds_is_refused_as_such() -> None:
    refusal = Refusal((Obstacle.NO_PROFILE,), (Unblocker.HELPER_JOINS, Unblocker.CONFIGURATION))
    assert Fleet().plan(101) == refusal
    assert Fleet().plan(14, lease_bytes=1 << 50) == refusal


def test_a_gpu_that_left_is_asked_no_more() -> None:
    fleet = Fleet(gpus=2)
    fleet.policy.gpu_removed("gpu-0")
    assert fleet.plan(14) == LeasePlan("gpu-1", "1g.5gb", 0, 14)
    fleet.policy.gpu_removed("gpu-1")
    fleet.policy.gpu_removed("gpu-1")
    assert fleet.plan(14) == Refusal((Obstacle.NO_GPU,), (Unblocker.HELPER_JOINS,))


def test_gpus_of_different_models_are_each_cut_by_their_own_table() -> None:
    policy = GreedyFirstFit()
    policy.gpu_added(a30("small"))
    policy.gpu_added(a100("large"))
    assert policy.plan(demand(15), 0, Opening()) == LeasePlan("small", "1g.6gb", 0, 25)
    assert policy.plan(demand(15), 0, Opening(6_000 * MIB)) == LeasePlan("small", "2g.12gb", 0, 50)
    assert policy.plan(demand(15), 0, Opening(24_000 * MIB)) == LeasePlan("large", "7g.40gb", 0, 100)


# -- routing: which lane a job gets -------------------------------------------------------------------------------
def test_a_job_goes_to_the_first_of_its_tenants_leases_that_has_share_and_a_lane() -> None:
    """First: by GPU as they joined, then by start, whatever the order they were opened in."""
    fleet = Fleet(gpus=2)
    third, second, first = fleet.warm("2g.10gb", 0, gpu=1), fleet.warm("2g.10gb", 4), fleet.warm("2g.10gb", 0)
    assert [fleet.place(28) for _ in range(3)] == [Placement(lease, 0, False) for lease in (first, second, third)]


def test_a_job_that_finds_no_share_is_prefetched_onto_the_lease_with_the_least_load() -> None:
    fleet = Fleet()
    large, small = fleet.warm("4g.20gb", 0), fleet.warm("2g.10gb", 4)
    assert fleet.place(57) == Placement(large, 0, False)
    assert fleet.place(20) == Placement(small, 0, False)
    assert fleet.place(20) == Placement(small, 1, True)
    assert fleet.place(20) == Placement(large, 1, True)
    assert fleet.place(20) == Refusal((Obstacle.LANES,), (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS))


def test_a_lane_that_is_given_back_is_used_again_first() -> None:
    fleet = Fleet()
    lease = fleet.warm("7g.40gb", 0, lanes=3)
    placed = [fleet.place(10) for _ in range(2)]
    assert placed == [Placement(lease, 0, False), Placement(lease, 1, False)]
    assert isinstance(placed[0], Placement)
    fleet.policy.release(placed[0], 10, 0)
    assert fleet.place(10) == Placement(lease, 0, False)


def test_a_share_that_is_given_back_can_be_placed_again() -> None:
    fleet = Fleet()
    fleet.warm("1g.5gb", 0)
    first = fleet.place(14)
    assert isinstance(first, Placement)
    fleet.policy.release(first, 14, 0)
    again = fleet.place(14)
    assert isinstance(again, Placement)
    assert not again.is_prefetch


def test_another_tenants_lease_is_no_lease() -> None:
    fleet = Fleet()
    fleet.warm("7g.40gb", 0, tenant="bob")
    assert fleet.place(14) == Refusal((Obstacle.NO_LEASE,), (Unblocker.LEASE_OPENS,))


@pytest.mark.parametrize("until", ["planned", "draining", "lost"])
def test_a_lease_that_is_not_warm_is_no_lease(until: str) -> None:
    fleet = Fleet()
    lease = fleet.plan_lease("7g.40gb", 0)
    if until != "planned":
        fleet.policy.lease_opened(lease)
        fleet.policy.lease_draining(lease)
    if until == "lost":
        fleet.policy.lease_lost(lease)
    assert fleet.place(14) == Refusal((Obstacle.NO_LEASE,), (Unblocker.LEASE_OPENS,))


def test_a_job_may_leave_a_lease_that_drains_or_is_lost() -> None:
    fleet = Fleet()
    lease = fleet.warm("7g.40gb", 0)
    first, second = fleet.place(14), fleet.place(14)
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    fleet.policy.lease_draining(lease)
    fleet.policy.release(first, 14, 0)
    fleet.policy.lease_lost(lease)
    fleet.policy.release(second, 14, 0)
    assert fleet.place(14) == Refusal((Obstacle.NO_LEASE,), (Unblocker.LEASE_OPENS,))


@pytest.mark.parametrize(
    ("share", "payload", "refusal"),
    [
        (29, 0, Refusal((Obstacle.DEMAND,), (Unblocker.LEASE_OPENS,))),
        (28, MIB + 1, Refusal((Obstacle.MEMORY,), (Unblocker.CONFIGURATION,))),
    ],
)
def test_a_refusal_names_what_stands_in_the_way_and_what_lifts_it(share: int, payload: int, refusal: Refusal) -> None:
    fleet = Fleet()
    fleet.warm("2g.10gb", 0)
    assert fleet.place(share, payload=payload) == refusal


def test_a_refused_job_leaves_no_trace() -> None:
    fleet = Fleet()
    lease = fleet.warm("1g.5gb", 0, lanes=1)
    for _ in range(5):
        assert isinstance(fleet.place(50), Refusal)
        assert isinstance(fleet.place(14, payload=2 * MIB), Refusal)
    assert fleet.place(14) == Placement(lease, 0, False)
