"""Min-cost flow: the problem as arrays, its checks, and the solver (OR-Tools' cost scaling).

OR-Tools is imported when a problem is solved; the extra ``sim`` provides it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.gpu.exact import SolverMissing
from offpath.sched.inc.errors import FlowInvalid

MOST_NODES: Final = 1_000_000
MOST_ARCS: Final = 10_000_000
MOST_COST: Final = 1_000_000
"""Per unit of flow. Times `MOST_NODES` it stays far from the solver's 64 bits, so that nothing overflows."""
MOST_CAPACITY: Final = 1_000_000_000
_Numbers = NDArray[np.int64]


def _numbers_of(values: Iterable[int] = ()) -> array[int]:
    return array("q", values)


@dataclass(slots=True)
class FlowProblem:
    """A directed network. ``supply``: by node, units that enter there (negative: leave). Arc ``n`` leads from
    ``tails[n]`` to ``heads[n]``, carries 0 … ``capacities[n]`` units, each at ``costs[n]``. All are arrays of 64-bit
    numbers.

    ``potentials``: by node, 0 where it is not named. The solver sees cost + potential(tail) − potential(head). Which
    flows are the cheapest does not depend on it, but the solver is faster if the greatest of these is smaller.
    """

    supply: array[int] = field(default_factory=_numbers_of)
    tails: array[int] = field(default_factory=_numbers_of)
    heads: array[int] = field(default_factory=_numbers_of)
    capacities: array[int] = field(default_factory=_numbers_of)
    costs: array[int] = field(default_factory=_numbers_of)
    potentials: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of_nodes(cls, count: int) -> FlowProblem:
        """Without arcs and supplies."""
        return cls(array("q", bytes(8 * count)))

    def add_node(self, supply: int, potential: int = 0) -> int:
        """Append a node; returns its number."""
        self.supply.append(supply)
        node = len(self.supply) - 1
        if potential:
            self.potentials[node] = potential
        return node

    def add(self, tail: int, head: int, capacity: int, cost: int) -> int:
        """Append an arc; returns its number."""
        self.tails.append(tail)
        self.heads.append(head)
        self.capacities.append(capacity)
        self.costs.append(cost)
        return len(self.tails) - 1

    def add_all(self, tails: _Numbers, heads: _Numbers, capacities: _Numbers, costs: _Numbers) -> None:
        """Append arcs, each argument of shape [arcs]."""
        self.tails.frombytes(tails.tobytes())
        self.heads.frombytes(heads.tobytes())
        self.capacities.frombytes(capacities.tobytes())
        self.costs.frombytes(costs.tobytes())

    def check(self) -> None:
        """Raises: FlowInvalid: a number out of range, a node that is not there, or supplies that do not add up to 0."""
        nodes = len(self.supply)
        if nodes > MOST_NODES or len(self.tails) > MOST_ARCS:
            raise FlowInvalid(f"{nodes} nodes, {len(self.tails)} arcs: at most {MOST_NODES} and {MOST_ARCS}")
        if not (_within(self.tails, 0, nodes - 1) and _within(self.heads, 0, nodes - 1)):
            arc, tail, head = next(
                (arc, tail, head) for arc, (tail, head) in enumerate(zip(self.tails, self.heads, strict=True))
                if not (0 <= tail < nodes and 0 <= head < nodes)
            )  # fmt: skip
            raise FlowInvalid(f"arc {arc} joins {tail} to {head}: nodes are 0 … {nodes - 1}")
        if not (_within(self.capacities, 0, MOST_CAPACITY) and _within(self.costs, -MOST_COST, MOST_COST)):
            arc, capacity, cost = next(
                (arc, capacity, cost)
                for arc, (capacity, cost) in enumerate(zip(self.capacities, self.costs, strict=True))
                if not (0 <= capacity <= MOST_CAPACITY and abs(cost) <= MOST_COST)
            )
            raise FlowInvalid(f"arc {arc} has capacity {capacity} and cost {cost}: out of range")
        if any(not (0 <= node < nodes and abs(each) <= MOST_COST) for node, each in self.potentials.items()):
            raise FlowInvalid("potentials out of range, or of a node that is not there")
        if not _within(self.supply, -MOST_CAPACITY, MOST_CAPACITY):
            raise FlowInvalid("supplies out of range")
        supply = np.frombuffer(self.supply, np.int64)
        if supply.sum() != 0:
            raise FlowInvalid(f"supplies add up to {supply.sum()}: they must add up to 0")
        if np.abs(supply).sum() > 2 * MOST_CAPACITY:
            raise FlowInvalid("supplies out of range")


def _within(values: array[int], least: int, most: int) -> bool:
    found = np.frombuffer(values, np.int64)
    return not len(found) or bool(least <= found.min() and found.max() <= most)


@dataclass(frozen=True, slots=True)
class Flow:
    """``flows``: units on each arc, shape [arcs]."""

    cost: int
    flows: Sequence[int]

    @property
    def used(self) -> list[int]:
        """The arcs that carry something, rising."""
        flows: list[int] = np.nonzero(np.asarray(self.flows, np.int64))[0].tolist()
        return flows


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
        from ortools.graph.python import min_cost_flow
    except ImportError as fault:
        raise SolverMissing('OR-Tools is needed: pip install "offpath[sim]"') from fault
    tails, heads, capacities, costs, supply = (
        np.frombuffer(each, np.int64)
        for each in (problem.tails, problem.heads, problem.capacities, problem.costs, problem.supply)
    )
    # The solver multiplies costs by the number of nodes, so nodes without arcs would make it slower.
    is_used = supply != 0
    is_used[tails] = is_used[heads] = True
    numbers = (np.cumsum(is_used) - 1).astype(np.int32)
    shift = np.zeros(len(supply), np.int64)
    shift[list(problem.potentials)] = list(problem.potentials.values())
    solver = min_cost_flow.SimpleMinCostFlow()
    solver.add_arcs_with_capacity_and_unit_cost(
        numbers[tails], numbers[heads], capacities, costs + shift[tails] - shift[heads]
    )
    solver.set_nodes_supplies(np.arange(is_used.sum(), dtype=np.int32), supply[is_used])
    status = solver.solve()
    if status != solver.OPTIMAL:
        raise FlowInvalid(f"no flow satisfies the supplies ({status.name})")
    flows = np.asarray(solver.flows(np.arange(len(tails), dtype=np.int32)), np.int64)
    return Flow(int((flows * costs).sum()), array("q", flows.tobytes()))


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
            problem = FlowProblem.of_nodes(counts[0])
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
