"""Each term of Tables 4 and 5 against a table worked by hand, in all readings; what decided is named."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import cost
from offpath.sched.inc.cost import EdgeCost
from offpath.sched.inc.readings import HIRE, HIRE_CODE, HIRE_PAPER, HIRE_PROSE, READINGS, Reading

ALL = (HIRE, HIRE_PAPER, HIRE_CODE)
"""The order of the columns below."""
Three = tuple[int, int, int]


@pytest.mark.parametrize(
    ("values", "average", "deviation"),
    [([], 0, 0), ([7], 7, 0), ([0, 100], 50, 50), ([50, 50, 50], 50, 0), ([0, 0, 100], 33, 47), ([10, 20, 60], 30, 21)],
)
def test_averages_and_deviations(values: list[int], average: int, deviation: int) -> None:
    """√(2·100²/9) = 47.1; √((20² + 10² + 30²)/3) = 21.6."""
    assert (cost.average(values), cost.deviation(values)) == (average, deviation)


@pytest.mark.parametrize(
    ("used", "expected"),
    [  # of (16, 64): utilization, deviation; then hire, hire-paper, hire-code
        ((0, 0), (0, 50, 50)),  # (0 + 0)/2; (0 + 100)/2: the idle server costs 50 in the simulator too
        ((16, 64), (50, 100, 100)),  # (100 + 0)/2; (100 + 100)/2
        ((0, 64), (50, 50, 50)),  # u = (0, 100): (50 + 50)/2; (50 + 50)/2
        ((4, 32), (24, 62, 62)),  # u = (25, 50): average 37, deviation 12: (37 + 12)/2 = 24; (37 + 88)/2 = 62
    ],
)
def test_server_to_sink(used: tuple[int, int], expected: Three) -> None:
    assert tuple(cost.server_sink(used, (16, 64), each).total for each in ALL) == expected


def test_balance_wins_over_imbalance_only_as_corrected() -> None:
    """Equal load: (25 %, 75 %) against (50 %, 50 %)."""
    uneven, even = ((25, 75), (50, 50))
    by_reading = [
        cost.server_sink(even, (100, 100), each).total - cost.server_sink(uneven, (100, 100), each).total
        for each in ALL
    ]
    assert by_reading[0] < 0 < by_reading[1] == by_reading[2]


@pytest.mark.parametrize(
    ("level", "expected"),
    [  # a fat-tree's ToR, aggregation, core: hops 1, 2, 3
        (1, (100, 100, 100)), (2, (50, 50, 50)), (3, (0, 33, 0)),
    ],
)  # fmt: skip
def test_phi_tor(level: int, expected: Three) -> None:
    assert tuple(cost.tor(level, 3, each) for each in ALL) == expected
    assert cost.tor(level, 3, HIRE_PROSE) == 100 - expected[0], "the prose: far from servers is dear"


@pytest.mark.parametrize(
    ("level", "expected"),
    [  # idle: (0 + b + ToR + 0)/4 with b = 0, 100, 100; the simulator's are 25 core, 37 aggregation, 50 ToR
        (1, (25, 50, 50)), (2, (12, 37, 37)), (3, (0, 33, 25)),
    ],
)  # fmt: skip
def test_idle_switch_to_sink(level: int, expected: Three) -> None:
    assert tuple(cost.switch_sink((0, 0, 0), (100, 48, 22), level, 3, 0, 3, each).total for each in ALL) == expected


def test_busy_switch_to_sink() -> None:
    """u = (50, 25, 0): average 25, deviation 20; ToR; two of three services: (25 + 20 + 100 + 66)/4 = 52."""
    edge = cost.switch_sink((50, 12, 0), (100, 48, 22), 1, 3, 2, 3, HIRE)
    assert edge.terms == (("utilization", 25), ("balance", 20), ("distance", 100), ("active services", 66))
    assert edge.total == 52


def test_a_network_of_one_level_has_no_distance() -> None:
    assert [cost.tor(1, 1, each) for each in ALL] == [0, 100, 0]


@pytest.mark.parametrize(
    ("demand", "rest", "expected"),
    [
        ((8, 8), (16, 64), ([50, 12],) * 3),
        ((8, 0), (8, 0), ([100], [100, 0], [100, 0])),  # nothing wanted of nothing
        ((8, 1), (8, 0), ([100, 100],) * 3),
        ((9, 1), (3, 1), ([100, 100],) * 3),
    ],
)
def test_portions_of_what_is_left(
    demand: tuple[int, int], rest: tuple[int, int], expected: tuple[list[int], list[int], list[int]]
) -> None:
    assert tuple(cost.portions(demand, rest, each) for each in ALL) == expected


@pytest.mark.parametrize(
    ("is_active", "active", "expected"), [(True, 2, 0), (False, 0, 100), (False, 1, 75), (False, 2, 60), (False, 3, 50)]
)
def test_phi_new(is_active: bool, active: int, expected: int) -> None:
    """1 / (active/3 + 1)."""
    assert cost.new(is_active, active, 3) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(16, (0, 100, 100)), (8, (50, 50, 60)), (2, (88, 12, 41)), (0, (100, 0, 100))],
)  # e^(½ − 1) = 0.607; e^(⅛ − 1) = 0.417
def test_gamma_lowers_the_cost_only_as_corrected(value: int, expected: Three) -> None:
    assert tuple(cost.gain(value, 16, each) for each in ALL) == expected


@pytest.mark.parametrize(
    ("parts", "expected"), [([], 100), ([(3, 40)], 40), ([(1, 100), (3, 0)], 25), ([(2, 33), (1, 34)], 33)]
)
def test_phi_loc_is_weighted_by_tasks(parts: list[tuple[int, int]], expected: int) -> None:
    assert cost.locality(parts) == expected


def test_shortcut() -> None:
    """(40 + 10 + 25 + 75 + 50)/5."""
    assert cost.shortcut((40, 10), 25, 75, 50).total == 40 == cost.shortcut_total((40, 10), 25, 75, 50)


@pytest.mark.parametrize(
    ("wait", "longest", "scheduled", "expected"),
    [  # 100 · w/max · e^(s/4 − 1): e^−1 = 0.3679, e^−½ = 0.6065
        (0, 0, 0, (500, 500, 800)), (1_000, 1_000, 0, (536, 536, 836)), (1_000, 1_000, 2, (560, 560, 860)),
        (1_000, 1_000, 4, (600, 600, 900)), (500, 1_000, 4, (550, 550, 850)),
    ],
)  # fmt: skip
def test_group_to_postponing(wait: int, longest: int, scheduled: int, expected: Three) -> None:
    assert tuple(cost.postpone(wait, longest, scheduled, 4, each).total for each in ALL) == expected


@pytest.mark.parametrize(
    ("wait", "expected"),
    [  # 3 + ½ cos((w/500 − 1)π) + ½; the simulator has 4
        (0, (300, 300, 400)), (125, (314, 314, 400)), (250, (350, 350, 400)), (500, (400, 400, 400)),
        (60_000, (400, 400, 400)),
    ],
)  # fmt: skip
def test_flavor_to_postponing(wait: int, expected: Three) -> None:
    assert tuple(cost.flavor_postpone(wait, each).total for each in ALL) == expected


@pytest.mark.parametrize(
    ("wait", "expected"),
    [  # falling: 3 tanh(3 − 3r), r = (w − 500)/1500; printed: the same of 1 − r, between 1 below and 0 above
        (0, (300, 100, 300)), (499, (300, 100, 300)), (500, (298, 0, 298)), (1_250, (271, 271, 271)),
        (1_625, (190, 293, 190)), (2_000, (0, 298, 0)), (2_001, (0, 0, 0)),
    ],
)  # fmt: skip
def test_phi_pref(wait: int, expected: Three) -> None:
    assert tuple(cost.preference(wait, False, each) for each in ALL) == expected
    assert cost.preference(wait, True, HIRE) == 0, "only flavors on servers wait"
    assert cost.preference(wait, True, HIRE_CODE) == expected[2]


def test_phi_pref_falls_without_a_jump_only_as_corrected() -> None:
    steps = [[cost.preference(wait, False, each) for wait in range(0, 2_500, 5)] for each in ALL]
    falls = [sorted(each, reverse=True) == each for each in steps]
    jumps = [max(abs(a - b) for a, b in pairwise(each)) for each in steps]
    assert falls == [True, False, True]
    assert jumps[0] <= 3 < 90 < jumps[1]


@pytest.mark.parametrize(
    ("estimate", "expected"), [(200, (100, 100, 100)), (150, (75, 75, 75)), (100, (50, 50, 50)), (120, (60, 60, 60))]
)
def test_phi_x_of_flavors_that_cost_100_to_200(estimate: int, expected: Three) -> None:
    assert tuple(cost.flavor(estimate, 100, 200, 9_999, True, each).total for each in ALL) == expected


def test_phi_x_of_equal_flavors() -> None:
    assert [cost.flavor(70, 70, 70, 9_999, True, each).total for each in ALL] == [100, 100, 50]
    assert [cost.flavor(0, 0, 0, 9_999, True, each).total for each in ALL] == [0, 0, 50]


def test_flavors_on_servers_bear_the_preference() -> None:
    assert [cost.flavor(50, 0, 100, 0, is_inc, HIRE).total for is_inc in (True, False)] == [50, 350]


# -- what decided --------------------------------------------------------------------------------------------------
def test_the_terms_that_decided_are_named_greatest_first() -> None:
    near = [cost.shortcut((40, 0), 0, 0, 50), EdgeCost((("utilization", 10), ("balance", 0)))]
    far = [cost.shortcut((40, 0), 100, 75, 50), EdgeCost((("utilization", 4), ("balance", 0)))]
    assert cost.decisive(near, far) == (("locality", 20), ("interference", 15))
    assert cost.decisive(far, near) == (("utilization", 3),)
    assert cost.decisive(near, near) == ()
    assert cost.decisive([], [EdgeCost((), 500)]) == (("penalty", 500),)


# -- ranges --------------------------------------------------------------------------------------------------------
amounts = st.lists(st.integers(0, 1_000), min_size=3, max_size=3)


@given(amounts, amounts, st.integers(1, 3), st.integers(0, 3), st.sampled_from(list(READINGS.values())))
def test_every_term_is_a_whole_number_of_0_to_100(
    used: list[int], capacity: list[int], level: int, active: int, reading: Reading
) -> None:
    room = [max(each) for each in zip(used, capacity, strict=True)]
    edges = [
        cost.server_sink(used, room, reading), cost.switch_sink(used, room, level, 3, active, 3, reading),
        cost.shortcut(cost.fit(tuple(used), tuple(capacity), reading), cost.gain(active, 3, reading),
                      cost.new(False, active, 3), 50),
    ]  # fmt: skip
    for edge in edges:
        assert all(isinstance(value, int) and 0 <= value <= 100 for _, value in edge.terms)
        assert 0 <= edge.total <= 100


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9), st.sampled_from(list(READINGS.values())))
def test_postponing_stays_dearer_than_any_placement(wait: int, more: int, scheduled: int, reading: Reading) -> None:
    edge = cost.postpone(wait, wait + more, scheduled, 9, reading)
    assert reading.postpone <= edge.total <= reading.postpone + 100
    assert edge.total > 2 * 100
