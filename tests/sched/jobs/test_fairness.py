"""Who gets how much, over seconds of virtual time on one A100: weights, no starvation, no thrashing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import JobState

from ..gpus import a100
from .cluster import Cluster

SECOND = 1_000 * MS


def mean_held(cluster: Cluster, until_ns: int) -> dict[str, float]:
    total: Counter[str] = Counter()
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        total.update(cluster.held_share())

    cluster.run(until_ns, every_ns=10 * MS, look=look)
    return {name: held / looks for name, held in total.items()}


@pytest.mark.parametrize("first", ["heavy", "light"])
def test_tenants_of_weights_2_and_1_that_both_want_everything_hold_near_2_to_1(first: str) -> None:
    """One slice is 14 %: 5 + 2 and 4 + 3 of 7 slices are the two nearest splits."""
    cluster = Cluster((TenantSpec("heavy", weight=2), TenantSpec("light", weight=1)), (a100(),))
    second = {"heavy": "light", "light": "heavy"}[first]
    cluster.keep_busy(first, 14, depth=40, kernel_ns=10 * MS)
    cluster.run(1 * SECOND)
    cluster.keep_busy(second, 14, depth=40, kernel_ns=10 * MS)
    cluster.run(3 * SECOND)
    held = mean_held(cluster, 9 * SECOND)
    assert 4 / 3 - 0.1 <= held["heavy"] / held["light"] <= 5 / 2 + 0.1, held
    assert sum(held.values()) >= 90, held


def test_tenants_of_one_weight_get_the_same_work_done() -> None:
    cluster = Cluster((TenantSpec("ada"), TenantSpec("bob"), TenantSpec("cyd")), (a100(),))
    for name in ("ada", "bob", "cyd"):
        cluster.keep_busy(name, 14, depth=30, kernel_ns=5 * MS)
    cluster.run(5 * SECOND)
    before = cluster.completed()
    cluster.run(15 * SECOND)
    done = [cluster.completed()[name] - before[name] for name in ("ada", "bob", "cyd")]
    assert max(done) <= 2 * min(done), done  # 7 slices among 3: two have 2, one has 3


def test_a_split_once_found_stays() -> None:
    """No lease moves to and fro between tenants whose shares are as even as slices allow."""
    cluster = Cluster((TenantSpec("ada"), TenantSpec("bob")), (a100(),))
    cluster.keep_busy("ada", 14, depth=40, kernel_ns=10 * MS)
    cluster.keep_busy("bob", 14, depth=40, kernel_ns=10 * MS)
    cluster.run(3 * SECOND)
    opened = len(cluster.opened)
    cluster.run(10 * SECOND)
    assert len(cluster.opened) == opened


@pytest.mark.parametrize("share", [1, 14, 28, 42, 57, 100])
def test_a_tenant_with_nothing_gets_a_lease_while_another_floods(share: int) -> None:
    """Also a whole GPU, of which it can be given only slice by slice: nobody takes those away again meanwhile."""
    cluster = Cluster((TenantSpec("flood"), TenantSpec("late")), (a100(),))
    cluster.keep_busy("flood", 14, depth=60, kernel_ns=10 * MS)
    cluster.run(1 * SECOND)
    job = cluster.submit("late", share, kernel_ns=10 * MS)
    cluster.run(2 * SECOND)
    answered = cluster.answer_of(job)
    assert answered is not None
    assert answered[1].state is JobState.COMPLETED
    assert answered[0] - 1 * SECOND <= 250 * MS  # reclaim_after 100, a need is looked at each 20, drain, open


def test_a_tenant_with_nothing_gets_a_lease_while_two_flood() -> None:
    cluster = Cluster((TenantSpec("flood"), TenantSpec("surge"), TenantSpec("late")), (a100(),))
    cluster.keep_busy("flood", 14, depth=60, kernel_ns=10 * MS)
    cluster.keep_busy("surge", 28, depth=60, kernel_ns=10 * MS)
    cluster.run(2 * SECOND)
    job = cluster.submit("late", 100, kernel_ns=10 * MS)
    cluster.run(3 * SECOND)
    answered = cluster.answer_of(job)
    assert answered is not None
    assert answered[0] - 2 * SECOND <= 400 * MS


@pytest.mark.parametrize("max_share", [100, 100_000])
def test_a_tenants_own_small_jobs_do_not_starve_its_large_one(max_share: int) -> None:
    """Neither by the slices their leases hold nor by the quota those use up."""
    cluster = Cluster((TenantSpec("ada", max_share=max_share),), (a100(),))
    cluster.keep_busy("ada", 14, depth=40, kernel_ns=10 * MS)
    cluster.run(1 * SECOND)
    job = cluster.submit("ada", 100, kernel_ns=10 * MS)
    cluster.run(2 * SECOND)
    answered = cluster.answer_of(job)
    assert answered is not None
    assert answered[0] - 1 * SECOND <= 600 * MS


def test_a_large_job_that_nobody_can_serve_does_not_starve_a_small_one() -> None:
    """A pin keeps a whole GPU from ever being free; the small demand is made room for all the same."""
    pins = (PinnedLease("flood", 0, "1g.5gb", 6),)
    cluster = Cluster((TenantSpec("flood"), TenantSpec("late")), (a100(),), pins=pins)
    cluster.keep_busy("flood", 14, depth=60, kernel_ns=10 * MS)
    cluster.run(1 * SECOND)
    cluster.submit("late", 100, kernel_ns=10 * MS)
    job = cluster.submit("late", 14, kernel_ns=10 * MS)
    cluster.run(2 * SECOND)
    assert cluster.answer_of(job) is not None


def test_a_flood_that_took_a_pins_place_after_a_fault_does_not_keep_it() -> None:
    """The slices of a pin that could not be opened stay out of others' reach."""
    pins = (PinnedLease("ada", 0, "3g.20gb", 0),)
    cluster = Cluster((TenantSpec("ada"), TenantSpec("flood")), (a100(),), pins=pins)
    cluster.fail(cluster.opened[0][1])
    cluster.keep_busy("flood", 14, depth=60, kernel_ns=10 * MS)
    cluster.run(5 * SECOND)
    assert [(o.tenant, o.profile, o.start) for _, o in cluster.opened if o.tenant == "ada"] == [
        ("ada", "3g.20gb", 0),
        ("ada", "3g.20gb", 0),
    ]
    assert cluster.held_share() == {"ada": 42, "flood": 4 * 14 - 14}


def test_a_backlog_grows_a_tenant_to_its_quota_and_no_further() -> None:
    cluster = Cluster((TenantSpec("ada", max_share=60),), (a100(),))
    cluster.keep_busy("ada", 14, depth=60, kernel_ns=10 * MS)
    cluster.run(2 * SECOND)
    assert cluster.held_share() == {"ada": 56}


def test_the_first_job_of_a_burst_opens_one_lease_and_the_backlog_the_others_one_by_one() -> None:
    """Growth waits for a backlog of grow_after: a burst that the first lease swallows opens no second."""
    settings = BookSettings(grow_after_ns=50 * MS)
    cluster = Cluster((TenantSpec("ada"),), (a100(),), settings)
    for _ in range(6):
        cluster.submit("ada", 14, kernel_ns=2 * MS)
    cluster.run(1 * SECOND)
    assert len(cluster.opened) == 1
    for _ in range(40):
        cluster.submit("ada", 14, kernel_ns=20 * MS)
    cluster.run(2 * SECOND)
    times = [when for when, _ in cluster.opened[1:]]
    assert len(times) >= 2
    assert all(later - earlier >= 50 * MS for earlier, later in pairwise(times))
