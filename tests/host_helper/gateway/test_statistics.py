"""What statistics count, without a node: requests, their batches, and the launches that they share."""

from __future__ import annotations

from typing import Any

import pytest

from offpath.bindings.wire.header import Stages
from offpath.host_helper.gateway import statistics
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.models import Batching, Model, Spec
from offpath.host_helper.gateway.statistics import Statistics
from offpath.host_helper.slots import Result

TENSORS = {"x": Spec("x", "FP32", (-1, 3))}
BATCHED = Model("m", 1, "k", (), TENSORS, TENSORS, batching=Batching(8))
PLAIN = Model("p", 1, "k", (), TENSORS, TENSORS)
STAGES = Stages(queued=5, copy=10, launch=1, kernel=100, back=2, total=130)


def ran(batch_rows: int = 0, batch: int = 0) -> Result:
    return Result((), STAGES, 0, 0, batch_rows, batch)


def shown(counted: Statistics, model: Model = BATCHED) -> Any:
    return counted.shown([model])["model_stats"][0]


def sizes(stats: Any) -> dict[int, int]:
    return {each["batch_size"]: each["compute_infer"]["count"] for each in stats["batch_stats"]}


def test_requests_of_one_launch_are_one_execution_of_its_rows() -> None:
    counted = Statistics()
    for rows in (1, 2, 1):
        counted.succeeded(BATCHED, rows, ran(4, 77), 1000)
    counted.succeeded(BATCHED, 3, ran(), 1000)
    stats = shown(counted)
    assert (stats["inference_count"], stats["execution_count"]) == (7, 2)
    assert sizes(stats) == {3: 1, 4: 1}
    assert stats["inference_stats"]["success"] == {"count": 4, "ns": 4000}
    assert stats["inference_stats"]["compute_infer"] == {"count": 4, "ns": 400}
    assert stats["batch_stats"][1] == {
        "batch_size": 4, "compute_input": {"count": 1, "ns": 10}, "compute_infer": {"count": 1, "ns": 100},
        "compute_output": {"count": 1, "ns": 15},
    }  # fmt: skip
    message = classes().ModelStatistics(batch_stats=stats["batch_stats"])
    assert [(each.batch_size, each.compute_infer.ns) for each in message.batch_stats] == [(3, 100), (4, 100)]


def test_without_a_batch_dimension_a_request_is_one_inference_whatever_its_rows() -> None:
    """As Triton counts with ``max_batch_size`` 0."""
    counted = Statistics()
    counted.succeeded(PLAIN, 5, ran(), 1000)
    for _ in range(3):
        counted.succeeded(PLAIN, 2, ran(6, 9), 1000)  # its kernel batches all the same
    stats = shown(counted, PLAIN)
    assert (stats["inference_count"], stats["execution_count"], sizes(stats)) == (4, 2, {1: 1, 3: 1})


def test_failures_are_no_executions() -> None:
    counted = Statistics()
    counted.failed(BATCHED, 50)
    stats = shown(counted)
    assert (stats["inference_count"], stats["execution_count"], stats["batch_stats"]) == (0, 0, [])
    assert stats["inference_stats"]["fail"] == {"count": 1, "ns": 50}


def test_launches_that_are_long_past_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_RECENT", 4)
    counted = Statistics()
    for batch in range(1, 101):
        for _ in range(2):
            counted.succeeded(BATCHED, 1, ran(2, batch), 1)
    assert (shown(counted)["execution_count"], len(counted._recent)) == (100, 4)
