"""Builds a `Topology` from switches that files declare with their children; errors name the line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offpath.sched.topology.graph import MOST_HOSTS, MOST_LEVELS, MOST_LINKS, Topology, TopologyError, from_links


@dataclass(frozen=True, slots=True)
class Declared:
    """One switch: the ``switches`` below it, the ``hosts`` on it, and the ``line`` of its declaration, if the text has
    lines."""

    name: str
    switches: Sequence[str]
    hosts: Sequence[str]
    line: int | None = None


def connected(declared: Sequence[Declared]) -> Topology:
    """Build the topology. Hosts are numbered in order of appearance, pod by pod; a switch is one level above its
    highest child. A node may have several parents.

    Raises: TopologyError: a duplicate name, an undeclared child, a cycle, a switch without hosts below it.
    """
    lines: dict[str, int | None] = {}
    for each in declared:
        if each.name in lines:
            raise TopologyError(f"switch {each.name!r} is declared twice", each.line)
        lines[each.name] = each.line
    hosts: dict[str, int] = {}
    for each in declared:
        for host in each.hosts:
            if host in lines:
                raise TopologyError(f"{host!r} is a switch and a host", each.line)
            hosts.setdefault(host, len(hosts))
        if len(hosts) > MOST_HOSTS:
            raise TopologyError(f"more than {MOST_HOSTS} hosts", each.line)
        for child in each.switches:
            if child not in lines:
                raise TopologyError(f"switch {child!r}, below {each.name!r}, is not declared", each.line)
    if not hosts:
        raise TopologyError("no hosts")
    numbers = {name: len(hosts) + n for n, name in enumerate(lines)}
    links: list[tuple[int, int]] = []
    for each in declared:
        number = numbers[each.name]
        links += [(hosts[host], number) for host in each.hosts]
        links += [(numbers[child], number) for child in each.switches]
        if len(links) > MOST_LINKS:
            raise TopologyError(f"more than {MOST_LINKS} links", each.line)
    return from_links(list(hosts), list(lines), links, _levels(declared))


def _levels(declared: Sequence[Declared]) -> list[int]:
    """Levels, children first. Raises: TopologyError."""
    parents: dict[str, list[str]] = {each.name: [] for each in declared}
    missing = {each.name: 0 for each in declared}
    level = {each.name: 1 if each.hosts else 0 for each in declared}
    for each in declared:
        for child in dict.fromkeys(each.switches):
            parents[child].append(each.name)
            missing[each.name] += 1
    waiting = [name for name, count in missing.items() if count == 0]
    for name in waiting:  # the loop appends
        for parent in parents[name]:
            level[parent] = max(level[parent], level[name] + 1)
            missing[parent] -= 1
            if missing[parent] == 0:
                waiting.append(parent)
    for each in declared:
        if missing[each.name]:
            raise TopologyError(f"switch {each.name!r} is below itself, or below a cycle", each.line)
        if not each.hosts and not each.switches:
            raise TopologyError(f"switch {each.name!r} has neither hosts nor switches below it", each.line)
        if level[each.name] > MOST_LEVELS:
            raise TopologyError(f"switch {each.name!r} is more than {MOST_LEVELS} levels above its hosts", each.line)
    return [level[each.name] for each in declared]
