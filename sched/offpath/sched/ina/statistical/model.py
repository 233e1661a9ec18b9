"""Table 1: traffic of one job in a hierarchy of aggregating ToRs. Plain and slow: `kernel` computes the same.

A job sends one flow per server with workers. The ToR of the parameter server (PS) is the root, the other workers' ToRs
are leaves below it. A ToR that aggregates passes one flow up, any other passes all that enter it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from offpath.sched.ina.statistical.network import Network


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a job that spans servers runs."""

    workers: tuple[int, ...]
    """Servers with workers, sorted, at least one."""
    ps: int
    """Server of the PS."""
    has_ina: bool = True


@dataclass(frozen=True, slots=True)
class Switched:
    """Table 1 of one switch: ``flows`` upwards, and what of the traffic is aggregated, in Gbit/s."""

    flows: int
    aggregated_gbps: float
    unaggregated_gbps: float


def switched(rate_gbps: float, share_gbps: float, entering: int) -> Switched:
    """Table 1: a switch with ``entering`` flows at ``rate_gbps`` each, of whose PAT the job gets ``share_gbps``.

    >>> switched(10.0, 4.0, 3)
    Switched(flows=3, aggregated_gbps=4.0, unaggregated_gbps=18.0)
    """
    if share_gbps >= rate_gbps:
        return Switched(1, rate_gbps, 0.0)
    return Switched(entering, share_gbps, (rate_gbps - share_gbps) * entering)


def leaves(network: Network, spread: Spread) -> dict[int, int]:
    """Racks other than the root's, with their number of workers' servers."""
    found: dict[int, int] = {}
    for server in spread.workers:
        rack = network.rack_of[server]
        if rack != network.rack_of[spread.ps]:
            found[rack] = found.get(rack, 0) + 1
    return found


def flows(network: Network, spread: Spread, is_aggregating: Mapping[int, bool]) -> dict[tuple[str, int], int]:
    """Flows of the job on each of its links: ``("server", s)`` and ``("uplink", r)``.

    ``is_aggregating``: by rack, whether its ToR has PAT left; a rack that is not named has not.
    """
    found: dict[tuple[str, int], int] = {("server", server): 1 for server in spread.workers}
    root, crossing = network.rack_of[spread.ps], 0
    for rack, count in leaves(network, spread).items():
        out = 1 if spread.has_ina and is_aggregating.get(rack, False) else count
        found["uplink", rack] = out
        crossing += out
    if crossing:
        found["uplink", root] = crossing
    local = sum(network.rack_of[server] == root for server in spread.workers)
    last = 1 if spread.has_ina and is_aggregating.get(root, False) else local + crossing
    found["server", spread.ps] = found.get(("server", spread.ps), 0) + last
    return found


def loads(
    network: Network, spread: Spread, rate_gbps: float, levels: Mapping[int, float]
) -> dict[tuple[str, int], float]:
    """Traffic of the job on each of its links, in Gbit/s, at ``rate_gbps``.

    ``levels``: by rack, the rate up to which its ToR aggregates a job; infinite if not named. With every rate below
    its ToRs' levels this is Table 1's first column.
    """
    racks = {network.rack_of[spread.ps], *leaves(network, spread)}
    steps = sorted({min(rate_gbps, levels.get(rack, math.inf)) for rack in racks} | {rate_gbps})
    found: dict[tuple[str, int], float] = {}
    before = 0.0
    for level in steps:  # the flows are constant between two levels
        open_racks = {rack: levels.get(rack, math.inf) > before for rack in racks}
        for link, count in flows(network, spread, open_racks).items():
            found[link] = found.get(link, 0.0) + count * (level - before)
        before = level
    return found
