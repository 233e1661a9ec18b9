"""`offpath demo netpack`, piece by piece: the whole demo takes most of a minute."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.demo.netpack import command, ratios, report, workload
from offpath.cli.demo.netpack.training import Training, alone, fingerprint
from offpath.cli.local import engines
from offpath.dpu_daemon.manager.config import EngineTable
from offpath.dpu_daemon.manager.serve import engine_of
from offpath.host_helper.ina.statistical import fixed_point

JOBS = (
    workload.DemoJob("span", 3, 0.0, 100_000, 0.01, 3),
    workload.DemoJob("single", 1, 0.1, 20_000, 0.01, 3),
    workload.DemoJob("next", 8, 0.2, 60_000, 0.01, 2),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="offpath-np-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def live(folder: Path) -> workload.Live:
    """With other kernels of OpenBLAS than this processor's own: who does not get that variable computes other bits."""
    with pytest.MonkeyPatch.context() as patch, engines.started("local", str(folder), workload.LEAVES) as engine:
        patch.setenv("OPENBLAS_CORETYPE", "Nehalem")
        return workload.live(str(folder), engine, JOBS)


def test_placed_jobs_train_through_the_switch_to_the_bit(live: workload.Live) -> None:
    assert [each.job.name for each in live.ran] == ["span", "single", "next"]
    assert all(each.is_exact for each in live.ran)
    span, single, following = live.ran
    assert (len(span.servers), single.ps, len(single.servers), len(following.servers)) == (2, "", 1, 4)
    assert min(span.rate_est, span.rate_measured, following.rate_est, following.rate_measured) > 0
    assert single.rate_measured == 0
    counts = live.switch["jobs"].values()
    assert sum(each["aggregated"] for each in counts) > 0
    assert live.switch["taken"] == live.switch["malformed"] == live.switch["dropped"] == 0


def test_the_simulation_runs_the_same_jobs(live: workload.Live) -> None:
    found = workload.simulate(JOBS, engines.GPUS, live.start_s)
    assert found.keys() == {job.name for job in JOBS}
    assert all(0 < each < 60 for each in found.values())
    assert found["next"] > found["span"]  # it waits for it


def test_the_report_names_jobs_whose_sums_are_wrong(live: workload.Live) -> None:
    made = report.build("local", live, [], busy=1.0)
    assert made["ok"]
    assert {"engine", "jobs", "agg_ratio", "corr"} <= made.keys()
    made["seconds"] = 1.0
    assert "span" in report.render(made)
    wrong = workload.Live([replace(live.ran[0], is_exact=False), *live.ran[1:]], live.switch, live.start_s)
    assert report.build("local", wrong, [], busy=1.0)["faults"] == [
        "job span: its weights differ from a run without a network"
    ]


def test_a_missed_bar_fails_on_a_quiet_machine_and_with_enough_jobs_only(
    live: workload.Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = [
        replace(each, simulated_s=simulated, jct_s=jct)
        for each, simulated, jct in zip(live.ran, (1.0, 2.0, 3.0), (3.0, 1.0, 2.0), strict=True)
    ]
    missed = workload.Live(ran, live.switch, live.start_s)
    assert report.build("local", missed, [], busy=0.2)["ok"]
    monkeypatch.setattr(report, "LEAST_JOBS", 3)
    assert "figure 6" in report.build("local", missed, [], busy=0.2)["faults"][0]
    assert report.build("local", missed, [], busy=1.0)["ok"]


def test_a_point_of_figure_14_is_measured_by_the_switch_s_counters(folder: Path) -> None:
    (point,) = ratios.measure(str(folder / "ratio"), 1.0, 1, 3)
    assert point.is_exact
    assert 0.3 < point.ratio <= 1.0
    assert (point.model, point.hash) == (1.0, "rehash")


def test_an_engine_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: str, leaves: engines.Leaves) -> NoReturn:
        raise EngineMissing(f"nothing to install in {folder}")

    monkeypatch.setitem(engines.ENGINES, "ray", missing)
    assert tuple(sorted(engines.ENGINES)) == tuple(sorted(command.ENGINES))
    with pytest.raises(EngineMissing, match="nothing to install"):
        command.main(argparse.Namespace(engine="ray", quick=True, picture="", json=True))


def test_shares_of_gpus_change_no_step_s_batch_and_the_sum_is_the_ranks() -> None:
    plan = Training(3, (2, 1), 20_000, 2)
    weights = plan.weights()
    total = np.sum([plan.gradient(weights, 0, rank) for rank in (0, 1)], axis=0, dtype=np.int32)
    assert total.shape == (plan.parameters,)
    assert abs(plan.parameters * 4 - 20_000) < 300
    assert fingerprint(alone(plan)) == fingerprint(alone(plan))
    assert fingerprint(alone(plan)) != fingerprint(alone(replace(plan, seed=4)))


@pytest.mark.parametrize("values", [[np.nan], [np.inf], [1024.0], [-1024.5]])
def test_a_gradient_that_could_overflow_is_refused(values: Sequence[float]) -> None:
    with pytest.raises(fixed_point.GradientOutOfRange):
        fixed_point.encode(np.array(values, np.float32), 2)


def test_fixed_point_is_exact_up_to_its_resolution() -> None:
    values = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    back = fixed_point.decode(fixed_point.encode(values, 5))
    assert np.abs(back - values).max() <= 2.0**-21 + 2.0**-24


def test_correlation_is_numpy_s() -> None:
    pairs = [(1.0, 2.0), (2.0, 1.0), (3.0, 5.0), (4.0, 4.0)]
    assert report.correlation(pairs) == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1], abs=1e-4)


def test_the_default_engine_is_slurm_only_where_it_can_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise EngineMissing("no apt-get")

    monkeypatch.setattr(engines, "unpacked", missing)
    assert engines.default() == "local"
    monkeypatch.setattr(engines, "unpacked", lambda: Path("/"))
    assert engines.default() == "slurm"


@pytest.mark.not_fast("a script of the source tree fetches Slurm")
def test_slurm_offers_the_demo_s_servers_below_one_leaf_switch(folder: Path) -> None:
    async def inventory(engine: engines.Started) -> set[tuple[str, int, str]]:
        adapter = engine_of(EngineTable(**engine.table))
        try:
            return {(node.name, len(node.gpus), node.switch) for node in await adapter.inventory()}
        finally:
            await adapter.close()

    with engines.started("slurm", str(folder), workload.LEAVES) as engine:
        found = asyncio.run(inventory(engine))
        assert found == {(node, engines.GPUS, leaf) for leaf, nodes in engine.leaves.items() for node in nodes}
        assert len(engine.nodes) == workload.SERVERS
