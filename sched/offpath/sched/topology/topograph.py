"""Reads Topograph's JSON: its graph engine's output for instances, and its providers' table of switches.

``{"instances": [{"id": …, "network_layers": [leaf, spine, …]}]}`` (its docs, engines/graph), and ``{"switches": {NAME:
{"switches": [NAME…], "nodes": [{"node_id": …}…]}}}``. Its Slurm engine writes topology.conf and topology.yaml: `slurm`.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

from offpath.sched.topology.declared import Declared, connected
from offpath.sched.topology.graph import Topology, TopologyError

_LONGEST_NAME: Final = 256


def topograph(text: str) -> Topology:
    """Read either form. Raises: TopologyError: for invalid JSON with the line, otherwise with the path of keys."""
    try:
        data: Any = json.loads(text)
    except json.JSONDecodeError as fault:
        raise TopologyError(f"invalid JSON: {fault.msg}", fault.lineno) from None
    except (RecursionError, ValueError):  # a thousand levels deep, or a number of thousands of digits
        raise TopologyError("this JSON cannot be a topology") from None
    if isinstance(data, dict) and isinstance(data.get("instances"), list):
        return connected(_of_instances(data["instances"]))
    if isinstance(data, dict) and isinstance(data.get("switches"), dict):
        return connected([_of_switch(name, each) for name, each in data["switches"].items()])
    raise TopologyError('neither "instances" nor "switches" on the outermost level')


def _name(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_NAME or not value.isprintable():
        raise TopologyError(f"{path} is not a name")
    return value


def _of_instances(instances: list[Any]) -> list[Declared]:
    below: dict[str, dict[str, None]] = {}
    hosts: dict[str, list[str]] = {}
    seen = set()
    for n, each in enumerate(instances):
        path = f"instances[{n}]"
        layers = each.get("network_layers") if isinstance(each, dict) else None
        if not isinstance(layers, list) or not layers:
            raise TopologyError(f"{path} has no network_layers")
        host = _name(each.get("id"), f"{path}.id")
        if host in seen:
            raise TopologyError(f"{path}: instance {host!r} is duplicated")
        seen.add(host)
        names = [_name(layer, f"{path}.network_layers") for layer in layers]
        for name in names:
            below.setdefault(name, {})
            hosts.setdefault(name, [])
        hosts[names[0]].append(host)
        for low, high in pairwise(names):
            below[high][low] = None
    return [Declared(name, tuple(below[name]), hosts[name]) for name in below]


def _of_switch(name: str, each: Any) -> Declared:
    path = f"switches.{_name(name, 'a key of switches')}"
    switches, nodes = (each.get("switches") or [], each.get("nodes") or []) if isinstance(each, dict) else (None, None)
    if not isinstance(switches, list) or not isinstance(nodes, list):
        raise TopologyError(f"{path} has no lists of switches or nodes")
    below = [_name(child, f"{path}.switches") for child in switches]
    hosts = [_name(node.get("node_id") if isinstance(node, dict) else node, f"{path}.nodes") for node in nodes]
    return Declared(name, below, hosts)
