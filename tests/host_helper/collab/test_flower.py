"""Runs of a real Flower that share nodes: strategies of the older API, and without a controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.wire import collab_admin as wire
from offpath.cli.local.collab_controller import CollabController
from offpath.cli.local.flower_cluster import FlowerCluster

from ...support.processes import until

pytestmark = pytest.mark.not_fast("the processes of Flower have no compiled modules")
APP = Path(__file__).resolve().parents[2] / "support" / "flower_legacy"
NODES = 3
_BOUND_S = 240.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flower")


@pytest.fixture(scope="module")
def controller(place: Path) -> Iterator[CollabController]:
    folder = place / "controller"
    folder.mkdir()
    with CollabController(folder, {"name": "venn", "period_s": 1, "lease_s": 120}) as running:
        yield running


@pytest.fixture(scope="module")
def flower(place: Path, controller: CollabController) -> Iterator[FlowerCluster]:
    settings = controller.settings(poll_s=0.2, patience_s=2.0)
    cluster = FlowerCluster(place, [{"part": number} for number in range(NODES)], {"OFFPATH_COLLAB": str(settings)})
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()


def ended(flower: FlowerCluster, run: int) -> str:
    until(lambda: flower.state(run).is_over, _BOUND_S)
    return flower.state(run).status


def open_jobs(controller: CollabController) -> list[str]:
    with controller.client() as client:
        return [each.job for each in client.query(wire.JobsRequest(), wire.JobLines).jobs]


def test_a_client_manager_samples_what_the_controller_lends(
    place: Path, controller: CollabController, flower: FlowerCluster
) -> None:
    result = place / "one.json"
    run = flower.run(APP, {"job": "one", "result": str(result), "rounds": 2, "demand": 2})
    assert ended(flower, run) == "finished:completed"
    rounds = json.loads(result.with_suffix(".part").read_text())
    assert [each["value"] for each in rounds] == [1.0, 2.0]
    assert all(len(each["clients"]) == 2 for each in rounds)
    assert {node for each in rounds for node in each["clients"]} <= set(flower.activated())
    summary = controller.summary()
    assert summary.assigned == 4
    assert summary.leases == 0
    until(lambda: open_jobs(controller) == [])  # the process of the ServerApp ends after its run


def test_without_a_controller_flower_samples_alone(
    place: Path, controller: CollabController, flower: FlowerCluster
) -> None:
    controller.kill()
    result = place / "two.json"
    run = flower.run(APP, {"job": "two", "result": str(result), "rounds": 1, "demand": 2})
    assert ended(flower, run) == "finished:completed"
    (found,) = json.loads(result.with_suffix(".part").read_text())
    assert found["value"] == 1.0
    assert len(found["clients"]) == 2
    assert set(found["clients"]) <= set(flower.activated())
    controller.start()
    assert open_jobs(controller) == []  # the first test's job was closed for good, and this one is unknown
