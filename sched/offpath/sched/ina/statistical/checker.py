"""Checks a steady state against the definition of max-min fairness, independently of how it was computed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from offpath.sched.ina.statistical.model import Spread, leaves, loads
from offpath.sched.ina.statistical.network import Network

TOLERANCE = 1e-6


def levels(network: Network, jobs: Mapping[Hashable, Spread], rates: Mapping[Hashable, float]) -> dict[int, float]:
    """By rack whose PAT is used up: the level L with the sum over its jobs of min(rate, L) = PAT."""
    found = {}
    for rack, pat in enumerate(network.pat_gbps):
        there = sorted(
            rates[job]
            for job, spread in jobs.items()
            if spread.has_ina and (rack == network.rack_of[spread.ps] or rack in leaves(network, spread))
        )
        left = pat
        for n, rate in enumerate(there):
            level = left / (len(there) - n)
            if rate > level * (1 + 1e-9):
                found[rack] = level
                break
            left -= rate
    return found


def violations(network: Network, jobs: Mapping[Hashable, Spread], rates: Mapping[Hashable, float]) -> list[str]:
    """What contradicts fairness: a link beyond its capacity, a job without a used-up link on which none is faster."""
    capacity = {("server", s): gbps for s, gbps in enumerate(network.link_gbps)}
    capacity |= {("uplink", r): gbps for r, gbps in enumerate(network.uplink_gbps)}
    used: dict[tuple[str, int], float] = dict.fromkeys(capacity, 0.0)
    fastest: dict[tuple[str, int], float] = dict.fromkeys(capacity, 0.0)
    open_up_to = levels(network, jobs, rates)
    links = {}
    for job, spread in jobs.items():
        links[job] = loads(network, spread, rates[job], open_up_to)
        for link, gbps in links[job].items():
            used[link] += gbps
            fastest[link] = max(fastest[link], rates[job])
    found = [
        f"{link}: {used[link]:g} of {capacity[link]:g} Gbit/s"
        for link in capacity
        if used[link] > capacity[link] * (1 + TOLERANCE) + TOLERANCE
    ]
    for job in jobs:
        if not math.isfinite(rates[job]) or rates[job] < 0:
            found.append(f"job {job!r}: rate {rates[job]}")
        elif not any(
            used[link] >= capacity[link] * (1 - TOLERANCE) - TOLERANCE
            and rates[job] >= fastest[link] * (1 - TOLERANCE) - TOLERANCE
            for link in links[job]
        ):
            found.append(f"job {job!r}: no used-up link on which it is the fastest")
    return found
