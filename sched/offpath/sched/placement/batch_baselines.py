"""Baselines of NetPack (§6.1, figure 13): one order of servers each. All use aggregation, and the same step 1.

Each prefers one server that has room, the first of its order; otherwise it takes servers in its order. The paper does
not say where a baseline's PS is: here on the first server of the order with the job on it, or, for the two that look at
the network, on the first server of the order at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.placement.batch_port import JobRequest, Reason, Why
from offpath.sched.placement.gpu_cluster import GpuCluster, JobPlacement
from offpath.sched.placement.netpack.batching import BatchPolicy, Placed, Space

Order = Callable[[GpuCluster, JobRequest], tuple[NDArray[np.float64], ...]]
"""Keys of a server in the order, the first decides; least first. Shape [S] each."""


def _gpu_balance(cluster: GpuCluster, request: JobRequest) -> tuple[NDArray[np.float64], ...]:
    return (-cluster.free.astype(np.float64),)


def _flow_balance(cluster: GpuCluster, request: JobRequest) -> tuple[NDArray[np.float64], ...]:
    return (cluster.steady.flows,)


def _least_fragmentation(cluster: GpuCluster, request: JobRequest) -> tuple[NDArray[np.float64], ...]:
    is_idle = (cluster.free == cluster.gpus).astype(np.float64)
    return (is_idle, cluster.free.astype(np.float64))


def _optimus(cluster: GpuCluster, request: JobRequest) -> tuple[NDArray[np.float64], ...]:
    """The fewest servers, so those with the most free GPUs, then the most bandwidth (Optimus §4.2)."""
    return (-cluster.free.astype(np.float64), -np.round(cluster.steady.residual_gbps, 6))


def _tetris(cluster: GpuCluster, request: JobRequest) -> tuple[NDArray[np.float64], ...]:
    """The greatest dot product of demand and what is free, both as parts of the largest server (Tetris §3.2)."""
    gpus = min(request.gpus, cluster.most_gpus) / cluster.most_gpus * (cluster.free / cluster.most_gpus)
    spans = 1.0 if request.gpus > cluster.most_gpus else 0.0
    network = spans * cluster.steady.residual_gbps / cluster.network.fastest_gbps
    return (-np.round(gpus + network, 6),)


def _comb(cluster: GpuCluster, request: JobRequest) -> tuple[NDArray[np.float64], ...]:
    """GPUs, then the ToR's memory, then bandwidth, each in descending order (§6.4)."""
    pat = np.round(cluster.steady.pat_left_gbps, 6)[cluster.rack_of]
    return (-cluster.free.astype(np.float64), -pat, -np.round(cluster.steady.residual_gbps, 6))


_ORDERS: Final[dict[str, tuple[Order, bool]]] = {
    "gpu-balance": (_gpu_balance, False),
    "flow-balance": (_flow_balance, True),
    "least-fragmentation": (_least_fragmentation, False),
    "optimus": (_optimus, False),
    "tetris": (_tetris, True),
    "comb": (_comb, False),
}
"""By name: the order, and whether the PS may be on a server without workers."""
NAMES: Final = tuple(_ORDERS)


class Ordered(BatchPolicy):
    """One of the baselines."""

    def __init__(self, name: str) -> None:
        """``name``: one of `NAMES`."""
        self.name = name
        self._order, self._ps_anywhere = _ORDERS[name]

    def place_one(self, here: Space, request: JobRequest) -> Placed | None:
        """See `BatchPolicy`."""
        cluster = here.cluster
        keys = self._order(cluster, request)
        order = np.lexsort(keys[::-1])  # stable: equal servers in their order
        order = order[here.allowed[order] & (cluster.free[order] > 0)]
        fitting = order[cluster.free[order] >= request.gpus]
        if len(fitting):
            server = int(fitting[0])
            return JobPlacement(((server, request.gpus),)), (Reason(Why.ONE_SERVER, "has room", server),)
        for region in here.regions:
            inside = order[np.isin(order, region)] if len(here.regions) > 1 else order[cluster.is_linked[order]]
            if int(cluster.free[inside].sum()) >= request.gpus:
                return self._over(here, request, inside, region, keys)
        return None

    def _over(
        self, here: Space, request: JobRequest, order: NDArray[np.int64], region: NDArray[np.int64],
        keys: tuple[NDArray[np.float64], ...],
    ) -> Placed:  # fmt: skip
        counts: dict[int, int] = {}
        left = request.gpus
        for server in order.tolist():
            counts[server] = min(left, int(here.cluster.free[server]))
            left -= counts[server]
            if not left:
                break
        ps = next(iter(counts))
        if self._ps_anywhere:
            ps = int(region[np.lexsort([key[region] for key in reversed(keys)])[0]])
        reasons = (
            Reason(Why.SPREAD, f"the first {len(counts)} servers of the order {self.name}"),
            Reason(Why.PS, "the first of the order", ps),
            Reason(Why.INA_ON, "every job uses aggregation"),
        )
        return JobPlacement(tuple(sorted(counts.items())), ps, True), reasons
