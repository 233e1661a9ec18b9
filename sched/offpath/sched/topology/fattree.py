"""Builds regular networks: fat-trees with any oversubscription, leaf-spine, plain trees.

All are extended generalised fat-trees (Öhring et al., IPPS 1995): a switch of level i has ``down[i-1]`` children, and a
node of level i-1 has ``up[i-1]`` parents. The paper's fat-tree of degree 16 is down 8, 8, 16 and up 1, 8, 8: 1 024
hosts, 320 switches. Fewer links up than down is oversubscription (figure 13: 8:1 to 8:8).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Final

from offpath.sched.topology.graph import MOST_HOSTS, MOST_LEVELS, MOST_LINKS, Pod, Topology, TopologyError

_WORDS: Final = {1: ("switch",), 2: ("leaf", "spine"), 3: ("leaf", "aggr", "core")}


def regular(down: Sequence[int], up: Sequence[int], *, planes_first: bool = False) -> Topology:
    """``down[i]``: children of a switch of level i + 1; ``up[i]``: parents of a node of level i.

    Host x_h … x_1 (its path down from the top) has number x_1 + down[0]·(x_2 + down[1]·(x_3 + …)). A switch's number in
    its pod is composed of the up-links that lead to it. By default the highest of those varies fastest: the parents of
    a node have consecutive numbers, and so have all cores of one plane. ``planes_first``: the lowest varies fastest, so
    that consecutive cores are of planes 0, 1, 2, … and a leaf reaches them over different links. A planner that takes
    the first root without a conflict (`sim.ina.planners.First`) fills one plane after the other by default, and spreads
    over all planes with ``planes_first``.

    Raises: TopologyError.
    """
    height = len(down)
    if not 1 <= height <= MOST_LEVELS or len(up) != height or min(*down, *up) < 1:
        raise TopologyError("down and up must have the same number of counts, each 1 or more")
    # Level l has a node for each path down to it and each path up from below: Π down[l:] · Π up[:l].
    counts = [prod(down[level:]) * prod(up[:level]) for level in range(height + 1)]
    if counts[0] > MOST_HOSTS or sum(counts[level] * up[level] for level in range(height)) > MOST_LINKS:
        raise TopologyError(f"more than {MOST_HOSTS} hosts or {MOST_LINKS} links")
    firsts = [sum(counts[:level]) for level in range(height + 1)]
    links = []
    for level in range(height):
        below = prod(up[:level])  # nodes of this level per pod; of the next level, below · up[level]
        for pod, child, node, way in product(
            range(prod(down[level + 1 :])), range(down[level]), range(below), range(up[level])
        ):
            low = firsts[level] + (pod * down[level] + child) * below + node
            parent = node + below * way if planes_first else node * up[level] + way
            links.append((low, firsts[level + 1] + pod * below * up[level] + parent))
    words = _WORDS.get(height, tuple(f"level{n + 1}" for n in range(height)))
    names = [f"{word}-{n}" for word, count in zip(("host", *words), counts, strict=True) for n in range(count)]
    levels = [level for level, count in enumerate(counts) for _ in range(count)]
    return Topology(counts[0], sum(counts[1:]), tuple(links), tuple(levels), _pod(0, down), tuple(names))


def _pod(first: int, down: Sequence[int]) -> Pod:
    if len(down) == 1:
        return Pod(first, down[0])
    size = prod(down[:-1])
    if down[-1] == 1:
        return _pod(first, down[:-1])
    children = tuple(_pod(first + n * size, down[:-1]) for n in range(down[-1]))
    return Pod(first, size * down[-1], children if size > 1 else ())


def fat_tree(degree: int, up: int | None = None, *, planes_first: bool = False) -> Topology:
    """Three levels of switches with ``degree`` ports, half of them down; ``up``: up-links of leaf and aggregation
    switches, fewer than half if the network is oversubscribed (degree / 2 : up). ``planes_first``: as in `regular`.

    Raises: TopologyError.
    """
    if degree < 2 or degree % 2:
        raise TopologyError(f"a fat-tree of degree {degree}: it must be an even number, 2 or more")
    half = degree // 2
    ways = half if up is None else up
    if not 1 <= ways <= half:
        raise TopologyError(f"{ways} links up: from 1 to {half}")
    return regular((half, half, degree), (1, ways, ways), planes_first=planes_first)


def leaf_spine(leaves: int, hosts: int, spines: int) -> Topology:
    """A folded Clos of two levels: ``hosts`` on each leaf, each leaf on each spine. Raises: TopologyError."""
    return regular((hosts, leaves), (1, spines))


def clos(hosts: int, leaves: int, pods: int, aggregations: int, cores: int) -> Topology:
    """A folded Clos of three levels: ``pods`` of ``leaves`` with ``hosts`` each, every leaf on all ``aggregations`` of
    its pod, each of those on its plane's ``cores``. Raises: TopologyError."""
    return regular((hosts, leaves, pods), (1, aggregations, cores))


def plain_tree(*down: int) -> Topology:
    """A tree with one parent per node; ``down``: children of a switch, from the leaves up. Raises: TopologyError."""
    return regular(down, (1,) * len(down))
