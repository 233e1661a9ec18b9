"""Counts fragments from their definition, and checks decisions against the port, independently of policies."""

from __future__ import annotations

from collections.abc import Collection

from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Decision, Request
from offpath.sched.topology.graph import Pod, Topology


def fragments(topology: Topology, hosts: Collection[int]) -> int:
    """Fragments of a set of hosts (MINA §III-B): 1 for a pod fully in it, 0 for one fully outside, else the sum over
    its parts."""
    chosen = set(hosts)
    return _in_pod(topology.pods, chosen)


def _in_pod(pod: Pod, chosen: set[int]) -> int:
    inside = sum(host in chosen for host in range(pod.first, pod.first + pod.count))
    if inside in (0, pod.count):
        return int(inside > 0)
    return sum(_in_pod(child, chosen) for child in pod.children) if pod.children else inside


def score(topology: Topology, free: Collection[int], hosts: Collection[int], alpha: float) -> float:
    """A + α·B of giving ``hosts`` to a job while ``free`` are free."""
    return fragments(topology, hosts) + alpha * fragments(topology, set(free) - set(hosts))


def violations(cluster: Cluster, request: Request, decision: Decision) -> list[str]:
    """Violations in a decision."""
    found = []
    if decision.hosts and len(decision.hosts) != request.hosts:
        found.append(f"{len(decision.hosts)} hosts for {request.hosts}")
    if not decision.hosts and request.hosts <= cluster.free:
        found.append("refused although there is room")
    if list(decision.hosts) != sorted(set(decision.hosts)):
        found.append("hosts are not sorted, or one is duplicated")
    if not all(0 <= host < cluster.topology.hosts for host in decision.hosts):
        found.append("a host that is not in the topology")
    elif not all(cluster.is_free(host) for host in decision.hosts):
        found.append("a host that is not free")
    if not decision.reasons:
        found.append("no reason")
    return found
