"""`neighbours`: what one client of the gateway costs another tenant, for each way to hold or to send all that it can.

A tenant sends small requests over HTTP and over gRPC, in turn, each block also over new connections. Another client
meanwhile (`hostile`): calls and streams that never send their message, messages of millions of parts, heads that are
begun and not ended, connections that send nothing. Its own work needs cores too. So the floor is the tenant's p99
beside a process that computes as much, and does nothing to the gateway; blocks of both alternate. A request that is not
answered with its result is a refusal.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import orjson

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.measure import Block, Cores, OtherWork, burning, cpu_ns, machine, ratio
from offpath.cli.bench.request_path.triton_server import HttpClient, request
from offpath.cli.bench.serving.hostile import KINDS
from offpath.cli.bench.serving.node import Node
from offpath.cli.local.child import start
from offpath.host_helper.gateway.messages import SERVICE, classes

DESCRIPTION: Final = "what one client of the gateway costs another tenant"
NBYTES: Final = 1 << 20
P99_OVER_FLOOR: Final = 1.5
_PAUSE_S: Final = 0.002
_BOUND_S: Final = 30.0
_DATA: Final = bytes(range(64))


def run(arguments: argparse.Namespace) -> Report:
    """``--quick``: fewer and shorter blocks. ``--only``: one kind of client. Raises: OffpathError: a process does not
    start."""
    begun_s = time.monotonic()
    rounds, count = (3, 300) if arguments.quick else (8, 800)
    other = OtherWork()
    kinds = [kind for kind in KINDS if not arguments.only or kind in arguments.only]
    node = Node(Cores(None, None), NBYTES)
    try:
        rows = [measured(node, kind, rounds, count, other) for kind in kinds]
    finally:
        node.close()
    data = {
        "benchmark": "neighbours", "quick": arguments.quick, "machine": machine(), "rows": rows,
        "other_cpu": other.cores(), "seconds": round(time.monotonic() - begun_s, 1),
    }  # fmt: skip
    return Report(data, text(rows), bars(rows))


def measured(node: Node, kind: str, rounds: int, count: int, other: OtherWork) -> dict[str, Any]:
    """The figures of one kind of client."""
    print(f"{kind} …", file=sys.stderr)
    tenant = _Tenant(node)
    p99: dict[str, list[float]] = {f"{what}_{how}": [] for what in ("beside", "floor") for how in ("http", "grpc")}
    shares = []
    for _ in range(rounds):
        with hostile(node, kind) as pid:
            begun_ns, before_ns = time.perf_counter_ns(), cpu_ns([pid])
            _add(p99, "beside", tenant.blocks(count, other))
            share = (cpu_ns([pid]) - before_ns) / (time.perf_counter_ns() - begun_ns)
        refused = tenant.refused
        shares.append(share)
        with burning(share):
            _add(p99, "floor", tenant.blocks(count, other))
        if tenant.refused > refused:
            raise OffpathError("the gateway refuses requests beside nothing but other computing")
    return {
        "kind": kind, "refused": tenant.refused, "cpu": round(statistics.median(shares), 2),
        **{f"{name}_p99_us": round(statistics.median(each), 1) for name, each in p99.items()},
        **{f"{how}_ratio": ratio(p99[f"beside_{how}"], p99[f"floor_{how}"]) for how in ("http", "grpc")},
    }  # fmt: skip


def _add(p99: dict[str, list[float]], what: str, blocks: dict[str, Block]) -> None:
    for how, block in blocks.items():
        p99[f"{what}_{how}"].append(block.p99)


@contextlib.contextmanager
def hostile(node: Node, kind: str) -> Iterator[int]:
    """The pid of such a client, once it has begun. Raises: OffpathError: it does not."""
    arguments = (kind, str(node.http_port), node.grpc_address, node.attackers_token)
    process = start("bench.serving.hostile", *arguments, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise OffpathError(f"{kind}: it does not begin")
        yield process.pid
    finally:
        process.kill()
        process.wait(_BOUND_S)
        if process.stdout is not None:
            process.stdout.close()


class _Tenant:
    """The other tenant, with connections of its own for each block."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.refused = 0
        tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [len(_DATA)]}
        body = orjson.dumps({"inputs": [tensor | {"data": list(_DATA)}]})
        self._http = request("POST", "/v2/models/identity/infer", body, node.token)
        message = classes().ModelInferRequest(model_name="identity", raw_input_contents=[_DATA])
        message.inputs.add(**tensor)
        self._grpc = message.SerializeToString()

    def blocks(self, count: int, other: OtherWork) -> dict[str, Block]:
        """A block over each protocol."""
        ways = {"http": self._over_http, "grpc": self._over_grpc}
        return {how: other.measured(partial(self._block, connect, count)) for how, connect in ways.items()}

    def _block(self, connect: Callable[[], contextlib.AbstractContextManager[Callable[[], bool]]], count: int) -> Block:
        latencies = []
        begun_ns, own_ns = time.perf_counter_ns(), time.process_time_ns()
        with connect() as ask:
            for _ in range(count):
                started_ns = time.perf_counter_ns()
                self.refused += not ask()
                latencies.append(time.perf_counter_ns() - started_ns)
                time.sleep(_PAUSE_S)
        wall_ns = time.perf_counter_ns() - begun_ns
        return Block(latencies, wall_ns, 0, cpu_ns={"requester": time.process_time_ns() - own_ns})

    @contextlib.contextmanager
    def _over_http(self) -> Iterator[Callable[[], bool]]:
        clients: list[HttpClient] = []

        def ask() -> bool:
            """On a new connection after a fault."""
            try:
                if not clients:
                    clients.append(HttpClient(self._node.http_port))
                _, answer = clients[0].exchange(self._http)
            except (OSError, OffpathError):
                if clients:
                    clients.pop().close()
                return False
            return bool(orjson.loads(answer)["outputs"][0]["data"] == list(_DATA))

        yield ask
        for client in clients:
            client.close()

    @contextlib.contextmanager
    def _over_grpc(self) -> Iterator[Callable[[], bool]]:
        import grpc

        options = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.insecure_channel(self._node.grpc_address, options=options) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            metadata = (("authorization", f"Bearer {self._node.token}"),)

            def ask() -> bool:
                try:
                    answer = call(self._grpc, metadata=metadata, timeout=_BOUND_S)
                except grpc.RpcError:
                    return False
                response = classes().ModelInferResponse.FromString(answer)
                return bool(response.raw_output_contents[0] == _DATA)

            yield ask


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """One for each kind and protocol, and that nothing was refused."""
    found = [
        Bar(f"{row['kind']}: p99 of a tenant over {how} over the floor", row[f"{how}_ratio"]["median"], P99_OVER_FLOOR)
        for row in rows
        for how in ("http", "grpc")
    ]
    return [*found, Bar("requests of the tenant that were refused", sum(row["refused"] for row in rows), 0)]


def text(rows: list[dict[str, Any]]) -> str:
    """For people."""
    lines = ["p99 of a tenant, µs, beside such a client / beside as much computing (ratios of blocks: median, range)"]
    for row in rows:
        lines.append(f"  {row['kind']:18} uses {row['cpu']:.2f} cores, {row['refused']} refused")
        for how in ("http", "grpc"):
            each = row[f"{how}_ratio"]
            lines.append(
                f"    {how}: {row[f'beside_{how}_p99_us']:9.1f} / {row[f'floor_{how}_p99_us']:9.1f}  "
                f"({each['median']:.2f}, {each['min']:.2f} … {each['max']:.2f})"
            )
    return "\n".join(lines)
