"""What `demo ina` reckons with: scores, the bound, orders, and the model whose bytes set the links' rate."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from offpath.cli.demo.ina import orders, quiet
from offpath.cli.demo.ina.command import exit_code, judged
from offpath.cli.demo.ina.drive import BYTES_PER_STEP, SETTINGS
from offpath.cli.demo.ina.score import Block, bound, demand, runs

from ..support.optional import TORCH


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
    pytest.importorskip("torch", reason=TORCH)
    from offpath.cli.demo.ina import training

    assert sum(each.numel() * 4 for each in training.network(1).parameters()) == BYTES_PER_STEP
    for setting in SETTINGS:
        seconds = 1.5 * BYTES_PER_STEP / setting.rate
        assert seconds / (seconds + setting.compute_s) == pytest.approx(setting.share, rel=1e-4)


# -- whether the machine was quiet ------------------------------------------------------------------------------------
QUIET, DISTURBED = 0.03, 0.41
BEFORE = "cpu  450566 442216 97558 255433 2076 0 2225 2035 0 0\ncpu0 1 2 3 4\n"
AFTER = "cpu  450966 442716 97608 255483 2076 0 2225 2035 0 0\ncpu0 1 2 3 4\n"
"""Of two cores, 5 s apart: 950 of 1000 ticks busy."""


def test_what_others_took_is_the_busy_time_that_is_not_ours() -> None:
    (total, busy), (later, busier) = quiet.cores_of(BEFORE), quiet.cores_of(AFTER)
    assert (later - total, busier - busy) == (1000, 950)
    before = quiet.Cores(total, busy, 200)
    assert quiet.taken_by_others(before, quiet.Cores(later, busier, 1100)) == pytest.approx(0.05)
    assert quiet.taken_by_others(before, quiet.Cores(later, busier, 300)) == pytest.approx(0.85)
    assert quiet.taken_by_others(before, quiet.Cores(later, busier, 1300)) == 0, "ticks of two files never quite agree"
    assert quiet.taken_by_others(before, before) == 0


def test_ours_are_the_demos_process_and_its_descendants_only() -> None:
    def stat(pid: int, parent: int, ticks: int, name: str = "python) S 1") -> str:
        return f"{pid} ({name}) S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0 20 0"

    stats = [stat(10, 1, 5), stat(11, 10, 7), stat(12, 11, 11), stat(13, 1, 1000), stat(14, 13, 1000), stat(15, 15, 99)]
    assert quiet.ticks_of(stats, 10) == 23


def test_a_look_at_this_machine_counts_our_own_work_as_ours() -> None:
    before = quiet.look()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = quiet.look()
    assert after.ours - before.ours >= 0.25 * os.sysconf("SC_CLK_TCK")
    assert after.busy - before.busy >= 0.25 * os.sysconf("SC_CLK_TCK")
    assert 0 <= quiet.taken_by_others(before, after) <= 1


@pytest.mark.parametrize(
    ("taken", "goes_on", "chosen"),
    [
        ([QUIET] * 4, True, ([0, 1, 2, 3], True)),
        ([QUIET] * 5, False, ([0, 1, 2, 3, 4], True)),
        ([QUIET, DISTURBED, QUIET, QUIET, QUIET], True, ([0, 2, 3, 4], True)),
        ([QUIET, DISTURBED, QUIET, QUIET, QUIET, QUIET], False, ([0, 2, 3, 4, 5], True)),
        ([DISTURBED] * 7, True, ([0, 1, 2, 3, 4, 5, 6], False)),
        ([DISTURBED] * 8, False, ([0, 1, 2, 3, 4, 5, 6, 7], False)),
        ([DISTURBED] * 6 + [QUIET] * 3 + [DISTURBED], False, ([6, 7, 8], True)),
    ],
)
def test_a_disturbed_block_is_repeated_up_to_a_bound_and_does_not_count(
    taken: list[float], goes_on: bool, chosen: tuple[list[int], bool]
) -> None:
    """Five are wanted: ten are run at most, three quiet ones give a verdict."""
    assert quiet.goes_on(taken, 5) is goes_on
    assert quiet.chosen(taken, 5) == chosen


def test_the_verdict_is_the_bars_where_it_was_quiet_and_none_where_it_was_not() -> None:
    """0.886 of the bound was measured beside other work, 0.942 on quiet cores."""
    assert judged("s", 0.2, 0.942, [QUIET] * 5, 5) == ([], "")
    faults, busy = judged("s", 0.2, 0.886, [QUIET] * 5, 5)
    assert [fault for fault in faults if "0.886 of the best" in fault]
    assert (busy, exit_code(faults, [])) == ("", 1)
    for of_bound in (0.886, 0.942):
        faults, busy = judged("s", 0.05, of_bound, [DISTURBED] * 8, 5)
        assert faults == []
        assert "the machine was busy: 0 of 5" in busy
        assert exit_code(faults, [busy]) == os.EX_TEMPFAIL
    assert exit_code(["weights"], ["busy"]) == 1
    assert exit_code([], []) == 0
