"""Reservations: a large job that small ones pass over gets servers on which nothing else is started.

The knapsack's capacity is what is free at that moment, so ageing alone cannot save a large job: small jobs refill what
small jobs release. Here the job that arrived first among those passed over ``patience`` times reserves servers with
enough GPUs in one region.

The bound: nothing is started on reserved servers, so they are free at the latest when the longest of their jobs ends.
At the next batch the job has room, and it is placed before all others. One reservation exists at a time, in the order
of arrival. So a job waits for the patience, and then for one longest run and one batch period for each job before it
and for itself. A batch passes a job over if it starts another one: patience counts in the cluster's own pace, whether
jobs last seconds or days. Between two such batches at most one longest run and one period pass, because then the
cluster is idle, and the job has room.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offpath.sched.placement.gpu_cluster import GpuCluster


def waiting_bound_s(
    patience: int, ahead: int, longest_s: float, period_s: float, passing_s: float | None = None
) -> float:
    """The longest time from a valid job's arrival to its start, if no server is lost.

    ``ahead``: jobs with a reservation or an earlier arrival that still wait when it has been passed over ``patience``
    times; ``longest_s``: the longest run time of any job; ``period_s``: between two batches; ``passing_s``: the longest
    time between two batches that start other jobs: ``period_s`` if each does; None: what it is at most.
    """
    rest_s = longest_s + period_s
    return (patience + 1) * (rest_s if passing_s is None else passing_s) + (ahead + 1) * rest_s


def servers_for(cluster: GpuCluster, gpus: int, kept: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Servers of one region with ``gpus`` GPUs or more, of which running jobs hold as few as possible; of one rack if
    that costs no more. ``kept``: servers of an earlier reservation come first. Empty: no region is large enough."""
    best: tuple[int, ...] = ()
    least = None
    present = np.where(cluster.is_linked, cluster.gpus, 0)
    held = present - np.where(cluster.is_linked, cluster.free, 0)
    for group in _groups(cluster):
        if int(present[group].sum()) < gpus:
            continue
        is_new = ~np.isin(group, kept)
        order = group[np.lexsort((group, -present[group], held[group], is_new))]
        count = int(np.searchsorted(np.cumsum(present[order]), gpus)) + 1
        cost = int(held[order[:count]].sum())
        if least is None or cost < least:
            least, best = cost, tuple(sorted(int(server) for server in order[:count]))
    return best


def _groups(cluster: GpuCluster) -> list[NDArray[np.int64]]:
    """Racks, then regions."""
    racks = [
        np.flatnonzero((cluster.rack_of == rack) & cluster.is_linked) for rack in range(len(cluster.network.racks))
    ]
    return [each for each in racks if len(each)] + cluster.regions()
