"""Models a cluster's network: hosts and switches in layers, links between them, and pods of hosts.

Hosts are 0 … H-1, numbered so that every pod is a contiguous range; switches are H … H+S-1. A host's level is 0, a
switch's is its distance from the hosts. A link is identified by its index in `Topology.links`; it leads up if its ends'
levels differ. Placement counts fragments in the pod tree (MINA §III-B).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from offpath.sched.errors import SchedError

MOST_LEVELS: Final = 32
"""Above the height of any real fabric; code that walks pods may recurse."""
MOST_HOSTS: Final = 131_072
MOST_LINKS: Final = 1_048_576


class TopologyError(SchedError):
    """Invalid topology; ``line``: line number from 1 in the text, if known."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what if line is None else f"line {line}: {what}")
        self.what, self.line = what, line


@dataclass(frozen=True, slots=True)
class Pod:
    """Hosts ``first`` … ``first + count - 1``. Without ``children`` each of its hosts is a pod of its own."""

    first: int
    count: int
    children: tuple[Pod, ...] = ()


@dataclass(frozen=True)
class Topology:
    """Immutable. ``links``: (lower or equal, upper) node ids. ``level`` and ``names``: by node.

    Raises: TopologyError: it is inconsistent.
    """

    hosts: int
    switches: int
    links: tuple[tuple[int, int], ...]
    level: tuple[int, ...]
    pods: Pod
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        fault = next(_faults(self), None)
        if fault is not None:
            raise TopologyError(fault)

    @property
    def nodes(self) -> int:
        """Number of hosts and switches."""
        return self.hosts + self.switches

    @cached_property
    def up(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """By node: (parent, link) of each link that leads up, sorted by parent."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for link, (low, high) in enumerate(self.links):
            if self.level[low] != self.level[high]:
                found[low].append((high, link))
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def beside(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """By node: (neighbour, link) of every link between switches, in either direction."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for link, (low, high) in enumerate(self.links):
            if low >= self.hosts:
                found[low].append((high, link))
                found[high].append((low, link))
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def above(self) -> tuple[int, ...]:
        """By switch (0 is the first): a bit set of itself and all switches above it, by switch."""
        masks = [0] * self.switches
        for node in sorted(range(self.hosts, self.nodes), key=lambda each: -self.level[each]):
            mask = 1 << (node - self.hosts)
            for parent, _ in self.up[node]:
                mask |= masks[parent - self.hosts]
            masks[node - self.hosts] = mask
        return tuple(masks)

    @cached_property
    def host_numbers(self) -> dict[str, int]:
        """Host numbers by name."""
        return {name: host for host, name in enumerate(self.names[: self.hosts])}


def walk(pod: Pod) -> Iterator[tuple[Pod, int]]:
    """``pod`` and all pods below it, parents first, with their depth."""
    waiting = [(pod, 0)]
    while waiting:
        each, depth = waiting.pop()
        yield each, depth
        waiting += [(child, depth + 1) for child in reversed(each.children)]


def _faults(topology: Topology) -> Iterator[str]:
    """Inconsistencies; later ones may follow from the first."""
    hosts, nodes = topology.hosts, topology.nodes
    if not 1 <= hosts <= MOST_HOSTS or topology.switches < 0:
        yield f"{hosts} hosts, {topology.switches} switches: from 1 to {MOST_HOSTS} hosts"
    if len(topology.level) != nodes or len(topology.names) != nodes:
        yield "each node needs a level and a name"
    if any(topology.level[:hosts]) or not all(1 <= each <= MOST_LEVELS for each in topology.level[hosts:]):
        yield f"hosts are of level 0, switches of 1 to {MOST_LEVELS}"
    if len(set(topology.names)) != nodes:
        yield "two nodes have the same name"
    seen = set()
    for low, high in topology.links:
        if not (0 <= low < nodes and hosts <= high < nodes) or low == high:
            yield f"link {low}-{high} does not join a node to a switch"
        elif topology.level[low] > topology.level[high]:
            yield f"link {low}-{high} leads down"
        if (low, high) in seen or (high, low) in seen:
            yield f"link {low}-{high} is duplicated"
        seen.add((low, high))
    yield from _pod_faults(topology)


def _pod_faults(topology: Topology) -> Iterator[str]:
    if (topology.pods.first, topology.pods.count) != (0, topology.hosts):
        yield "the outermost pod does not hold all hosts"
    for pod, depth in walk(topology.pods):
        if depth > MOST_LEVELS:
            yield f"pods deeper than {MOST_LEVELS}"
            return
        at = pod.first
        for child in pod.children:
            if child.first != at or child.count < 1:
                yield f"the pods in {pod.first}+{pod.count} are not contiguous parts of it"
            at += child.count
        if pod.children and at != pod.first + pod.count:
            yield f"the pods in {pod.first}+{pod.count} do not cover it"


def from_links(
    hosts: Sequence[str],
    switches: Sequence[str],
    links: Iterable[tuple[int, int]],
    level: Sequence[int] | None = None,
) -> Topology:
    """Build a topology from any graph. Nodes are numbered hosts first, in the given order; a link may be given in
    either direction, and twice.

    ``level``: of each switch; None: 1 + the distance to the nearest host's switch. Pods are the connected components
    below each level. Their hosts become contiguous, with minimal changes of the order (names identify the hosts).

    Raises: TopologyError.
    """
    count, nodes = len(hosts), len(hosts) + len(switches)
    pairs = list(dict.fromkeys((min(pair), max(pair)) for pair in links))
    if len(pairs) > MOST_LINKS or count > MOST_HOSTS:
        raise TopologyError(f"more than {MOST_HOSTS} hosts or {MOST_LINKS} links")
    for low, high in pairs:
        if low < 0 or high >= nodes or high < count or low == high:
            raise TopologyError(f"link {low}-{high} does not join a node to a switch")
    levels = [0] * count + list(_inferred(count, nodes, pairs) if level is None else level)
    if len(levels) != nodes:
        raise TopologyError("each switch needs a level")
    order, pods = _pods(count, nodes, pairs, levels)
    number = [0] * nodes
    for new, old in enumerate([*order, *range(count, nodes)]):
        number[old] = new
    turned = ((low, high) if levels[low] <= levels[high] else (high, low) for low, high in pairs)
    return Topology(
        count,
        len(switches),
        tuple(sorted((number[low], number[high]) for low, high in turned)),
        tuple(levels),
        pods,
        tuple([hosts[old] for old in order] + list(switches)),
    )


def _inferred(count: int, nodes: int, pairs: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Levels of switches by distance from the nearest host."""
    beside: list[list[int]] = [[] for _ in range(nodes)]
    for low, high in pairs:
        beside[low].append(high)
        beside[high].append(low)
    levels = [0] * count + [-1] * (nodes - count)
    waiting = deque(range(count))
    while waiting:
        node = waiting.popleft()
        for other in beside[node]:
            if levels[other] < 0:
                levels[other] = levels[node] + 1
                waiting.append(other)
    if -1 in levels:
        raise TopologyError("a switch that no host can reach")
    yield from levels[count:]


class _Sets:
    """Disjoint sets of nodes."""

    def __init__(self, count: int) -> None:
        self._of = list(range(count))

    def find(self, node: int) -> int:
        """The set's representative."""
        of = self._of
        while of[node] != node:
            of[node] = node = of[of[node]]
        return node

    def join(self, one: int, other: int) -> None:
        """Merge two sets."""
        self._of[self.find(one)] = self.find(other)


@dataclass(slots=True)
class _Part:
    """A pod before its hosts are numbered: ``host`` if it is a host, else its parts."""

    host: int = -1
    parts: tuple[_Part, ...] = ()


def _pods(count: int, nodes: int, pairs: Sequence[tuple[int, int]], levels: Sequence[int]) -> tuple[list[int], Pod]:
    """The hosts in the order of their pods, and the pods: for each level, the components without the switches above it.
    A pod with only one part is replaced by that part."""
    sets = _Sets(nodes)
    by_level: dict[int, list[tuple[int, int]]] = {}
    for low, high in pairs:
        by_level.setdefault(max(levels[low], levels[high]), []).append((low, high))
    parts = {host: _Part(host) for host in range(count)}
    for level in [*sorted(by_level), None]:  # None: unconnected components also share one pod
        for low, high in by_level[level] if level is not None else ():
            sets.join(low, high)
        joined: dict[int, list[_Part]] = {}
        for node, part in parts.items():
            joined.setdefault(sets.find(node) if level is not None else -1, []).append(part)
        parts = {node: each[0] if len(each) == 1 else _Part(parts=tuple(each)) for node, each in joined.items()}
    (whole,) = parts.values()
    return _numbered(whole)


def _numbered(whole: _Part) -> tuple[list[int], Pod]:
    """Hosts in order, and finished pods; the levels bound the recursion depth."""
    order: list[int] = []

    def finish(part: _Part) -> Pod:
        first = len(order)
        if part.host >= 0:
            order.append(part.host)
            return Pod(first, 1)
        if all(each.host >= 0 for each in part.parts):
            order.extend(each.host for each in part.parts)
            return Pod(first, len(part.parts))
        children = tuple(finish(each) for each in part.parts)
        return Pod(first, len(order) - first, children)

    return order, finish(whole)
