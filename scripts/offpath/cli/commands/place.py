"""`offpath place TOPOLOGY --hosts N`: shows which hosts a job would get, why, and the cost in fragments.

A what-if: no daemon is contacted and no host is taken. The policy's choice is compared with other policies'.
"""

from __future__ import annotations

import argparse
import json
from random import Random
from typing import Any

from offpath.cli.files.networks import NetworkError, add_policy, add_topology, drawn_busy, folded, topology_of
from offpath.sched.placement.checker import fragments
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.fragments import ALPHA
from offpath.sched.placement.port import Decision, Request
from offpath.sched.placement.registry import PLACEMENTS, make
from offpath.sched.topology.graph import Topology


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_topology(parser)
    add_policy(parser)
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts of the job")
    parser.add_argument(
        "--busy", default="0%", metavar="HOSTLIST|N%", help="busy hosts, n[001-064]; or a percentage, drawn"
    )


def main(arguments: argparse.Namespace) -> int:
    """Place and print; exit code 1 if the job cannot be placed now."""
    if arguments.hosts < 1:
        raise NetworkError(f"--hosts {arguments.hosts}: 1 or more")
    topology = topology_of(arguments.topology)
    cluster = Cluster(topology, drawn_busy(topology, arguments.busy, Random(arguments.seed)))
    decisions = {
        name: make(name, Random(arguments.seed)).place(cluster, Request(arguments.hosts)) for name in PLACEMENTS
    }
    decision = decisions[arguments.policy]
    data: dict[str, Any] = {
        "topology": arguments.topology, "hosts": topology.hosts, "switches": topology.switches, "free": cluster.free,
        "wanted": arguments.hosts, "policy": arguments.policy, "seed": arguments.seed, "alpha": ALPHA,
        "is_placed": decision.is_placed, "chosen": [topology.names[host] for host in decision.hosts],
        "reasons": list(decision.reasons),
        "policies": {name: _measured(topology, cluster, each) for name, each in decisions.items() if each.is_placed},
    }  # fmt: skip
    if arguments.picture:
        from offpath.cli.files.networks_plot import placement

        data["picture"] = placement(cluster, decision.hosts, arguments.picture)
    print(json.dumps(data) if arguments.json else _text(data))
    return 0 if decision.is_placed else 1


def _measured(topology: Topology, cluster: Cluster, decision: Decision) -> dict[str, Any]:
    """Counted by the checker, from the definition."""
    own = fragments(topology, decision.hosts)
    left = fragments(topology, set(cluster.free_hosts()).difference(decision.hosts))
    return {"fragments": own, "fragments_left": left, "score": own + ALPHA * left}


def _text(data: dict[str, Any]) -> str:
    if not data["is_placed"]:
        return f"not now: {'; '.join(data['reasons'])}"
    lines = [
        f"{data['wanted']} of {data['free']} free hosts ({data['hosts']} in all), by {data['policy']}:",
        f"  {folded(data['chosen'])}",
        f"  because: {'; '.join(data['reasons'])}",
        f"{'':12} {'fragments':>9} {'left free':>9} {'A + α·B':>9}",
    ]
    for name, each in data["policies"].items():
        mark = "→" if name == data["policy"] else " "
        lines.append(f"{mark} {name:10} {each['fragments']:9} {each['fragments_left']:9} {each['score']:9g}")
    return "\n".join(lines)
