"""`offpath bench serving`: its ratios and bars, and one small run against the gateway and, where it is, Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpath.cli.bench.measure import Block
from offpath.cli.bench.serving import hostile, neighbours
from offpath.cli.bench.serving.benchmark import analyzer_ratios, bars, ratios
from offpath.host_helper.gateway import inference
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.grpc_requests import Long, check_tensors, received

from ..support.own_process import run_tests


def blocks(*p50s_us: int) -> list[Block]:
    return [Block([each * 1000], 1, 0) for each in p50s_us]


def lean(**more: list[Block]) -> dict[str, Any]:
    placed = {"native": blocks(100, 300), "gateway_http": blocks(200, 400), "gateway_grpc": blocks(400, 400),
              "triton_http": blocks(200, 200), "triton_grpc": blocks(300, 300), **more}  # fmt: skip
    return {"pinned": placed, "unpinned": {**placed, "triton_http": blocks(100, 100)}}


def test_ratios_are_over_tritons_best_protocol_and_placement_block_by_block() -> None:
    found = ratios(lean(triton_python=blocks(400, 400)))
    assert found["native_over_triton_pinned"] == {"median": 2.0, "min": 1.0, "max": 3.0, "blocks": 2}
    assert found["gateway_http_over_python_pinned"]["median"] == 0.75
    assert "native_over_python_pinned" not in ratios(lean())
    without = {place: {"native": blocks(1), "gateway_http": blocks(1)} for place in ("pinned", "unpinned")}
    assert ratios(without) == {}


def test_the_bars_are_the_issues() -> None:
    def row(server: str, concurrency: int, p50: float) -> dict[str, Any]:
        return {"server": server, "transport": "region", "concurrency": concurrency, "p50s_us": [p50]}

    rows = [row(server, each, p50) for server, p50 in (("gateway", 90), ("triton_python", 100)) for each in (1, 8)]
    found = bars(ratios(lean()) | analyzer_ratios(rows))
    assert [(bar.value, bar.bound, bar.is_accepted) for bar in found] == [
        (2.0, 0.7, False), (3.0, 1.3, False), (0.9, 1.0, True), (0.9, 1.0, True),
    ]  # fmt: skip
    assert bars({}) == []


def test_every_setting_answers_with_its_input() -> None:
    """In a process of its own: gRPC's threads stay in a process."""
    assert run_tests(Path(__file__).with_name("bench_serving_cases.py")) == 1


def test_neighbours_has_a_bar_for_each_client_and_protocol_and_none_for_refusals_but_0() -> None:
    rows = [
        {"kind": "x", "cpu": 0.5, "refused": 2, "http_ratio": {"median": 1.4, "min": 1, "max": 2},
         "grpc_ratio": {"median": 1.6, "min": 1, "max": 2},
         **{f"{what}_{how}_p99_us": 100.0 for what in ("beside", "floor") for how in ("http", "grpc")}},
    ]  # fmt: skip
    assert [(bar.value, bar.bound, bar.is_accepted) for bar in neighbours.bars(rows)] == [
        (1.4, 1.5, True), (1.6, 1.5, False), (2, 0, False),
    ]  # fmt: skip
    assert "http:     100.0 /     100.0  (1.40, 1.00 … 2.00)" in neighbours.text(rows)


def test_the_hostile_messages_are_as_long_as_may_be_and_what_they_say() -> None:
    """The gateway reads each, and refuses it for its parts."""
    with pytest.raises(Refused, match="more than 80 inputs"):
        received(hostile.inputs())
    got = received(hostile.tensor_parameters())
    assert isinstance(got, Long)
    with pytest.raises(Refused, match="a tensor of the request has more than"):
        check_tensors(got.data)
    assert all(3_900_000 < len(body) <= 4 << 20 for body in (hostile.inputs(), got.data))
    body = hostile.json_parameters("t").partition(b"\r\n\r\n")[2]
    assert 3_900_000 < len(body) <= 4 << 20
    with pytest.raises(Refused, match="'x' is no text, number or boolean"):
        inference.read(body, 0)
