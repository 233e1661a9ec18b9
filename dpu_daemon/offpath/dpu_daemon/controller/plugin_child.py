"""Runs a plug-in of the controller or the job manager in its own process: ``python -m`` this module ``FD GROUP/NAME``.

Three groups of entry points: ``offpath.placement`` makes a `sched.placement.port.Placement` or, for the job manager, a
`sched.placement.batch_port.BatchPlacement`; ``offpath.tree_builder`` a `policies.TreeBuilder`; ``offpath.ina_sharing``
a `policies.Sharing` (both of `sched.ina.sharing`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

import orjson

from offpath.dpu_daemon.policy.plugin_child import ANSWER, RAISED, serve
from offpath.sched.ina.conflicts import Limit, Per
from offpath.sched.ina.trees import Tree
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Request
from offpath.sched.plain import from_plain, to_plain
from offpath.sched.topology import imported
from offpath.sched.topology.graph import Topology

PLACEMENT: Final = "offpath.placement"
TREE_BUILDER: Final = "offpath.tree_builder"
INA_SHARING: Final = "offpath.ina_sharing"
TOPOLOGY: Final = "topology"
PLACE: Final = "place"
BUILD: Final = "build"
SHARE: Final = "share"
BATCH: Final = "batch"


class PolicyHost:
    """Holds the plug-in and the topology that it received."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._topology: Topology | None = None
        self._fault = ""
        self._queries: dict[str, Callable[..., Any]] = {
            PLACE: self._place, BUILD: self._build, SHARE: self._share, BATCH: self._batch,
        }  # fmt: skip

    def on_request(self, kind: str, arguments: list[Any]) -> bytes | None:
        """Handles a message: the reply to a query, None for a notification."""
        query = self._queries.get(kind)
        try:
            if self._fault:
                pass
            elif query is not None:
                return orjson.dumps([ANSWER, query(*arguments)])
            elif kind == TOPOLOGY:
                text = arguments[0]
                self._topology = imported.regular(text) if imported.is_regular(text) else imported.read(text)
        except Exception as fault:  # a plug-in may raise anything
            self._fault = f"{kind}: {type(fault).__name__}: {fault}"
        return orjson.dumps([RAISED, self._fault]) if query is not None else None

    def _place(self, free: list[int], hosts: int) -> Any:
        assert self._topology is not None
        busy = set(range(self._topology.hosts)).difference(free)
        return to_plain(self._policy.place(Cluster(self._topology, sorted(busy)), Request(hosts)))

    def _batch(self, state: Any, requests: list[Any], reservation: Any) -> Any:
        # Only the job manager's plug-ins need NumPy.
        from offpath.sched.placement.batch_adapter import WholeHosts
        from offpath.sched.placement.batch_port import JobRequest, Reservation
        from offpath.sched.placement.cluster_state import ClusterState, cluster_of

        policy = self._policy if hasattr(self._policy, "place_batch") else WholeHosts(self._policy)
        batch = [from_plain(JobRequest, each) for each in requests]
        kept = from_plain(Reservation, reservation) if reservation is not None else None
        return to_plain(policy.place_batch(cluster_of(from_plain(ClusterState, state)), batch, kept))

    def _build(self, jobs: dict[str, list[int]], former: dict[str, Any], capacity: int) -> Any:
        hosts = {job: tuple(each) for job, each in jobs.items()}
        trees = {job: from_plain(Tree, each) for job, each in former.items()}
        built = self._policy.build(self._topology, hosts, trees, Limit(Per.SWITCH, capacity))
        return {job: to_plain(tree) for job, tree in built.items()}

    def _share(self, group: list[str], turn: int) -> Any:
        return {job: to_plain(share) for job, share in self._policy.share(tuple(group), turn).items()}


def loaded(name: str) -> PolicyHost:
    """``name``: GROUP/NAME. Raises: LookupError: it is not installed; what its import or factory raises."""
    group, _, name = name.partition("/")
    found = [point for point in entry_points(group=group) if point.name == name]
    if not found:
        known = sorted(point.name for point in entry_points(group=group))
        raise LookupError(f"no installed package has the entry point {name!r} in {group}; available: {known}")
    return PolicyHost(found[0].load()())


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], loaded)
    os._exit(0)  # also ends threads that the plug-in started
