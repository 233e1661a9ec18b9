"""Plots of networks: which hosts are taken, and the path of each tree."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection

from offpath.cli.files.networks import NetworkError
from offpath.sched.ina.groups import Plan
from offpath.sched.placement.cluster import Cluster
from offpath.sched.topology.graph import Topology, walk

_FREE, _BUSY, _CHOSEN = "#d9d9d9", "#737373", "#d95f02"
_MOST_LINKS: Final = 20_000
"""Beyond this, a drawing of all links is a grey bar."""


def placement(cluster: Cluster, chosen: Sequence[int], path: str) -> str:
    """Hosts as squares, a pod to a row of racks; returns ``path``."""
    topology = cluster.topology
    leaves = [pod for pod, _ in walk(topology.pods) if not pod.children]
    across = max(1, math.ceil(math.sqrt(topology.hosts * 1.6)))
    spots: dict[int, tuple[float, float]] = {}
    x = y = 0.0
    for pod in leaves:
        if x and x + pod.count > across:
            x, y = 0.0, y + 1.1
        for host in range(pod.first, pod.first + pod.count):
            if x >= across:
                x, y = 0.0, y + 1.1
            spots[host] = x, y
            x += 1
        x += 0.7
    mine = set(chosen)
    figure, axis = plt.subplots(figsize=(10, max(2.0, 10 * (y + 2) / (across * 1.1))), layout="constrained")
    size = max(0.4, (400 / across) ** 2)  # points squared: a square fills most of its host's space
    for word, colour, hosts in (
        ("busy", _BUSY, [h for h in spots if not cluster.is_free(h)]),
        ("free", _FREE, [h for h in spots if cluster.is_free(h) and h not in mine]),
        ("the job", _CHOSEN, sorted(mine)),
    ):
        across_at, down_at = [spots[host][0] for host in hosts], [-spots[host][1] for host in hosts]
        axis.scatter(across_at, down_at, s=size, marker="s", color=colour, label=f"{word}: {len(hosts)}")
    axis.set(aspect="equal", title="hosts, by rack")
    axis.axis("off")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3)
    return _saved(figure, path)


def sharing(topology: Topology, names: Sequence[str], hosts: Mapping[int, Sequence[int]], plan: Plan, path: str) -> str:
    """Nodes in layers, each sharing group's trees in its colour; returns ``path``."""
    layers = max(topology.level)
    spots: list[tuple[float, float]] = [(0.0, 0.0)] * topology.nodes
    for level in range(layers + 1):
        nodes = [node for node in range(topology.nodes) if topology.level[node] == level]
        for n, node in enumerate(nodes):
            spots[node] = (n + 0.5) / len(nodes), float(level)
    figure, axis = plt.subplots(figsize=(13, 2.2 * (layers + 1)), layout="constrained")
    if len(topology.links) <= _MOST_LINKS:
        lines = [(spots[low], spots[high]) for low, high in topology.links]
        axis.add_collection(LineCollection(lines, colors="#e5e5e5", linewidths=0.3))
    colours = plt.get_cmap("tab20")
    for number, group in enumerate(plan.groups):
        colour = colours(number % 20)
        for job in sorted(group):
            tree = plan.trees[job]
            ends = [topology.links[link] for link in tree.links]
            inside = set(tree.switches)
            for host in hosts[job]:
                ends += [(host, parent) for parent, _ in topology.up[host] if parent in inside][:1]
            lines = [(spots[low], spots[high]) for low, high in ends]
            style = "solid" if plan.category[job] == 1 else "dashed"
            axis.add_collection(LineCollection(lines, colors=[colour], linewidths=1.2, linestyles=style))
        label = " + ".join(names[job] for job in sorted(group))
        axis.plot([], [], color=colour, label=label if number < 20 else None)
    for level in range(layers + 1):
        at = [spots[node] for node in range(topology.nodes) if topology.level[node] == level]
        axis.scatter([x for x, _ in at], [y for _, y in at], s=max(1.0, 400 / len(at)), color="black", zorder=3)
    axis.set(yticks=range(layers + 1), yticklabels=["hosts", *(f"level {n}" for n in range(1, layers + 1))], xticks=[])
    axis.set_title("a colour per sharing group; dashed: joined it (category 2)")
    if plan.groups:
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)
    return _saved(figure, path)


def _saved(figure: Any, path: str) -> str:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as fault:
        raise NetworkError(f"--picture {path}: {fault}") from None
    finally:
        plt.close(figure)
    return path
