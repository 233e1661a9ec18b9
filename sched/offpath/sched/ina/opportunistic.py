"""The paper's baseline (§V-A): a new job gets a tree if one does not conflict with existing trees, and keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offpath.sched.ina.conflicts import Limit
from offpath.sched.ina.trees import Tree


def opportunistic(candidates: Sequence[Tree], existing: Iterable[Tree], limit: Limit) -> Tree | None:
    """Return the first candidate with room everywhere, or None.

    ``existing``: the trees that count. The paper counts all assigned trees; the authors' first simulator passes only
    those in transmission at that moment, so that its trees may overlap and must then be shared.
    """
    used: dict[int, int] = {}
    for tree in existing:
        for need in limit.needs(tree):
            used[need] = used.get(need, 0) + 1
    for tree in candidates:
        if all(used.get(need, 0) < limit.capacity for need in limit.needs(tree)):
            return tree
    return None
