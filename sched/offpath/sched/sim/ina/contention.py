"""Models links shared by plain all-reduces: the factor by which each running job's plain operations are slower.

This is offpath's own model (the paper has none). A plain all-reduce is a ring over the job's hosts in order. Each flow
between neighbours takes one shortest path, selected by its ends as by a switch's hash. On a link a job's flow competes
with the flows of other jobs, each weighted by the part of time in which its job sends plain; the job runs at the speed
of its most loaded link. The factor is a mean: simultaneous sends are not modelled. Traffic in aggregation trees
competes with nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from offpath.sched.ina.engine import EngineError
from offpath.sched.ina.trees import build, roots
from offpath.sched.topology.graph import Topology

STEPS: Final = 4
"""Factors are in steps of a quarter, …"""
LEVELS: Final = 29
"""… from 1 to 8."""


def factor(level: int) -> float:
    """The factor of a level."""
    return 1.0 + level / STEPS


class Links:
    """Links of one network. A direction of link n is 2n (up) or 2n + 1 (down); hosts' own links are not shared between
    jobs."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._ways: dict[tuple[int, int], tuple[int, ...]] = {}

    def ring(self, hosts: Sequence[int]) -> tuple[int, ...]:
        """The directions of links that the flows of a job's ring take, one entry per flow and link.

        Raises: EngineError: no switch is above two neighbours.
        """
        if len(hosts) < 2:
            return ()
        ordered = sorted(hosts)
        return tuple(
            link
            for sender, receiver in zip(ordered, ordered[1:] + ordered[:1], strict=True)
            for link in self._way(sender, receiver)
        )

    def _way(self, sender: int, receiver: int) -> tuple[int, ...]:
        found = self._ways.get((sender, receiver))
        if found is None:
            tops = roots(self._topology, (sender, receiver))
            if not tops:
                raise EngineError(
                    f"no switch is above hosts {sender} and {receiver}: contention requires a layered network"
                )
            top = tops[(sender * 40_503 + receiver * 2_654_435_761 >> 7) % len(tops)]
            rise = build(self._topology, (sender,), top).links
            fall = build(self._topology, (receiver,), top).links
            found = self._ways[sender, receiver] = (*(2 * n for n in rise), *(2 * n + 1 for n in fall))
        return found


def levels(rings: Mapping[int, Sequence[int]], plain: Mapping[int, float]) -> dict[int, int]:
    """Level of slowdown of plain operations, by job. ``rings``: from `Links.ring`; ``plain``: the part of time, 0 to 1,
    in which each job sends without INA."""
    load: dict[int, float] = {}
    for job, ring in rings.items():
        share = plain[job]
        for link in ring if share else ():
            load[link] = load.get(link, 0.0) + share
    found = {}
    for job, ring in rings.items():
        own: dict[int, int] = {}
        for link in ring:
            own[link] = own.get(link, 0) + 1
        share = plain[job]
        most = max((load.get(link, 0.0) + (1.0 - share) * flows for link, flows in own.items()), default=1.0)
        found[job] = min(LEVELS - 1, max(0, round(STEPS * (most - 1.0))))
    return found
