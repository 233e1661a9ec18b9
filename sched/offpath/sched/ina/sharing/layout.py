"""Maps a tree to a job's ranks and switches: where each rank joins, and each switch's part. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offpath.sched.errors import SchedError
from offpath.sched.ina.protocol.events import TreeMember
from offpath.sched.ina.trees import Tree
from offpath.sched.topology.graph import Topology


class TreeUnusable(SchedError):
    """A tree does not join the hosts, or has a switch that does not aggregate."""


@dataclass(frozen=True, slots=True)
class Role:
    """A switch's part of a tree. ``parent``: None at the root. ``local``: hosts whose ranks join here. ``below``: the
    switches under it, each with the hosts of its part."""

    switch: int
    parent: int | None
    local: tuple[int, ...]
    below: tuple[tuple[int, tuple[int, ...]], ...]


def roles(topology: Topology, tree: Tree, hosts: Sequence[int]) -> tuple[Role, ...]:
    """The tree from its root down, without switches that carry no host's ranks.

    Raises: TreeUnusable: the links form no tree, or it does not reach a host.
    """
    beside: dict[int, list[int]] = {switch: [] for switch in tree.switches}
    if tree.root not in beside:
        raise TreeUnusable("a root that is not among its switches")
    for link in tree.links:
        if not 0 <= link < len(topology.links):
            raise TreeUnusable(f"unknown link {link}")
        low, high = topology.links[link]
        if low not in beside or high not in beside:
            raise TreeUnusable("a link to a switch outside the tree")
        beside[low].append(high)
        beside[high].append(low)
    parents: dict[int, int | None] = {tree.root: None}
    order = [tree.root]
    for switch in order:  # the loop appends to ``order``
        for other in beside[switch]:
            if other not in parents:
                parents[other] = switch
                order.append(other)
    if len(order) != len(tree.switches) or len(tree.links) != len(order) - 1:
        raise TreeUnusable("its links do not form a tree")
    local: dict[int, list[int]] = {switch: [] for switch in order}
    for host in hosts:
        leaf = next((up for up, _ in topology.up[host] if up in local), None)
        if leaf is None:
            raise TreeUnusable(f"it does not reach {topology.names[host]}")
        local[leaf].append(host)
    part: dict[int, list[int]] = {switch: list(local[switch]) for switch in order}
    for switch in reversed(order):
        if (parent := parents[switch]) is not None:
            part[parent] += part[switch]
    children: dict[int, list[int]] = {switch: [] for switch in order}
    for switch in order:
        if (parent := parents[switch]) is not None and part[switch]:
            children[parent].append(switch)
    return tuple(
        Role(
            switch, parents[switch], tuple(sorted(local[switch])),
            tuple((child, tuple(sorted(part[child]))) for child in children[switch]),
        )
        for switch in order
        if part[switch]
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Laid:
    """A tree laid out for a job's ranks. ``attach``: by rank, where it joins; ``parts``: from the root down."""

    attach: tuple[str, ...]
    parts: tuple[TreeMember, ...]


def lay(topology: Topology, tree: Tree, ranks: Sequence[int], addresses: Mapping[str, str]) -> Laid:
    """``ranks``: by rank, its host; ``addresses``: by switch name, the address that ranks and switches join.

    Raises: TreeUnusable.
    """
    by_host: dict[int, list[int]] = {}
    for rank, host in enumerate(ranks):
        by_host.setdefault(host, []).append(rank)
    names = topology.names
    found = roles(topology, tree, sorted(by_host))
    unknown = sorted(names[role.switch] for role in found if names[role.switch] not in addresses)
    if unknown:
        raise TreeUnusable(f"{', '.join(unknown)}: no aggregating switch has this name")

    def of(hosts: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(rank for host in hosts for rank in by_host[host]))

    attach = [""] * len(ranks)
    parts = []
    for role in found:
        for rank in of(role.local):
            attach[rank] = addresses[names[role.switch]]
        above = addresses[names[role.parent]] if role.parent is not None else ""
        below = tuple((names[child], of(hosts)) for child, hosts in role.below)
        parts.append(TreeMember(names[role.switch], above, of(role.local), below))
    return Laid(tuple(attach), tuple(parts))
