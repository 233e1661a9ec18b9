"""Why a place was chosen: the cost terms that favour it over the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from offpath.sched.inc import cost
from offpath.sched.inc.cost import EdgeCost
from offpath.sched.inc.decisions import Reason, Why
from offpath.sched.inc.network import FlowNetwork, GroupNode, Picked, Round

_Path = list[EdgeCost]


class Verdict(NamedTuple):
    """A reason but for the name of what was chosen."""

    why: Why
    text: str
    terms: tuple[tuple[str, int], ...] = ()

    def about(self, what: str) -> Reason:
        """The reason. ``what``: what was chosen, and where."""
        return Reason(self.why, f"{what}: {self.text}", self.terms)


class Reasons:
    """Of the choices of a round. Ask before anything starts: terms are worked out from the state as it is."""

    def __init__(self, network: FlowNetwork, built: Round) -> None:
        self._network, self._built = network, built
        self._best: dict[int, list[tuple[int, _Path]]] = {}
        """By group node (its identity): its best places with their paths, two at most."""

    def of(self, picked: Picked) -> Verdict:
        """Against the next place of the same group; if a flavor was chosen, against the job's next flavor."""
        mine = [picked.shortcut.cost, self._network.sink_cost(picked.node)]
        if picked.of.flavor is None:
            others = [path for node, path in self._best_of(picked.of) if node != picked.node]
        else:
            mine.append(picked.of.flavor)
            others = self._other_flavors(picked.of)
        if not others:
            return Verdict(Why.ONLY, "nothing else fits")
        next_best = min(others, key=_total)
        terms = cost.decisive(mine, next_best)
        if _total(mine) >= _total(next_best) or not terms:
            return Verdict(Why.NO_CHEAPER, "as cheap as any that was left", terms)
        return Verdict(Why.CHEAPEST, ", ".join(name for name, _ in terms), terms)

    def _best_of(self, of: GroupNode) -> list[tuple[int, _Path]]:
        known = self._best.get(id(of))
        if known is None:
            edges = of.shortcuts
            nodes = edges.nodes[: edges.places]
            totals = edges.totals[: edges.places] + self._network.sink_totals(nodes)
            best = nodes[np.argsort(totals, kind="stable")[:2]].tolist()
            known = self._best[id(of)] = [
                (node, [edges.to(node, is_subtree=False).cost, self._network.sink_cost(node)]) for node in best
            ]
        return known

    def _other_flavors(self, of: GroupNode) -> list[_Path]:
        """Of the same job: the first edge of every group of another flavor."""
        found = []
        for other in self._built.groups.values():
            if other.job is not of.job or other.flavor is None or not other.shortcuts:
                continue
            if (other.group.composite, other.group.implementation) != (of.group.composite, of.group.implementation):
                first = other.shortcuts[0]
                found.append([first.cost, self._network.sink_cost(first.node), other.flavor])
        return found


def _total(path: Sequence[EdgeCost]) -> int:
    return sum(each.total for each in path)
