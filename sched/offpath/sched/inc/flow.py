"""Min-cost flow: the problem as arrays, its checks, and the solver (OR-Tools' cost scaling).

OR-Tools is imported when a problem is solved; the extra ``sim`` provides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.gpu.exact import SolverMissing
from offpath.sched.inc.errors import FlowInvalid

MOST_NODES: Final = 1_000_000
MOST_ARCS: Final = 10_000_000
MOST_COST: Final = 1_000_000
"""Per unit of flow. Times `MOST_NODES` it stays far from the solver's 64 bits, so that nothing overflows."""
MOST_CAPACITY: Final = 1_000_000_000


@dataclass(slots=True)
class FlowProblem:
    """A directed network. ``supply``: by node, units that enter there (negative: leave). Arc ``n`` leads from
    ``tails[n]`` to ``heads[n]``, carries 0 … ``capacities[n]`` units, each at ``costs[n]``."""

    supply: list[int] = field(default_factory=list)
    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    capacities: list[int] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)

    def add(self, tail: int, head: int, capacity: int, cost: int) -> int:
        """Append an arc; returns its number."""
        self.tails.append(tail)
        self.heads.append(head)
        self.capacities.append(capacity)
        self.costs.append(cost)
        return len(self.tails) - 1

    def check(self) -> None:
        """Raises: FlowInvalid: a number out of range, a node that is not there, or supplies that do not add up to 0."""
        nodes = len(self.supply)
        if nodes > MOST_NODES or len(self.tails) > MOST_ARCS:
            raise FlowInvalid(f"{nodes} nodes, {len(self.tails)} arcs: at most {MOST_NODES} and {MOST_ARCS}")
        for arc, (tail, head, capacity, cost) in enumerate(
            zip(self.tails, self.heads, self.capacities, self.costs, strict=True)
        ):
            if not (0 <= tail < nodes and 0 <= head < nodes):
                raise FlowInvalid(f"arc {arc} joins {tail} to {head}: nodes are 0 … {nodes - 1}")
            if not (0 <= capacity <= MOST_CAPACITY and abs(cost) <= MOST_COST):
                raise FlowInvalid(f"arc {arc} has capacity {capacity} and cost {cost}: out of range")
        if sum(self.supply) != 0:
            raise FlowInvalid(f"supplies add up to {sum(self.supply)}: they must add up to 0")
        if sum(abs(each) for each in self.supply) > 2 * MOST_CAPACITY:
            raise FlowInvalid("supplies out of range")


@dataclass(frozen=True, slots=True)
class Flow:
    """``flows``: units on each arc, shape [arcs]."""

    cost: int
    flows: tuple[int, ...]


def solve(problem: FlowProblem) -> Flow:
    """A flow of minimal cost that satisfies all supplies. Deterministic.

    Raises: FlowInvalid: the problem is inconsistent, or no flow satisfies the supplies. SolverMissing.
    """
    problem.check()
    if not problem.tails:
        if any(problem.supply):
            raise FlowInvalid("no flow satisfies the supplies")
        return Flow(0, ())
    try:
        import numpy as np
        from ortools.graph.python import min_cost_flow
    except ImportError as fault:
        raise SolverMissing('OR-Tools is needed: pip install "offpath[sim]"') from fault
    solver = min_cost_flow.SimpleMinCostFlow()
    solver.add_arcs_with_capacity_and_unit_cost(
        np.array(problem.tails, np.int32), np.array(problem.heads, np.int32),
        np.array(problem.capacities, np.int64), np.array(problem.costs, np.int64),
    )  # fmt: skip
    solver.set_nodes_supplies(np.arange(len(problem.supply), dtype=np.int32), np.array(problem.supply, np.int64))
    status = solver.solve()
    if status != solver.OPTIMAL:
        raise FlowInvalid(f"no flow satisfies the supplies ({status.name})")
    flows = solver.flows(np.arange(len(problem.tails), dtype=np.int32))
    return Flow(int(solver.optimal_cost()), tuple(int(each) for each in flows))


def flow_faults(problem: FlowProblem, flow: Flow) -> list[str]:
    """Violations of the problem's constraints, and a cost that is not the flows'; independent of any solver."""
    found = []
    rest = list(problem.supply)
    for arc, units in enumerate(flow.flows):
        if not 0 <= units <= problem.capacities[arc]:
            found.append(f"arc {arc} carries {units} of {problem.capacities[arc]}")
        rest[problem.tails[arc]] -= units
        rest[problem.heads[arc]] += units
    found += [f"node {node} keeps {units}" for node, units in enumerate(rest) if units]
    if sum(units * cost for units, cost in zip(flow.flows, problem.costs, strict=True)) != flow.cost:
        found.append("the cost is not that of the flows")
    return found


# -- DIMACS -------------------------------------------------------------------------------------------------------


def parse_dimacs(lines: Iterable[str]) -> FlowProblem:
    """Read a min-cost-flow instance: ``p min NODES ARCS``, ``n NODE SUPPLY [KIND]``, ``a TAIL HEAD LOWER CAPACITY
    COST``; lines that begin with ``c`` are comments. Nodes count from 0, as HIRE's public simulator writes them.

    Raises: FlowInvalid, with the line: malformed, out of range, a node declared twice or not at all, a count that
    differs, a lower bound above 0, supplies that do not add up to 0.
    """
    problem = FlowProblem()
    counts: tuple[int, int] | None = None
    declared: set[int] = set()
    for at, text in enumerate(lines, 1):
        words = text.split()
        if not words or words[0] == "c":
            continue
        if words[0] == "p":
            counts = _header(words, at, counts)
            problem.supply = [0] * counts[0]
        elif counts is None:
            raise FlowInvalid("no header 'p min NODES ARCS' before it", at)
        elif words[0] == "n" and len(words) in (3, 4):
            node, supply = _numbers(words[1:3], at)
            if not 0 <= node < counts[0] or node in declared:
                raise FlowInvalid(f"node {node}: declared twice, or not one of 0 … {counts[0] - 1}", at)
            declared.add(node)
            problem.supply[node] = supply
        elif words[0] == "a" and len(words) == 6:
            _arc(problem, _numbers(words[1:], at), at)
            if len(problem.tails) > counts[1]:
                raise FlowInvalid(f"more than the {counts[1]} arcs of the header", at)
        else:
            raise FlowInvalid(f"{text.strip()[:40]!r}: not a line of a min-cost-flow instance", at)
    if counts is None or len(problem.tails) != counts[1]:
        raise FlowInvalid("fewer arcs than the header says, or no header")
    problem.check()
    return problem


def _header(words: Sequence[str], at: int, counts: tuple[int, int] | None) -> tuple[int, int]:
    if counts is not None or len(words) != 4 or words[1] != "min":
        raise FlowInvalid("the header is 'p min NODES ARCS', once", at)
    nodes, arcs = _numbers(words[2:], at)
    if not (1 <= nodes <= MOST_NODES and 0 <= arcs <= MOST_ARCS):
        raise FlowInvalid(f"{nodes} nodes, {arcs} arcs: out of range", at)
    return nodes, arcs


def _numbers(words: Sequence[str], at: int) -> list[int]:
    if any(len(word) > 12 for word in words):
        raise FlowInvalid("a number of more than 12 digits", at)
    try:
        return [int(word) for word in words]
    except ValueError:
        raise FlowInvalid(f"{' '.join(words)[:40]!r}: whole numbers are needed", at) from None


def _arc(problem: FlowProblem, numbers: Sequence[int], at: int) -> None:
    tail, head, lower, capacity, cost = numbers
    nodes = len(problem.supply)
    if not (0 <= tail < nodes and 0 <= head < nodes):
        raise FlowInvalid(f"arc {tail} → {head}: nodes are 0 … {nodes - 1}", at)
    if lower != 0:
        raise FlowInvalid(f"a lower bound of {lower}: only 0 is supported", at)
    problem.add(tail, head, capacity, cost)
