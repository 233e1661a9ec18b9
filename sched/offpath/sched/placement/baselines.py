"""Baselines for MINA's placement: Slurm's first n hosts, random hosts, the best-fitting pod."""

from __future__ import annotations

from itertools import islice
from random import Random

from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Decision, Request, too_few


class FirstN:
    """The first n free hosts: the paper's baseline (§V-A)."""

    name = "first-n"

    def place(self, cluster: Cluster, request: Request) -> Decision:
        """See `Placement`."""
        return too_few(cluster, request) or Decision(
            tuple(islice(cluster.free_hosts(), request.hosts)), None, ("the first free hosts",)
        )


class RandomHosts:
    """Any n free hosts, drawn from the given generator."""

    name = "random"

    def __init__(self, random: Random) -> None:
        self._random = random

    def place(self, cluster: Cluster, request: Request) -> Decision:
        """See `Placement`."""
        return too_few(cluster, request) or Decision(
            tuple(sorted(self._random.sample(list(cluster.free_hosts()), request.hosts))), None, ("drawn",)
        )


class BestFitPod:
    """The pod with the fewest free hosts that suffice; in it, whole parts with the most free hosts, then the part that
    fits the rest best. Ties go to the first."""

    name = "best-fit"

    def place(self, cluster: Cluster, request: Request) -> Decision:
        """See `Placement`."""
        refused = too_few(cluster, request)
        if refused is not None:
            return refused
        hosts: list[int] = []
        begun = self._smallest(cluster, 0, request.hosts)
        self._fill(cluster, begun, request.hosts, hosts)
        free, count = cluster.free_in[begun], cluster.count[begun]
        return Decision(tuple(sorted(hosts)), None, (f"a pod of {count} hosts, {free} of them free",))

    def _smallest(self, cluster: Cluster, pod: int, wanted: int) -> int:
        """The deepest pod with room, following the tightest part at each level."""
        while True:
            fitting = [part for part in cluster.children[pod] if cluster.free_in[part] >= wanted]
            if not fitting:
                return pod
            pod = min(fitting, key=lambda part: (cluster.free_in[part], part))

    def _fill(self, cluster: Cluster, pod: int, wanted: int, hosts: list[int]) -> None:
        parts = sorted(cluster.children[pod], key=lambda part: (-cluster.free_in[part], part))
        if not parts or wanted == cluster.free_in[pod]:
            hosts += islice(cluster.free_hosts(cluster.first[pod], cluster.count[pod]), wanted)
            return
        for n, part in enumerate(parts):
            fitting = [each for each in parts[n:] if cluster.free_in[each] >= wanted]
            if fitting:
                tightest = min(fitting, key=lambda each: (cluster.free_in[each], each))
                self._fill(cluster, self._smallest(cluster, tightest, wanted), wanted, hosts)
                return
            self._fill(cluster, part, cluster.free_in[part], hosts)
            wanted -= cluster.free_in[part]
