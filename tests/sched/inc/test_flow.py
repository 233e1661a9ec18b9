"""The solver's flows are feasible and as cheap as networkx's; instances of HIRE's simulator have the known costs."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from random import Random

import pytest

from offpath.sched.gpu.exact import SolverMissing
from offpath.sched.inc.errors import FlowInvalid
from offpath.sched.inc.flow import Flow, FlowProblem, flow_faults, parse_dimacs, solve

from ...sizes import sized

nx = pytest.importorskip("networkx", reason="networkx is not installed: it comes with torch")

DATA = Path(__file__).parent / "data"
COUNT = sized(quick=60, fast=100, slow=400, full=10_000)


def random_problem(draw: Random) -> FlowProblem:
    """Up to 14 nodes; parallel arcs, circles and negative costs included, often infeasible."""
    nodes = draw.randint(2, 14)
    problem = FlowProblem.of_nodes(nodes)
    for _ in range(draw.randint(0, 3)):
        source, sink, units = draw.randrange(nodes), draw.randrange(nodes), draw.randint(1, 6)
        problem.supply[source] += units
        problem.supply[sink] -= units
    for _ in range(draw.randint(0, 5 * nodes)):
        tail, head = draw.sample(range(nodes), 2)
        problem.add(tail, head, draw.randint(0, 8), draw.randint(-3 if draw.random() < 0.2 else 0, 100))
    return problem


def optimum_of_networkx(problem: FlowProblem) -> int | None:
    """The least cost; None if no flow satisfies the supplies."""
    graph = nx.MultiDiGraph()
    for node, supply in enumerate(problem.supply):
        graph.add_node(node, demand=-supply)
    for tail, head, capacity, cost in zip(problem.tails, problem.heads, problem.capacities, problem.costs, strict=True):
        graph.add_edge(tail, head, capacity=capacity, weight=cost)
    try:
        cost, _ = nx.network_simplex(graph)
    except nx.NetworkXUnfeasible:
        return None
    return int(cost)


def test_random_networks_cost_what_networkx_says() -> None:
    feasible = 0
    for seed in range(COUNT):
        problem = random_problem(Random(seed))
        expected = optimum_of_networkx(problem)
        if expected is None:
            with pytest.raises(FlowInvalid, match="no flow"):
                solve(problem)
            continue
        flow = solve(problem)
        assert flow_faults(problem, flow) == [], seed
        assert flow.cost == expected, seed
        feasible += 1
    assert 0.3 * COUNT < feasible < COUNT


def test_potentials_change_neither_the_cost_nor_what_is_feasible() -> None:
    for seed in range(COUNT):
        problem, draw = random_problem(Random(seed)), Random(seed)
        try:
            expected = solve(problem).cost
        except FlowInvalid:
            continue
        problem.potentials = {node: draw.randint(-500, 500) for node in range(0, len(problem.supply), 2)}
        flow = solve(problem)
        assert flow_faults(problem, flow) == [], seed
        assert flow.cost == expected, seed


@pytest.mark.parametrize("potentials", [{2: 1}, {-1: 1}, {0: 10**7}])
def test_a_potential_out_of_range_is_refused(potentials: dict[int, int]) -> None:
    problem = FlowProblem(array("q", (1, -1)), potentials=potentials)
    problem.add(0, 1, 1, 5)
    with pytest.raises(FlowInvalid, match="potentials"):
        solve(problem)


@pytest.mark.parametrize(("name", "cost"), [("graph1", 534), ("graph2", 201), ("graph4", 8891)])
def test_instances_of_the_public_simulator_have_the_known_cost(name: str, cost: int) -> None:
    problem = parse_dimacs((DATA / f"{name}.in").read_text().splitlines())
    flow = solve(problem)
    assert flow.cost == cost == optimum_of_networkx(problem)
    assert flow_faults(problem, flow) == []


def test_the_invalid_instance_is_refused_at_its_first_fault() -> None:
    with pytest.raises(FlowInvalid, match="node 98: declared twice, or not one of 0 … 84") as refused:
        parse_dimacs((DATA / "graph3.in").read_text().splitlines())
    assert refused.value.line == 170


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no header"),
        ("n 0 1", "line 1: no header"),
        ("p min 2", "line 1: the header"),
        ("p min 2 0\np min 2 0", "line 2: the header"),
        ("p min 99999999999 1", "out of range"),
        ("p min 2 1\nn 0 x", "whole numbers"),
        ("p min 2 1\nn 0 " + "9" * 5_000, "more than 12 digits"),
        ("p min 2 1\nn 2 1", "node 2"),
        ("p min 2 1\nn 0 1\nn 0 1", "declared twice"),
        ("p min 2 1\na 0 2 0 1 1", "nodes are 0 … 1"),
        ("p min 2 1\na 0 1 1 1 1", "lower bound"),
        ("p min 2 1\na 0 1 0 -1 1", "capacity -1"),
        ("p min 2 1\na 0 1 0 1 1000001", "out of range"),
        ("p min 2 1\na 0 1 0 1", "not a line"),
        ("p min 2 1\na 0 1 0 1 1\na 0 1 0 1 1", "more than the 1 arcs"),
        ("p min 2 2\na 0 1 0 1 1", "fewer arcs"),
        ("p min 2 1\nn 0 1\na 0 1 0 1 1", "add up to 1"),
    ],
)
def test_a_malformed_instance_is_refused(text: str, why: str) -> None:
    with pytest.raises(FlowInvalid, match=why):
        parse_dimacs(text.splitlines())


def test_the_checker_finds_a_wrong_flow() -> None:
    problem = FlowProblem(array("q", (1, -1)))
    problem.add(0, 1, 1, 5)
    assert flow_faults(problem, Flow(5, (1,))) == []
    assert flow_faults(problem, Flow(4, (1,))) == ["the cost is not that of the flows"]
    assert len(flow_faults(problem, Flow(10, (2,)))) == 3


def test_without_the_solver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.graph.python", None)
    problem = FlowProblem.of_nodes(2)
    problem.add(0, 1, 1, 1)
    with pytest.raises(SolverMissing, match="offpath\\[sim\\]"):
        solve(problem)
