"""What `demo ina` reckons with: scores, the bound, orders, and the model whose bytes set the links' rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.cli.demo.ina import orders
from offpath.cli.demo.ina.drive import BYTES_PER_STEP, SETTINGS
from offpath.cli.demo.ina.score import Block, bound, demand, runs


def block(*steps_s: float) -> Block:
    """Two jobs alike, two steps each."""
    return Block(tuple((each, each) for each in steps_s), (0.1, 0.1), (1, 1), (0, 0), (0, 0))


def test_a_score_is_the_part_of_what_all_saves_and_its_interval_holds_it() -> None:
    blocks = [
        {"none": block(1.0 + n / 100, 1.0), "all": block(0.8 + n / 100, 0.9), "shared": block(0.85 + n / 100, 0.9)}
        for n in range(5)
    ]
    none, all_, shared = runs(blocks)
    assert none.efficiency_score == (0, 0)
    assert all_.efficiency_score == pytest.approx((1, 1))
    assert shared.efficiency_score == pytest.approx((0.75, 1))
    assert shared.mean_score == pytest.approx(0.875)
    assert shared.jct_s == pytest.approx((8.7, 9.0))
    low, high = shared.jct_s_ci90[0]
    assert low <= shared.jct_s[0] <= high


def test_the_bound_is_1_where_the_tree_has_room_and_else_fills_it() -> None:
    assert bound((0.4, 0.4), (0.35, 0.35), (0.1, 0.1)) == (1, 1)
    none, best, held = 0.7, 0.55, 0.33
    one, other = bound((none, none), (best, best), (held, held))
    assert one == pytest.approx(other, abs=2e-3)
    used = sum(share * held / (none - share * (none - best)) for share in (one, other))
    assert used == pytest.approx(1, abs=1e-3)
    assert demand((best, best), (held, held)) == pytest.approx(1.2)


def test_an_order_holds_on_all_ranks_from_the_same_step(tmp_path: Path) -> None:
    wanted, agreed = str(tmp_path / "wanted"), str(tmp_path / "agreed")
    ranks = [orders.Orders(wanted, agreed, rank, orders.Order(0, 0.5)) for rank in range(3)]
    orders.write(wanted, orders.Order(1, 0.25))
    seen = [[each.at(step).number for step in range(6)] for each in ranks]
    assert seen == [[0, 0, 0, 1, 1, 1]] * 3


def test_the_links_rate_is_reckoned_with_the_models_bytes() -> None:
    pytest.importorskip("torch")
    from offpath.cli.demo.ina import training

    assert sum(each.numel() * 4 for each in training.network(1).parameters()) == BYTES_PER_STEP
    for setting in SETTINGS:
        seconds = 1.5 * BYTES_PER_STEP / setting.rate
        assert seconds / (seconds + setting.compute_s) == pytest.approx(setting.share, rel=1e-4)
