"""Steps 2 and 3 of Algorithm 2: worker plans by dynamic programming, and the PS of each.

The printed algorithm is corrected where it contradicts the text: V starts at no plan but the empty one; a better plan
with the same number of flows is kept; the flows of a server are not bounded by its GPUs, because PSs add flows; and
equation 1 *adds* the share C / (f_max + 1) of the hottest server, or the worst share of an uplink: subtracted, it would
reward hot spots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.placement.netpack.kernels import kernels

_PAT_GBPS = 1e-6
"""A ToR with less PAT left aggregates nothing."""


@dataclass(frozen=True, slots=True)
class View:
    """What the steady state says of the cluster. By server: shape [S]; by rack: [R]."""

    free: NDArray[np.int64]
    left_gbps: NDArray[np.float64]
    flows: NDArray[np.float64]
    rack_of: NDArray[np.int64]
    uplinks_gbps: NDArray[np.float64]
    uplink_flows: NDArray[np.float64]
    is_open: NDArray[np.bool_]
    """The rack's ToR has PAT left."""
    fastest_gbps: float
    most_gpus: int
    compiled: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """``score`` is that of equation 1. ``workers``: (server, GPUs), by server."""

    score: float
    workers: tuple[tuple[int, int], ...]
    ps: int


def view(cluster: GpuCluster) -> View:
    """What a job that arrives now would see."""
    steady = cluster.steady
    return View(
        cluster.free, steady.residual_gbps, steady.flows, cluster.rack_of, cluster.uplinks_gbps, steady.uplink_flows,
        steady.pat_left_gbps > _PAT_GBPS, cluster.network.fastest_gbps, cluster.most_gpus, steady.is_compiled,
    )  # fmt: skip


def plans(
    seen: View,
    servers: NDArray[np.int64],
    wanted: int,
    ps_servers: NDArray[np.int64],
    charge: float = 0.0,
    own: tuple[int, ...] = (0,),
    limit: int = 1,
    keeps_racks: bool = False,
) -> list[Plan]:
    """The ``limit`` best plans of ``wanted`` GPUs on ``servers``, with the best PS on ``ps_servers`` each, the best
    score first.

    One plan per number of flows f and of GPUs g that the dynamic program finds; equal scores stay in its order.
    ``charge``: subtracted from the value of each server, in Gbit/s; 0 is the paper's. ``own``: flows that equation 1
    counts for a PS on a worker's server, a plan for each; the paper counts 0, although such a PS doubles the flows on
    its link (Table 3). ``keeps_racks``: see `released`.
    """
    _, items, table, best_ps, _ = kernels(seen.compiled)
    most = wanted + seen.most_gpus
    found, values = items(
        servers, seen.free, seen.left_gbps, seen.flows, seen.fastest_gbps, charge, most, seen.most_gpus
    )
    if not len(found):
        return []
    shapes, worth, chosen = table(found, values, seen.free, seen.flows, wanted, most)
    scores, ps = [], []
    for each in own:
        some_scores, some_ps = best_ps(
            shapes, worth, chosen, ps_servers, seen.rack_of, seen.left_gbps, seen.flows, seen.fastest_gbps,
            seen.uplinks_gbps, seen.uplink_flows, seen.is_open, each,
        )  # fmt: skip
        scores.append(some_scores)
        ps.append(some_ps)
    score, server = np.concatenate(scores), np.concatenate(ps)
    best = np.argsort(-score, kind="stable")[:limit]
    return [
        Plan(
            float(score[n]),
            released(seen, [s for s in chosen[n % len(chosen)].tolist() if s >= 0], wanted, keeps_racks),
            int(server[n]),
        )
        for n in best
    ]


def released(
    seen: View, servers: list[int], wanted: int, keeps_racks: bool = False
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """Workers on all free GPUs of ``servers``, less those beyond ``wanted``, which the least loaded server gives back.

    Least loaded: the most bandwidth left, then the fewest flows, then the first. If it has fewer, the next follows.
    ``keeps_racks``: of equally loaded servers the one whose rack has the most free GPUs outside the plan is first:
    what it gives back then serves a job within that rack, not one that would have to span two.
    """
    counts = {server: int(seen.free[server]) for server in servers}
    extra = sum(counts.values()) - wanted
    if extra == 0:
        return tuple(sorted(counts.items()))
    beside = [0] * len(seen.uplinks_gbps)
    if keeps_racks:
        free = np.bincount(seen.rack_of, weights=seen.free, minlength=len(beside))
        beside = [int(gpus) for gpus in free]
        for server in servers:
            beside[int(seen.rack_of[server])] -= counts[server]

    def load(server: int) -> tuple[float, float, int, int]:
        bandwidth, flows = round(float(seen.left_gbps[server]), 6), round(float(seen.flows[server]))
        return -bandwidth, flows, -beside[int(seen.rack_of[server])], server

    for server in sorted(servers, key=load):
        back = min(extra, counts[server])
        counts[server] -= back
        extra -= back
    return tuple((server, counts[server]) for server in sorted(counts) if counts[server])
