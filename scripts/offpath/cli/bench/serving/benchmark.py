"""`serving`: the same model, `identity` of 600 KB, behind offpath and behind a real Triton server of release 2.51.

Three measurements, blocks of all settings alternating:

lean      clients of one connection that write their input and read their output for each request, pinned (client and
          what runs on a host on one core, the daemon or Triton's server on the other) and not:
          native, gateway_http, gateway_grpc, triton_http, triton_grpc (C++ identity backend), triton_python
analyzer  perf_analyzer with the same arguments against gateway, C++ identity and python backend, at 1, 8 and 64
          requests in flight, not pinned; it writes an input once and reads no output

attack    the gateway's p99 for a tenant while others attack it (`attack`), over its p99 without; and while the same
          attack goes to a process that only reads and refuses (the floor: what the attackers' own work costs); and
          while a process of idle priority computes half of the time

All but native and "bytes" use system shared memory. Triton's p50 is that of its faster placement. `bench batching` has
the figures of dynamic batching.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.measure import Block, Cores, OtherWork, cores, machine, pin, ratio
from offpath.cli.bench.request_path.triton_server import PYTHON, PYTHON_MODELS, HttpClient, Region, TritonServer
from offpath.cli.bench.serving.attack import idle_work, sink, under_attack
from offpath.cli.bench.serving.clients import Client, Native, OverGrpc, OverHttp, analyzed, analyzer
from offpath.cli.bench.serving.node import Node

DESCRIPTION: Final = "a model behind offpath's client and gateway, and behind a real Triton server"
NBYTES: Final = 614_400
CONCURRENCY: Final = (1, 8, 64)
NATIVE_OVER_TRITON: Final = 0.7
GATEWAY_OVER_TRITON: Final = 1.3
UNDER_ATTACK: Final = 1.2
_TRITONS: Final = ("triton_http", "triton_grpc")
Blocks = dict[str, list[Block]]


def run(arguments: argparse.Namespace) -> Report:
    """``--quick``: fewer and shorter blocks. Raises: OffpathError: a server does not start."""
    begun = time.monotonic()
    data: dict[str, Any] = {"benchmark": "serving", "quick": arguments.quick, "machine": machine(), "left_out": {}}
    rounds, count = (8, 60) if arguments.quick else (20, 200)
    other = OtherWork()
    lean: dict[str, Blocks] = {}
    for name, where in (("pinned", cores(pinned=True)), ("unpinned", Cores(None, None))):
        print(f"starting the servers ({name}) …", file=sys.stderr)
        with _Servers(where) as servers:
            data["left_out"] |= servers.left_out
            lean[name] = _lean(servers, rounds, count, other)
            if name == "unpinned":
                # First: perf_analyzer has the server forget all regions.
                data["attack"] = _attacked(servers, 10 if arguments.quick else 30, 300, other)
                data["analyzer"] = _analyzer(
                    servers, 2 if arguments.quick else 5, 2_000 if arguments.quick else 10_000, data
                )
    data["lean"] = [_row(name, setting, blocks) for name, each in lean.items() for setting, blocks in each.items()]
    attack = data["attack"]
    data["ratios"] = ratios(lean) | analyzer_ratios(data["analyzer"]) | {
        "p99_under_attack": attack["ratio"], "p99_beside_attack_on_sink": attack["floor_ratio"],
        "p99_under_attack_over_sink": attack["over_floor"], "p99_beside_idle_work": attack["idle_work_ratio"],
    }  # fmt: skip
    data["other_cpu"] = other.cores()
    data["seconds"] = round(time.monotonic() - begun, 1)
    return Report(data, text(data), bars(data["ratios"]))


class _Servers:
    """The node and the Triton server, with regions at both."""

    def __init__(self, where: Cores) -> None:
        self._where = where
        self.left_out: dict[str, str] = {}
        self._ends: list[Callable[[], None]] = []
        self.data = np.arange(NBYTES, dtype=np.uint64).astype(np.uint8)
        self.triton: TritonServer | None = None
        self.has_python = True

    def __enter__(self) -> _Servers:
        try:
            self.node = Node(self._where, NBYTES)
            self._ends.append(self.node.close)
            try:
                self._start_triton()
            except NotBuilt as reason:
                self.left_out["triton"] = str(reason)
            pin(self._where.host)
            self.clients = self._clients()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_triton(self) -> None:
        try:
            self.triton = TritonServer(self._where.dpu, python=PYTHON_MODELS, has_grpc=True)
        except NotBuilt as reason:
            self.left_out["triton_python"] = str(reason)
            self.has_python = False
            self.triton = TritonServer(self._where.dpu, has_grpc=True)
        self._ends.append(self.triton.close)

    def _clients(self) -> list[Client]:
        node, data = self.node, self.data
        http = HttpClient(node.http_port, node.token)
        ours = self._regions(http)
        http.close()
        clients: list[Client] = [
            Native("native", node.requester, data, node.pids),
            OverHttp("gateway_http", ours, data, node.pids, node.http_port, token=node.token),
            OverGrpc("gateway_grpc", ours, data, node.pids, node.grpc_address, node.token),
        ]
        if (triton := self.triton) is not None:
            http = HttpClient(triton.port)
            theirs = self._regions(http)
            http.close()

            def pids() -> dict[str, list[int]]:
                return {"triton": triton.pids()}

            clients += [
                OverHttp("triton_http", theirs, data, pids, triton.port),
                OverGrpc("triton_grpc", theirs, data, pids, f"127.0.0.1:{triton.grpc_port}"),
            ]
            if self.has_python:
                clients.append(OverHttp("triton_python", theirs, data, pids, triton.port, PYTHON))
        self._ends += [client.close for client in clients]
        return clients

    def _regions(self, client: HttpClient) -> tuple[Region, Region]:
        made = []
        for name in ("in", "out"):
            made.append(region := Region(client, name, NBYTES))
            region.close()  # the servers have it open
        return made[0], made[1]

    def __exit__(self, *_: object) -> None:
        for each in reversed(self._ends):
            each()
        pin(None)


def _lean(servers: _Servers, rounds: int, count: int, other: OtherWork) -> Blocks:
    measured: Blocks = defaultdict(list)
    for client in servers.clients:
        client.block(servers.data, 20)  # warm
    for _ in range(rounds):
        for client in servers.clients:
            measured[client.name].append(other.measured(partial(client.block, servers.data, count)))
    return dict(measured)


def _attacked(servers: _Servers, rounds: int, count: int, other: OtherWork) -> dict[str, Any]:
    """p99 of the tenant's requests over HTTP: alone, under attack, beside an attack on a sink, and beside idle work;
    block by block."""
    client = next(each for each in servers.clients if each.name == "gateway_http")
    node = servers.node
    p99: dict[str, list[float]] = {"alone": [], "idle_work": [], "floor": [], "attacked": []}
    with sink() as sink_port:
        for _ in range(rounds):
            p99["alone"].append(other.measured(partial(client.block, servers.data, count)).p99)
            with idle_work():
                p99["idle_work"].append(other.measured(partial(client.block, servers.data, count)).p99)
            for name, port in (("floor", sink_port), ("attacked", node.http_port)):
                with under_attack(port, node.attackers_token, None):
                    time.sleep(0.5)
                    p99[name].append(other.measured(partial(client.block, servers.data, count)).p99)
    return {
        **{f"{name}_p99_us": round(statistics.median(each), 1) for name, each in p99.items()},
        "ratio": ratio(p99["attacked"], p99["alone"]),
        "floor_ratio": ratio(p99["floor"], p99["alone"]),
        "over_floor": ratio(p99["attacked"], p99["floor"]),
        "idle_work_ratio": ratio(p99["idle_work"], p99["alone"]),
    }


def _analyzer(servers: _Servers, rounds: int, count: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows by server, transport and concurrency; medians over rounds."""
    try:
        program = analyzer()
    except EngineMissing as reason:
        data["left_out"]["analyzer"] = str(reason)
        return []
    node, triton = servers.node, servers.triton
    targets: dict[str, dict[str, Any]] = {
        "gateway": {"address": f"127.0.0.1:{node.http_port}", "token": node.token, "pids": node.pids()}
    }
    if triton is not None:
        theirs = {"address": f"127.0.0.1:{triton.port}", "pids": {"triton": triton.pids()}}
        targets["triton"] = theirs
        if servers.has_python:
            targets["triton_python"] = theirs | {"model": PYTHON}
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for turn in range(rounds):
        for concurrency in CONCURRENCY:
            for transport in ("region", "bytes") if concurrency < 64 else ("region",):
                print(f"perf_analyzer, {transport}, {concurrency} in flight, {turn + 1} of {rounds} …", file=sys.stderr)
                requests = count if transport == "region" else count // 4
                for name, words in targets.items():
                    given = {key: value for key, value in words.items() if key not in ("address", "pids")}
                    found[name, transport, concurrency].append(analyzed(
                        program, words["address"], NBYTES, requests, concurrency, words["pids"],
                        by_region=transport == "region", **given,
                    ))  # fmt: skip
    return [
        {
            "server": name, "transport": transport, "concurrency": concurrency,
            **{key: statistics.median(one[key] for one in each) for key in ("p50_us", "p99_us", "per_s")},
            "p50s_us": [one["p50_us"] for one in each], "cpu_us": each[-1]["cpu_us"],
        }
        for (name, transport, concurrency), each in found.items()
    ]  # fmt: skip


def ratios(lean: dict[str, Blocks]) -> dict[str, dict[str, float]]:
    """p50 over Triton's: over the faster of its protocols and placements, block by block."""
    p50 = {
        (place, name): [block.p50 for block in blocks] for place, each in lean.items() for name, blocks in each.items()
    }
    tritons = [key for key in p50 if key[1] in _TRITONS]
    if not tritons:
        return {}
    best = min(tritons, key=lambda key: statistics.median(p50[key]))
    found = {}
    for place in lean:
        for name in ("native", "gateway_http", "gateway_grpc"):
            found[f"{name}_over_triton_{place}"] = ratio(p50[place, name], p50[best])
            if (place, "triton_python") in p50:
                found[f"{name}_over_python_{place}"] = ratio(p50[place, name], p50[place, "triton_python"])
    return found


def analyzer_ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The gateway's p50 over those of Triton's backends, round by round, with shared memory."""
    p50 = {(row["server"], row["concurrency"]): row["p50s_us"] for row in rows if row["transport"] == "region"}
    return {
        f"analyzer_over_{server}_{concurrency}": ratio(p50["gateway", concurrency], p50[server, concurrency])
        for server in ("triton", "triton_python")
        for concurrency in CONCURRENCY
        if (server, concurrency) in p50
    }


def bars(found: dict[str, dict[str, float]]) -> list[Bar]:
    """Those of a run with Triton, of the better placement of the client."""

    def least(name: str) -> float | None:
        values = [each["median"] for key, each in found.items() if key.startswith(name)]
        return min(values, default=None)

    wanted = [
        ("native p50 over Triton's best", least("native_over_triton_"), NATIVE_OVER_TRITON),
        ("gateway p50 with shared memory over Triton's best", least("gateway_http_over_triton_"), GATEWAY_OVER_TRITON),
    ]
    wanted += [
        (f"gateway p50 over the python backend's, {each} in flight", least(f"analyzer_over_triton_python_{each}"), 1.0)
        for each in (1, 8)
    ]
    wanted.append(
        (
            "p99 of a tenant while another attacks, over alone",
            found.get("p99_under_attack", {}).get("median"),
            UNDER_ATTACK,
        )
    )
    return [Bar(name, value, bound) for name, value, bound in wanted if value is not None]


def _row(place: str, setting: str, blocks: list[Block]) -> dict[str, Any]:
    roles = blocks[0].cpu_ns
    return {
        "place": place, "setting": setting, "p50_us": round(statistics.median(block.p50 for block in blocks), 1),
        "p99_us": round(statistics.median(block.p99 for block in blocks), 1),
        "cpu_us": {role: round(statistics.median(block.cpu_us(role) for block in blocks)) for role in roles},
    }  # fmt: skip


def text(data: dict[str, Any]) -> str:
    """For people."""
    lines = [f"identity of {NBYTES} bytes; µs; CPU per request by process"]
    for row in data["lean"]:
        cpu = ", ".join(f"{role} {each}" for role, each in row["cpu_us"].items())
        lines.append(
            f"  {row['place']:9} {row['setting']:14} p50 {row['p50_us']:7.1f}  p99 {row['p99_us']:8.1f}  ({cpu})"
        )
    for row in data["analyzer"]:
        cpu = ", ".join(f"{role} {each}" for role, each in row["cpu_us"].items())
        lines.append(
            f"  {row['server']:14} {row['transport']:7} {row['concurrency']:3} in flight: p50 {row['p50_us']:8.0f}  "
            f"p99 {row['p99_us']:8.0f}  {row['per_s']:7.1f}/s  ({cpu})"
        )
    attack = data["attack"]
    lines.append(
        f"  p99 of a tenant over HTTP: alone {attack['alone_p99_us']}, under attack {attack['attacked_p99_us']}, "
        f"beside the same attack on a sink {attack['floor_p99_us']}, beside idle work {attack['idle_work_p99_us']}"
    )
    lines += [
        f"  {name}: {each['median']:.2f} ({each['min']:.2f} … {each['max']:.2f})"
        for name, each in data["ratios"].items()
    ]
    lines += [f"  left out: {part}: {why}" for part, why in data["left_out"].items()]
    return "\n".join(lines)
