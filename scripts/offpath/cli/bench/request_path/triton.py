"""The part `triton`: offpath beside a real Triton Inference Server at 600 KB, one request in flight, pinned.

triton        identity: the client writes 600 KB into a shared region, the server copies them to another, the client
              reads them. The server has the DPU's core, as offpath's daemon does; the client has the host's
triton_free   the same with the server's threads on every core
triton_first  as triton, but the output is one byte, as that of setting 4's kernel is; triton_first_free likewise
4             offpath as in the other parts: 600 KB in, one byte out
4_identity    offpath with 600 KB out too

A ratio is taken over the faster of Triton's two placements.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.measure import Block, Cores, CpuMeter, OtherWork, pin, ratio
from offpath.cli.bench.request_path import rows
from offpath.cli.bench.request_path.backend import SMALL, Backend, Payload
from offpath.cli.bench.request_path.measuring import Blocks, measure
from offpath.cli.bench.request_path.plan import Part, Point
from offpath.cli.bench.request_path.product import Identity, Offpath, Options
from offpath.cli.bench.request_path.triton_server import OUTPUTS, HttpClient, Region, TritonServer, infer_request

PART: Final = "triton"
_PLACES: Final = {"OUTPUT0": ("triton", "triton_free"), "FIRST": ("triton_first", "triton_first_free")}
_RATIOS: Final = {
    "p50_over_triton_600k": ("4", "OUTPUT0"),
    "p50_over_triton_first_600k": ("4", "FIRST"),
    "identity_over_triton_600k": ("4_identity", "OUTPUT0"),
}
_SETTINGS: Final = ("triton", "triton_free", "4", "triton_first", "triton_first_free", "4_identity")


class Triton:
    """One way to use the server; implements `Backend`."""

    def __init__(self, name: str, server: TritonServer, regions: tuple[Region, Region], output: str, core: int | None):
        self.name = name
        self._server = server
        self._in, self._out = regions
        self._output = output
        self._core = core
        self._client = HttpClient(server.port)

    def realtime_pids(self) -> list[int]:
        """None."""
        return []

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """See `Backend.block`; one in flight, no kernel. Raises: OffpathError: the output is not the input."""
        self._server.run_on(self._core)
        nbytes = payload.nbytes
        message = infer_request(self._output, nbytes)
        result = nbytes if self._output == "OUTPUT0" else 1
        source, into, out, exchange = payload.data, self._in.view, self._out.view, self._client.exchange
        latencies = []
        meter = CpuMeter({"daemon": [self._server.pid]})
        begin = time.perf_counter_ns()
        for _ in range(count):
            started = time.perf_counter_ns()
            into[:nbytes] = source
            exchange(message)
            taken = bytes(out[:result])
            latencies.append(time.perf_counter_ns() - started)
        wall = time.perf_counter_ns() - begin
        spent = meter.spent()
        if taken != bytes(source[:result]):
            raise OffpathError("Triton's output is not its input")
        return Block(latencies, wall, 0, cpu_ns=spent)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


def run(
    where: Cores, *, blocks: int, spin_us: int, other: OtherWork
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:  # fmt: skip
    """Rows and ratios. Raises: NotBuilt: no Triton server or no compiler. OffpathError: a setting does not start."""
    pin(where.host)
    server = TritonServer(where.dpu)
    measured: Blocks = {}
    backends: dict[str, Backend] = {}
    regions: list[Region] = []
    try:
        control = HttpClient(server.port)
        for name in ("in", "out"):
            regions.append(Region(control, name, SMALL))
        control.close()
        for output in OUTPUTS:
            for name, core in zip(_PLACES[output], (where.dpu, None), strict=True):
                backends[name] = Triton(name, server, (regions[0], regions[1]), output, core)
        offpath = Offpath("4", where, daemon_on_host=False, options=Options(spin_us))
        backends |= {"4": offpath, "4_identity": Identity("4_identity", offpath)}
        measure(where, [Part(PART, (Point(SMALL, blocks=blocks),), _SETTINGS)], backends, measured, other)
    finally:
        for backend in backends.values():
            backend.close()
        for region in regions:
            region.close()
        server.close()
    return [rows.row(name, point, each) for (name, point), each in measured.items()], ratios(measured)


def ratios(measured: Blocks) -> dict[str, dict[str, float]]:
    """Of neighbouring blocks, over the placement whose median p50 is lower."""
    p50 = {name: [block.p50 for block in blocks] for (name, _), blocks in measured.items()}
    faster = {output: min(names, key=lambda name: statistics.median(p50[name])) for output, names in _PLACES.items()}
    return {key: ratio(p50[ours], p50[faster[output]]) for key, (ours, output) in _RATIOS.items()}
