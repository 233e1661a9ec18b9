"""Table 1 and its numbers."""

from __future__ import annotations

import math

import pytest

from offpath.sched.ina.statistical.model import Spread, flows, loads, switched
from offpath.sched.ina.statistical.network import Network, NetworkInvalid, pat_gbps, regular


def test_a_switch_with_enough_pat_passes_one_flow_and_no_raw_traffic() -> None:
    found = switched(10.0, 10.0, 4)
    assert (found.flows, found.aggregated_gbps, found.unaggregated_gbps) == (1, 10.0, 0.0)


def test_a_switch_with_too_little_passes_all_flows_and_the_rest_raw() -> None:
    found = switched(10.0, 4.0, 3)
    assert (found.flows, found.aggregated_gbps, found.unaggregated_gbps) == (3, 4.0, 18.0)


def test_the_example_of_figure_5_has_its_flows() -> None:
    """Four racks, two workers each, PAT rising from rack to rack: FC on the root's uplink, FS on the PS's link."""
    of = Network((3, 2, 2, 2), (100.0,) * 9, (1_000.0,) * 4, (2.0, 1.0, 3.0, 4.0))  # A_p, A_1, A_3, A_4
    job = Spread((0, 1, 3, 4, 5, 6, 7, 8), 2)
    expected = {0.5: (3, 1), 1.5: (4, 1), 2.5: (4, 6), 3.5: (5, 7), 4.5: (6, 8)}
    for rate, (crossing, last) in expected.items():
        found = flows(of, job, {rack: pat >= rate for rack, pat in enumerate(of.pat_gbps)})
        assert (found["uplink", 0], found["server", 2]) == (crossing, last), rate


def test_a_ps_on_a_workers_server_shares_its_link_with_the_worker() -> None:
    assert flows(regular(1, 3), Spread((0, 1), 0), {0: True}) == {("server", 0): 2, ("server", 1): 1}


def test_loads_are_the_flows_summed_over_the_levels() -> None:
    of = regular(1, 4, pat=30.0)
    found = loads(of, Spread((0, 1, 2), 3), 50.0, {0: 30.0})
    assert found["server", 3] == pytest.approx(30.0 + 3 * 20.0)
    assert found["server", 0] == pytest.approx(50.0)


def test_pat_is_memory_over_rtt() -> None:
    assert pat_gbps(5e6, 40e-6) == 1_000.0
    assert pat_gbps(0, 40e-6) == 0.0


@pytest.mark.parametrize(
    "bad", [(1e6, 0.0), (1e6, -1.0), (1e6, math.nan), (math.nan, 1.0), (-1.0, 1.0), (math.inf, 1.0)]
)
def test_no_pat_without_an_rtt_and_a_memory(bad: tuple[float, float]) -> None:
    with pytest.raises(NetworkInvalid):
        pat_gbps(*bad)


@pytest.mark.parametrize(
    ("racks", "links", "uplinks", "pats"),
    [
        ((), (), (), ()), ((0,), (), (1.0,), (1.0,)), ((1,), (), (1.0,), (1.0,)), ((1,), (math.nan,), (1.0,), (1.0,)),
        ((1,), (1.0,), (-1.0,), (1.0,)), ((1,), (1.0,), (1.0,), (math.nan,)), ((1,), (math.inf,), (1.0,), (1.0,)),
    ],
)  # fmt: skip
def test_an_impossible_network_is_refused(
    racks: tuple[int, ...], links: tuple[float, ...], uplinks: tuple[float, ...], pats: tuple[float, ...]
) -> None:
    with pytest.raises(NetworkInvalid):
        Network(racks, links, uplinks, pats)


def test_an_oversubscription_of_nothing_is_refused() -> None:
    with pytest.raises(NetworkInvalid):
        regular(2, 2, oversubscription=0.0)
    with pytest.raises(NetworkInvalid):
        regular(0, 2)
