"""Placement plug-ins of the job manager: in processes of their own, checked, and replaced by `netpack` at a fault."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from offpath.cli.local.job_manager import JobManager
from offpath.dpu_daemon.manager.config import PolicyTable
from offpath.dpu_daemon.manager.plugin import AdvisedPlacement, placement
from offpath.dpu_daemon.policy.plugins import PluginError
from offpath.sched.errors import SchedError
from offpath.sched.placement.batch_port import JobRequest, Reservation
from offpath.sched.placement.batch_registry import make
from offpath.sched.placement.cluster_state import cluster_of, state_of
from offpath.sched.placement.gpu_cluster import JobPlacement
from offpath.sched.plain import from_plain, to_plain

from ...sched.placement.netpack_worlds import faults, in_use, requests, small_cluster
from ...support.sample_policies import install
from .test_live import manager

PATIENT_MS = 60_000
"""Of plug-ins that answer, well or badly: on a busy machine they are late."""


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="offpath-s-"))
    install(made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))


def test_a_cluster_goes_to_another_process_as_it_is() -> None:
    for seed in range(40):
        random = Random(seed)
        cluster = in_use(random)
        if random.random() < 0.5:
            cluster.lose(0)
        state = state_of(cluster)
        assert from_plain(type(state), to_plain(state)) == state
        copy = cluster_of(state)
        assert (copy.free.tolist(), copy.running, copy.lost) == (cluster.free.tolist(), cluster.running, cluster.lost)
        assert copy.steady.total_cost() == pytest.approx(cluster.steady.total_cost())
        batch = requests(random, 5, 12)
        assert make("netpack").place_batch(copy, batch) == make("netpack").place_batch(cluster, batch)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["last-servers", "last"])
def test_an_installed_policy_decides_and_its_reasons_are_few_short_and_printable(name: str) -> None:
    cluster = small_cluster()
    cluster.start("running", JobPlacement(((0, 1),)))
    batch = [JobRequest("a", 8, 4.0), JobRequest("bad", 0, 4.0), JobRequest("b", 100, 4.0)]
    with placement(PolicyTable(name=f"plugin:{name}", plugin_ms=PATIENT_MS)) as policy:
        decision = policy.place_batch(cluster, batch)
        assert isinstance(policy, AdvisedPlacement)
        assert policy.slot.is_advised
    first, *refused = decision.jobs
    assert first.placement is not None
    assert first.placement.workers == ((6, 4), (7, 4))
    assert [each.is_refused for each in refused] == [True, True], "by the rules for every policy"
    assert len(first.reasons) <= 16
    assert all(reason.text.isprintable() and len(reason.text) <= 160 for reason in first.reasons)
    assert first.reasons[-1].describe([f"n{server}" for server in range(8)])


WRONG = {
    "forgets": "each job once", "renames": "each job once", "fewer": "1 GPUs", "held": "not free",
    "outside": "not free", "keeps": "not in the cluster", "raises": "KeyError", "dies": "its process ended",
    "nonsense": "raised", "sleeps": "no answer in",
}  # fmt: skip


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", WRONG)
def test_a_policy_that_answers_wrongly_is_replaced(name: str, caplog: pytest.LogCaptureFixture) -> None:
    cluster = small_cluster()
    cluster.start("running", JobPlacement(((0, 4),)))
    batch = [JobRequest("a", 8, 4.0), JobRequest("b", 8, 4.0)]
    deadline_ms = 1_000 if name == "sleeps" else PATIENT_MS
    with placement(PolicyTable(name=f"plugin:{name}", plugin_ms=deadline_ms)) as policy:
        decision = policy.place_batch(cluster, batch)
        assert isinstance(policy, AdvisedPlacement)
        assert (policy.slot.faults, policy.slot.is_advised) == (1, False)
        assert policy.place_batch(cluster, batch) == decision == make("netpack").place_batch(cluster, batch)
    assert WRONG[name] in caplog.text
    assert faults(cluster, batch, decision) == []


@pytest.mark.usefixtures("installed")
def test_a_reservation_of_the_batch_before_reaches_the_policy_that_replaces_it() -> None:
    cluster = small_cluster(racks=1)
    for server in range(4):
        cluster.start(f"job-{server}", JobPlacement(((server, 4),)))
    large = JobRequest("large", 8, 4.0, passed_over=40)
    with placement(PolicyTable(name="plugin:renames", plugin_ms=PATIENT_MS)) as policy:
        assert policy.place_batch(cluster, [large], Reservation("large", (2, 3))).reservation == Reservation(
            "large", (2, 3)
        )


@pytest.mark.usefixtures("installed")
def test_a_policy_that_is_not_installed_is_an_error_at_the_start() -> None:
    with pytest.raises(PluginError, match="nowhere"), placement(PolicyTable(name="plugin:nowhere")):
        pass


def test_built_in_policies_need_no_process_and_unknown_names_are_refused() -> None:
    with placement(PolicyTable(name="tetris")) as policy:
        assert policy.name == "tetris"
    with pytest.raises(ValueError, match="plugin:NAME"):
        PolicyTable(name="best")
    with pytest.raises(SchedError):
        make("best")


def test_a_job_manager_places_by_a_plug_in_and_says_where_in_words(site: Path, tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="offpath-m-"))
    try:
        made = manager(folder, name="plugin:last-servers", plugin_ms=PATIENT_MS)
        here = JobManager(made.directory, made._tables, environment={"PYTHONPATH": str(site)})
        with here:
            here.submit("wide", 3, ["true"])
            assert here.ended(["wide"], 60)["wide"].state == "succeeded"
            found = here.explain("wide")
            assert sorted((share.node, share.count) for share in found.job.shares) == [("n2", 1), ("n3", 2)]
            assert "policy_quarantined" not in here.log
    finally:
        shutil.rmtree(folder, ignore_errors=True)
