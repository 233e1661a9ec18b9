"""Forms that adapters share: a `Start` as JSON, as the engines' own records keep it, and switches as topology.conf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from offpath.bindings.engines.port import PATH, NodeInfo, Place, Start


def start_document(start: Start, places: Iterable[Place]) -> dict[str, Any]:
    """What the processes that run a job read: `Start`, with PATH as a job has it that names none."""
    return {
        "identity": start.identity, "places": [[p.node, p.gpu_count, list(p.gpus), p.model] for p in places],
        "argv": list(start.argv), "environment": dict(start.environment), "path": PATH, "user": start.user,
        "working_directory": start.working_directory, "output": start.output,
    }  # fmt: skip


def places_of(found: Sequence[Any]) -> tuple[Place, ...]:
    """The places of a document. Raises: TypeError, ValueError: they are not of that form."""
    return tuple(Place(str(node), int(count), tuple(map(int, gpus)), str(model)) for node, count, gpus, model in found)


def tree(nodes: Sequence[NodeInfo]) -> str:
    """topology.conf(5) of nodes whose switches are known: leaf switches below one; empty if one's is not."""
    leaves: dict[str, list[str]] = {}
    for node in nodes:
        leaves.setdefault(node.switch, []).append(node.name)
    if not leaves or "" in leaves:
        return ""
    lines = [f"SwitchName={switch} Nodes={','.join(names)}" for switch, names in sorted(leaves.items())]
    if len(leaves) > 1:
        lines.append(f"SwitchName=all-of-{len(leaves)} Switches={','.join(sorted(leaves))}")
    return "\n".join(lines) + "\n"
