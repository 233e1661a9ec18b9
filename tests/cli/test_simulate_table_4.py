"""`offpath simulate conspirator --table 4`: by hand, beside the paper's figures, with a source for each number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offpath.cli.simulate.table_4 import Costs, gains, load, server, table_4

from ..support.command import offpath

PLAIN = Costs(
    server_usd=8_000, dpu_usd=2_000, gpu_usd=1_000, host_w=360, dpu_w=100, gpu_w=200, gpus=2, fans=0.1,
    power_supply=0.8, host_throughput=1_000, dpu_throughput=300,
)  # fmt: skip


def test_the_gains_by_hand() -> None:
    """Host: 360 W / 0.9 / 0.8 = 500 W. Server: 10,000 dollars and 760 W; with the SmartNIC 12,000 and 860 W."""
    found = gains(PLAIN)
    assert found.per_price == pytest.approx(0.3 * 8_000 / 2_000 - 1)
    assert found.per_power == pytest.approx(0.3 * 500 / 100 - 1)
    assert found.even_price == pytest.approx(0.2)
    assert found.even_power == pytest.approx(860 / 760 - 1)
    assert server(PLAIN, dpu=False) == pytest.approx((10_000, 760 / 0.72))


def test_at_the_price_of_parity_nothing_is_gained() -> None:
    _, costs = load()
    assert gains(replace(costs, dpu_usd=table_4()["dpu_price_at_parity_usd"])).per_price == pytest.approx(0, abs=1e-3)


def test_the_papers_gains_follow_from_its_own_figures_by_the_same_formula() -> None:
    told, costs = load()
    host, dpu = told["paper"]["host"], told["paper"]["dpu"]
    papers = replace(
        costs, server_usd=host["price_usd"], dpu_usd=dpu["price_usd"], host_w=host["power_w"], dpu_w=dpu["power_w"],
        fans=0.0, power_supply=1.0,
    )  # fmt: skip
    assert gains(papers).per_price == pytest.approx(told["paper"]["gain_per_price"], abs=0.005)
    assert gains(papers).per_power == pytest.approx(told["paper"]["gain_per_power"], abs=0.005)


def test_every_price_power_and_share_names_its_source_and_lies_in_its_range() -> None:
    groups = table_4()["components"]
    components = [each for group in groups.values() for each in group.values()]
    assert len(components) == 10
    for each in components:
        assert len(each["source"]) > 10
        assert each.get("low", each["value"]) <= each["value"] <= each.get("high", each["value"])


def test_each_sensitivity_moves_only_what_depends_on_it() -> None:
    found = table_4()
    rows = {(row["input"], row.get("factor", row.get("value"))): row for row in found["sensitivity"]}
    cheap, dear = (rows["dpu price", factor] for factor in (0.7, 1.3))
    assert cheap["gain_per_price"] > found["gain_per_price"] > 0 > dear["gain_per_price"]
    assert cheap["gain_per_power"] == dear["gain_per_power"] == found["gain_per_power"]
    assert rows["gpu price", 0.7]["gain_per_price"] == found["gain_per_price"]
    assert rows["gpus", 8]["worth_its_price_from"] < rows["gpus", 1]["worth_its_price_from"]
    assert dear["paper_per_price"] == pytest.approx(1.17 / 1.3 - 1, abs=0.001)


def test_the_command_prints_the_papers_figures_beside_the_computed_ones_and_runs_no_window(tmp_path: Path) -> None:
    done = offpath("simulate", "conspirator", "--table", "4", "--json", "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert "windows" not in done.document
    assert done.document["table_4"]["computed"]["dpu"]["power_w"] == 150
    assert not (tmp_path / "out").exists()
    words = [line.split() for line in done.err.splitlines()]
    assert ["host", "CPU", "$1,000", "800", "W", "1,000", "1.00", "1.25", "paper"] in words
    assert ["SmartNIC", "$231", "150", "W", "270", "1.17", "1.80", "paper"] in words
    assert any(line[:1] == ["SmartNIC"] and line[-1:] == ["computed"] for line in words)
    assert "assumed:" in done.err


@pytest.mark.parametrize("words", [("conspirator", "--table", "5"), ("mina", "--table", "4")])
def test_a_table_that_there_is_not_is_wrong_usage(words: tuple[str, ...]) -> None:
    done = offpath("simulate", *words)
    assert done.code == 2
    assert "--table" in done.err
