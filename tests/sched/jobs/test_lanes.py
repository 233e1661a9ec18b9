"""How many lanes a lease gets: as many as jobs of its R run at once and one more, if memory and settings allow."""

from __future__ import annotations

from typing import Any

import pytest

from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease, TenantSpec

from ..gpus import MIB, a100
from .cluster import Cluster

SECOND = 1_000 * MS


def opened(share: int, profile: str, pins: tuple[PinnedLease, ...] = (), **settings: Any) -> int:
    """Lanes of the lease that a job of this R opens."""
    given = {"lanes": 2, "max_lanes": 8, "landing_bytes": MIB, "result_bytes": MIB, **settings}
    cluster = Cluster((TenantSpec("ada", profile=profile),), (a100(),), BookSettings(**given), pins)
    if not pins:
        cluster.submit("ada", share, kernel_ns=MS)
    cluster.run(SECOND, every_ns=MS)
    ((_, order), *_) = cluster.opened
    assert order.profile == profile
    return order.lanes


@pytest.mark.parametrize(
    ("share", "profile", "settings", "lanes"),
    [
        (14, "7g.40gb", {}, 8),
        (20, "7g.40gb", {}, 6),
        (100, "7g.40gb", {}, 2),
        (1, "7g.40gb", {}, 8),
        (1, "7g.40gb", {"max_lanes": 64}, 64),
        (14, "1g.5gb", {}, 2),
        (7, "1g.5gb", {}, 3),
        (14, "7g.40gb", {"max_lanes": 0}, 2),
        (14, "7g.40gb", {"max_lanes": 1}, 2),
        (14, "7g.40gb", {"lanes": 9}, 9),
        (14, "7g.40gb", {"max_lanes": 4}, 4),
        (14, "7g.40gb", {"landing_bytes": 7_000 * MIB, "result_bytes": 1_000 * MIB}, 5),
        (14, "7g.40gb", {"landing_bytes": 19_000 * MIB, "result_bytes": 0}, 2),
        (14, "7g.40gb", {"landing_bytes": 0, "result_bytes": 0}, 8),
    ],
)
def test_a_lease_has_a_lane_for_each_job_at_once_and_one_more(
    share: int, profile: str, settings: dict[str, int], lanes: int
) -> None:
    assert opened(share, profile, **settings) == lanes


def test_a_pinned_lease_is_ready_for_the_least_demand_that_is_served() -> None:
    """The cluster serves kernels of every R from 1 on."""
    assert opened(1, "7g.40gb", (PinnedLease("ada", 0, "7g.40gb", 0),)) == 8


@pytest.mark.parametrize(("max_lanes", "bound_s"), [(8, 2), (0, 6)], ids=["as many as fit", "two"])
def test_twelve_jobs_of_fourteen_percent_take_two_rounds_on_a_whole_gpu(max_lanes: int, bound_s: int) -> None:
    """In virtual time: seven run at once, where two lanes took six rounds."""
    settings = BookSettings(max_lanes=max_lanes, landing_bytes=MIB, result_bytes=MIB)
    cluster = Cluster((TenantSpec("ada", profile="7g.40gb"),), (a100(),), settings)
    for _ in range(12):
        cluster.submit("ada", 14, kernel_ns=SECOND)
    cluster.run(20 * SECOND, every_ns=MS)
    assert len(cluster.answers) == 12
    last = max(at for at, _ in cluster.answers)
    assert bound_s * SECOND <= last <= bound_s * SECOND + 50 * MS
