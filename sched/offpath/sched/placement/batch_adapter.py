"""Policies of the port of whole hosts (`placement.port`) as batch policies: MINA's `fragments`, first-n and the others.

A job that fits on one server goes to the server that it fills best; a larger one gets whole idle servers from the
policy, over a tree of racks, and its PS on the first of them. All jobs use aggregation.
"""

from __future__ import annotations

import numpy as np

from offpath.sched.placement.batch_port import JobRequest, Reason, Why
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.gpu_cluster import JobPlacement
from offpath.sched.placement.netpack.batching import BatchPolicy, Placed, Space, one_server
from offpath.sched.placement.port import Placement, Request
from offpath.sched.topology.graph import Pod, Topology


class WholeHosts(BatchPolicy):
    """``policy`` for jobs that span servers."""

    def __init__(self, policy: Placement) -> None:
        self.name = policy.name
        self._policy = policy
        self._topologies: dict[tuple[int, ...], Topology] = {}

    def place_one(self, here: Space, request: JobRequest) -> Placed | None:
        """See `BatchPolicy`."""
        single = one_server(here, request.gpus)
        if single is not None:
            return single
        cluster = here.cluster
        for region in here.regions:
            usable = np.zeros(len(cluster.free), np.bool_)
            usable[region] = True
            usable &= here.allowed & (cluster.free == cluster.gpus) & (cluster.free == cluster.most_gpus)
            wanted = -(-request.gpus // cluster.most_gpus)
            racks = cluster.network.racks
            if racks not in self._topologies:
                self._topologies[racks] = racked(racks)
            hosts = Cluster(self._topologies[racks], np.flatnonzero(~usable).tolist())
            decision = self._policy.place(hosts, Request(wanted))
            if decision.is_placed:
                counts = [cluster.most_gpus] * wanted
                counts[-1] -= cluster.most_gpus * wanted - request.gpus
                reasons = (
                    Reason(Why.SPREAD, f"{wanted} idle servers by {self.name}: {decision.reasons[0]}"),
                    Reason(Why.PS, "the first of them", decision.hosts[0]),
                    Reason(Why.INA_ON, "every job uses aggregation"),
                )
                workers = tuple(zip(decision.hosts, counts, strict=True))
                return JobPlacement(workers, decision.hosts[0], True), reasons
        return None


def racked(racks: tuple[int, ...]) -> Topology:
    """A tree of racks of servers below one switch. Raises: TopologyError."""
    servers, count = sum(racks), len(racks)
    firsts = [sum(racks[:rack]) for rack in range(count)]
    rack_of = [rack for rack, size in enumerate(racks) for _ in range(size)]
    links = [(server, servers + rack) for server, rack in enumerate(rack_of)]
    names = [f"host-{n}" for n in range(servers)] + [f"leaf-{n}" for n in range(count)]
    if count == 1:
        levels = (0,) * servers + (1,)
        return Topology(servers, 1, tuple(links), levels, Pod(0, servers), tuple(names))
    links += [(servers + rack, servers + count) for rack in range(count)]
    pods = tuple(Pod(first, size) for first, size in zip(firsts, racks, strict=True))
    levels = (0,) * servers + (1,) * count + (2,)
    return Topology(servers, count + 1, tuple(links), levels, Pod(0, servers, pods), (*names, "spine-0"))
