"""Why a place was chosen: the cost terms that favour it over the next one. All choices of a round at once; the same as
`cost.decisive` says of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from offpath.sched.inc.cost import ONE, EdgeCost
from offpath.sched.inc.cost_columns import EDGE_TERMS, SINK_TERMS
from offpath.sched.inc.decisions import Reason, Why
from offpath.sched.inc.edges import Edges
from offpath.sched.inc.layers import Ints
from offpath.sched.inc.network import FlowNetwork, GroupNode, Picked, Round

_NAMES: Final = tuple(sorted({*EDGE_TERMS, *SINK_TERMS, "flavor", "penalty"}))
_EDGE: Final = [_NAMES.index(each) for each in EDGE_TERMS]
_SINK: Final = [_NAMES.index(each) for each in SINK_TERMS]
_NONE: Final = EdgeCost(())


class Verdict(NamedTuple):
    """A reason but for the name of what was chosen."""

    why: Why
    text: str
    terms: tuple[tuple[str, int], ...] = ()

    def about(self, what: str) -> Reason:
        """The reason. ``what``: what was chosen, and where."""
        return Reason(self.why, f"{what}: {self.text}", self.terms)


class _Path(NamedTuple):
    """G → M or N and M → K, behind F → G if a flavor is decided. ``node``: where the path ends. ``end``: of the edge
    from G."""

    edges: Edges
    end: int
    is_subtree: bool
    node: int
    flavor: EdgeCost


def verdicts(network: FlowNetwork, built: Round, picked: Sequence[Picked]) -> list[Verdict]:
    """Of each choice, against the next place of the same group; the first of a flavor against the job's next flavor.
    Ask before anything starts."""
    by_job: dict[int, list[GroupNode]] = {}
    for of in built.groups.values():
        if of.flavor is not None and of.shortcuts:
            by_job.setdefault(of.job.number, []).append(of)
    mine, others, at = [], [], []
    found = [Verdict(Why.ONLY, "nothing else fits")] * len(picked)
    for n, each in enumerate(picked):
        of = each.of
        flavor = None if each.is_further else of.flavor
        other = _next_place(of, each.node) if flavor is None else _next_flavor(network, of, by_job[of.job.number])
        if other is not None:
            mine.append(_Path(of.shortcuts, each.end, each.is_subtree, each.node, flavor or _NONE))
            others.append(other)
            at.append(n)
    if not at:
        return found
    (my_terms, my_totals), (their_terms, their_totals) = _priced(network, mine), _priced(network, others)
    gains = (their_terms - my_terms) // ONE
    ranks = np.argsort(-gains, axis=1, kind="stable")
    ranked = np.take_along_axis(gains, ranks, axis=1)
    rows = zip(
        at, (ranked > 0).sum(1).tolist(), ranks.tolist(), ranked.tolist(), (my_totals < their_totals).tolist(),
        strict=True,
    )  # fmt: skip
    for n, count, names, values, is_cheaper in rows:
        terms = tuple(zip([_NAMES[name] for name in names[:count]], values[:count], strict=True))
        if is_cheaper and terms:
            found[n] = Verdict(Why.CHEAPEST, ", ".join([name for name, _ in terms]), terms)
        elif picked[n].rule:
            found[n] = Verdict(Why.RULE, picked[n].rule, terms)
        else:
            found[n] = Verdict(Why.NO_CHEAPER, "as cheap as any that was left", terms)
    return found


def _next_place(of: GroupNode, node: int) -> _Path | None:
    """The group's cheapest other place. Its edges are in the order of their cost with M → K."""
    edges = of.shortcuts
    for at in range(min(2, edges.places)):
        if (other := int(edges.nodes[at])) != node:
            return _Path(edges, other, False, other, _NONE)
    return None


def _next_flavor(network: FlowNetwork, of: GroupNode, of_job: Sequence[GroupNode]) -> _Path | None:
    """The cheapest first edge of a group of another flavor."""
    best: tuple[int, _Path] | None = None
    for other in of_job:
        if other.flavor is None or (other.group.composite, other.group.implementation) == (
            of.group.composite, of.group.implementation
        ):  # fmt: skip
            continue
        edges = other.shortcuts
        first = int(edges.nodes[0])
        total = int(edges.totals[0]) + network.sink_total(first) + other.flavor.total
        if best is None or total < best[0]:
            best = total, _Path(edges, first, not edges.places, first, other.flavor)
    return best and best[1]


def _priced(network: FlowNetwork, paths: Sequence[_Path]) -> tuple[Ints, Ints]:
    """Each term's share of its edge in hundredths of hundredths, shape [paths, names], and the paths' costs."""
    edges = network.edge_terms([(each.edges, each.end, each.is_subtree) for each in paths])
    nodes = np.array([each.node for each in paths], np.int64)
    sinks = network.sink_terms(nodes)
    shares = np.zeros((len(paths), len(_NAMES)), np.int64)
    shares[:, _EDGE] += edges * (ONE // len(EDGE_TERMS))
    sizes = np.where(nodes < network.resources.topology.hosts, 2, len(SINK_TERMS))
    shares[:, _SINK] += sinks * (ONE // sizes)[:, None]
    totals = edges.sum(1) // len(EDGE_TERMS) + network.sink_totals(nodes)
    for at, each in enumerate(paths):
        if each.flavor is not _NONE:
            for name, value in each.flavor.terms:
                shares[at, _NAMES.index(name)] += ONE * value // len(each.flavor.terms)
            shares[at, _NAMES.index("penalty")] += ONE * each.flavor.penalty
            totals[at] += each.flavor.total
    return shares, totals
