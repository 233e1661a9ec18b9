"""Placement from its definition: every subset tried, and Algorithm 1 line by line with its slips corrected."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from fractions import Fraction
from random import Random

from offpath.sched.placement.checker import fragments
from offpath.sched.topology.fattree import regular
from offpath.sched.topology.graph import Pod, Topology, from_links


def least(topology: Topology, free: Collection[int], wanted: int, alpha: Fraction) -> Fraction:
    """The least A + α·B over all subsets."""
    return min(
        fragments(topology, chosen) + alpha * fragments(topology, set(free) - set(chosen))
        for chosen in itertools.combinations(sorted(free), wanted)
    )


def algorithm_1(
    pod: Pod, free: Collection[int], wanted: int, alpha: Fraction
) -> tuple[tuple[int, ...], Fraction | None]:
    """Hosts and score; None for +∞. ``<`` in line 17, k rising in line 15: the fewest hosts from the later sub-pods."""
    inside = [host for host in range(pod.first, pod.first + pod.count) if host in free]
    if wanted > len(inside):
        return (), None
    if pod.count == 1:
        return tuple(inside[:wanted]), Fraction(wanted) + alpha * (len(inside) - wanted)
    if len(inside) == pod.count and wanted in (0, pod.count):
        return tuple(inside[:wanted]), Fraction(1) if wanted else alpha
    parts = pod.children or tuple(Pod(host, 1) for host in range(pod.first, pod.first + pod.count))
    rows: list[tuple[tuple[int, ...], Fraction | None]] = [
        algorithm_1(parts[0], free, j, alpha) for j in range(wanted + 1)
    ]
    for part in parts[1:]:
        own = [algorithm_1(part, free, k, alpha) for k in range(wanted + 1)]
        after: list[tuple[tuple[int, ...], Fraction | None]] = []
        for j in range(wanted + 1):
            best: tuple[tuple[int, ...], Fraction | None] = (), None
            for k in range(j + 1):
                (before, one), (here, other) = rows[j - k], own[k]
                if one is not None and other is not None and (best[1] is None or one + other < best[1]):
                    best = before + here, one + other
            after.append(best)
        rows = after
    return rows[wanted]


def small_topology(random: Random) -> Topology:
    """At most 12 hosts: regular trees, or racks of any sizes in rows of any sizes, some hosts on upper switches."""
    if random.random() < 0.5:
        down = random.choice([(2, 2, 3), (3, 4), (2, 3, 2), (5, 2), (12,), (2, 5), (4, 3), (1, 3, 2), (2, 2, 2)])
        return regular(down, (1,) * len(down))
    hosts = random.randint(2, 12)
    racks, rows = random.randint(1, 4), random.randint(1, 3)
    names = [f"h{n}" for n in range(hosts)]
    switches = [f"rack{n}" for n in range(racks)] + [f"row{n}" for n in range(rows)] + ["top"]
    links, level = [], [1] * racks + [2] * rows + [3]
    for host in range(hosts):
        links.append((host, hosts + (random.randrange(racks) if random.random() < 0.9 else racks)))
    links += [(hosts + rack, hosts + racks + random.randrange(rows)) for rack in range(racks)]
    links += [(hosts + racks + row, hosts + racks + rows) for row in range(rows)]
    return from_links(names, switches, links, level)
