"""`offpath trees TOPOLOGY --jobs FILE`: shows which aggregation trees these jobs would use, and which jobs would share.

A what-if: no daemon is contacted. A line of FILE is ``NAME HOSTLIST`` or ``NAME N``: N hosts, placed by --policy
after the jobs above it. ``#`` begins a comment.
"""

from __future__ import annotations

import argparse
import json
from random import Random
from typing import Any, Final

from offpath.cli.files.networks import NetworkError, add_policy, add_topology, folded, hosts_of, text_of, topology_of
from offpath.sched.errors import SchedError
from offpath.sched.ina import exact, fast
from offpath.sched.ina.checker import violations
from offpath.sched.ina.conflicts import Candidates, Limit, Per
from offpath.sched.ina.groups import Plan, plan
from offpath.sched.ina.trees import candidates
from offpath.sched.placement.cluster import Cluster, HostsHeld
from offpath.sched.placement.port import Request
from offpath.sched.placement.registry import make
from offpath.sched.topology.graph import Topology

K: Final = 5
"""The paper's default (figure 14)."""
_MOST_JOBS: Final = 10_000
_CATEGORY: Final = {1: "own group", 2: "shares", 3: "no tree: conflicts with several groups"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_topology(parser)
    add_policy(parser)
    parser.add_argument("--jobs", metavar="FILE", required=True, help="a line per job: NAME HOSTLIST, or NAME N")
    parser.add_argument("--per", choices=[each.value for each in Per], default=Per.LINK.value,
        help="what has a capacity: switch (HDR), link (NDR; default)")  # fmt: skip
    parser.add_argument("--capacity", type=int, default=1, metavar="C", help="jobs at once on each (default 1)")
    parser.add_argument("-k", type=int, default=K, help="candidate trees per job, drawn (default %(default)s)")
    parser.add_argument("--exact", action="store_true", help="prove that no more jobs can be served (extra sim)")
    parser.add_argument("--limit-s", type=float, default=60.0, metavar="S", help="for --exact (default %(default)g)")


def main(arguments: argparse.Namespace) -> int:
    """Plan, check, print."""
    for name, value in (("--capacity", arguments.capacity), ("-k", arguments.k)):
        if value < 1:
            raise NetworkError(f"{name} {value}: 1 or more")
    topology = topology_of(arguments.topology)
    random = Random(arguments.seed)
    jobs = jobs_of(topology, arguments.jobs, arguments.policy, random)
    names, hosts = list(jobs), dict(enumerate(jobs.values()))
    trees: Candidates = {job: candidates(topology, each, arguments.k, random) for job, each in hosts.items()}
    limit = Limit(Per(arguments.per), arguments.capacity)
    proven: exact.Solution | None = None
    if arguments.exact:
        try:
            proven = exact.solve(trees, limit, limit_s=arguments.limit_s, hint=fast.solve(trees, limit))
        except SchedError as fault:
            raise NetworkError(str(fault)) from None
    chosen = fast.solve(trees, limit) if proven is None or not proven.trees else proven.trees
    found = plan(trees, {}, limit, choose=lambda *_: chosen)
    wrong = violations(topology, hosts, found, limit)
    assert not wrong, wrong
    data = _data(arguments, topology, names, hosts, trees, found)
    if proven is not None:
        data["exact"] = {"status": proven.status, "bound": proven.bound}
    if arguments.picture:
        from offpath.cli.files.networks_plot import sharing

        data["picture"] = sharing(topology, names, hosts, found, arguments.picture)
    print(json.dumps(data) if arguments.json else _text(data))
    return 0


def jobs_of(topology: Topology, path: str, policy: str, random: Random) -> dict[str, tuple[int, ...]]:
    """Hosts by job, in the file's order. Raises: NetworkError."""
    cluster, placement = Cluster(topology), make(policy, random)
    jobs: dict[str, tuple[int, ...]] = {}
    for line, raw in enumerate(text_of(path).splitlines(), 1):
        words = raw.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] in jobs or len(jobs) == _MOST_JOBS:
            raise NetworkError(f"{path}:{line}: NAME HOSTLIST or NAME N, each name once, {_MOST_JOBS} lines at most")
        if words[1].isdecimal() and len(words[1]) < 10:
            wanted = int(words[1])
            if not 1 <= wanted <= cluster.free:
                raise NetworkError(f"{path}:{line}: {wanted} hosts wanted, {cluster.free} are free")
            hosts = placement.place(cluster, Request(wanted)).hosts
        else:
            hosts = tuple(hosts_of(topology, words[1], f"{path}:{line}"))
        try:
            cluster.take(hosts)
        except HostsHeld:
            raise NetworkError(f"{path}:{line}: a host of {words[0]} is another job's") from None
        jobs[words[0]] = hosts
    if not jobs:
        raise NetworkError(f"{path}: contains no job")
    return jobs


def _data(
    arguments: argparse.Namespace, topology: Topology, names: list[str], hosts: dict[int, tuple[int, ...]],
    trees: Candidates, found: Plan,
) -> dict[str, Any]:  # fmt: skip
    rows = []
    for job, name in enumerate(names):
        tree = found.trees.get(job)
        rows.append({
            "job": name, "hosts": [topology.names[host] for host in hosts[job]], "candidates": len(trees[job]),
            "category": found.category.get(job), "root": topology.names[tree.root] if tree else None,
            "switches": [topology.names[switch] for switch in tree.switches] if tree else [],
        })  # fmt: skip
    return {
        "topology": arguments.topology, "per": arguments.per, "capacity": arguments.capacity, "k": arguments.k,
        "seed": arguments.seed, "jobs": rows, "groups": [[names[job] for job in sorted(each)] for each in found.groups],
        "categories": {str(n): sum(each == n for each in found.category.values()) for n in (1, 2, 3)},
    }  # fmt: skip


def _text(data: dict[str, Any]) -> str:
    lines = [f"{'job':16} {'root':12} {'switches':>8}  hosts"]
    for row in data["jobs"]:
        shown = folded(row["hosts"])
        what = "one host, or hosts apart: no tree" if row["category"] is None else _CATEGORY[row["category"]]
        lines.append(f"{row['job']:16} {row['root'] or '-':12} {len(row['switches']):8}  {shown}  ({what})")
    shared = [" + ".join(group) for group in data["groups"] if len(group) > 1]
    count = data["categories"]
    lines.append(
        f"{count['1']} without conflict, {count['2']} share, {count['3']} without a tree"
        f" (C = {data['capacity']} per {data['per']}, k = {data['k']})"
    )
    lines += [f"shared: {'; '.join(shared)}"] if shared else []
    if "exact" in data:
        shown, bound = data["exact"]["status"], data["exact"]["bound"]
        lines.append(f"{shown}: no choice among these trees serves more than {bound} without conflict")
    return "\n".join(lines)
