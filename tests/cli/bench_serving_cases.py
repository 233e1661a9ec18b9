"""A small run of `offpath bench serving` against the gateway and, where it is, Triton."""

from __future__ import annotations

import contextlib
import socket

import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.measure import Cores, OtherWork
from offpath.cli.bench.serving import attack, benchmark, neighbours
from offpath.cli.bench.serving.benchmark import _lean, _Servers
from offpath.cli.local.environments import fetched


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
        assert statuses == [401, 413, 413, 400, 400, 500, 500, 431, 400]
        with attack.under_attack(node.http_port, node.attackers_token, None):
            servers.clients[1].block(servers.data, 20)
        with attack.idle_work():
            servers.clients[1].block(servers.data, 20)
        for kind in ("idle streams", "JSON parameters"):
            row = neighbours.measured(node, kind, 1, 5, OtherWork())
            assert (row["kind"], row["refused"]) == (kind, 0)
            assert row["http_ratio"]["blocks"] == row["grpc_ratio"]["blocks"] == 1
        with attack.sink() as port:
            assert {status(port, each) for each in attack.requests("any")} == {400}


def status(port: int, request: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(request)
        return int(sock.recv(64).split(b" ")[1])
