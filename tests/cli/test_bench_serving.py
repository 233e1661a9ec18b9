"""`offpath bench serving`: its ratios and bars, and one small run against the gateway and, where it is, Triton."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.measure import Block, Cores, OtherWork
from offpath.cli.bench.serving import attack, benchmark
from offpath.cli.bench.serving.benchmark import _lean, _Servers, analyzer_ratios, bars, ratios
from offpath.cli.local.environments import fetched


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


@pytest.mark.slow
def test_every_setting_answers_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "NBYTES", 4096)
    with contextlib.suppress(EngineMissing):
        fetched("triton-env", "Triton cannot be installed", 240.0)
    with _Servers(Cores(None, None)) as servers:
        measured = _lean(servers, 1, 3, OtherWork())
        expected = {"native", "gateway_http", "gateway_grpc"}
        if servers.triton is not None:
            expected |= {"triton_http", "triton_grpc"} | ({"triton_python"} if servers.has_python else set())
        assert measured.keys() == expected
        assert all(len(each[0].latencies_ns) == 3 for each in measured.values())
        assert measured["gateway_http"][0].cpu_ns.keys() == {"gateway", "daemon", "worker", "requester"}
        node = servers.node
        statuses = [status(node.http_port, each) for each in attack.requests(node.attackers_token)]
        assert statuses == [401, 413, 413, 400, 400, 500, 431, 400]
        with attack.under_attack(node.http_port, node.attackers_token, None):
            servers.clients[1].block(servers.data, 20)


def status(port: int, request: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(request)
        return int(sock.recv(64).split(b" ")[1])
