"""`batching`: throughput and latency of one kernel with batches and without, 64 requests in flight.

The kernel takes 1 ms and 0.05 ms for each row, and a whole GPU, so that its launches follow each other. One helper
serves both forms of it; blocks alternate between them. One process drives all sessions by one epoll.
"""

from __future__ import annotations

import argparse
import select
import signal
import statistics
import time
from collections import Counter, deque
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.daemon_process import DaemonProcess
from offpath.cli.bench.measure import Cores, cores, end, fork, machine, pin, ratio
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.helper import Helper
from offpath.host_helper.pending import Pending
from offpath.host_helper.requester import Requester

DESCRIPTION: Final = "one kernel with batches and without: throughput and latency at 64 in flight"
SESSIONS, SLOTS = 4, 16
ROW_BYTES: Final = 1024
LAUNCH_S, ROW_S = 1e-3, 0.05e-3
MAX_BATCH, DELAY_US = 64, 2_000
LEAST_RATIO, MOST_SPREAD = 8.0, 3.0
_TENANT: Final = "bench"
_BOUND_S: Final = 30.0
_ALONE, _BATCHED = "alone", "batched"


class BatchBlock(NamedTuple):
    """One run of requests: latencies, wall time, and the rows of their launches as the kernel reported them."""

    latencies_ns: list[int]
    wall_ns: int
    rows: Counter[int]

    @property
    def per_second(self) -> float:
        """Requests per second."""
        return len(self.latencies_ns) / self.wall_ns * 1e9


class Bench:
    """A daemon, a helper with both kernels, and sessions with 64 slots in all."""

    def __init__(self, where: Cores) -> None:
        """Raises: OffpathError: daemon, helper or sessions do not start."""
        tables = (
            f'[[lease]]\ntenant = "{_TENANT}"\nprofile = "7g.40gb"\n'
            "[leasing]\nlanes = 2\nlanding_bytes = 262144\nresult_bytes = 65536\n"
        )
        self._daemon = DaemonProcess({_TENANT: ""}, tables, core=where.dpu)
        channel = self._daemon.host_socket
        self._helper = fork(where.host, lambda: _serve(channel))
        self._sessions: list[Requester] = []
        try:
            for _ in range(SESSIONS):
                self._sessions.append(self._daemon.connect(_TENANT, SLOTS, ROW_BYTES))
            self._sessions[0].submit(_ALONE, [np.zeros((1, ROW_BYTES), np.uint8)], timeout=_BOUND_S)
        except BaseException:
            self.close()
            raise

    def block(self, kernel: str, count: int) -> BatchBlock:
        """``count`` requests of one row; each session keeps all its slots in use. Raises: OffpathError."""
        arrays = [np.zeros((1, ROW_BYTES), np.uint8)]
        flying: dict[int, deque[tuple[int, Pending]]] = {}
        by_fd = {session.fileno(): session for session in self._sessions}
        found = BatchBlock([], 0, Counter())
        with select.epoll() as poller:
            begin = time.perf_counter_ns()
            for fd, session in by_fd.items():
                poller.register(fd, select.EPOLLIN)
                flying[fd] = deque((time.perf_counter_ns(), session.begin(kernel, arrays)) for _ in range(SLOTS))
            sent = SESSIONS * SLOTS
            while len(found.latencies_ns) < sent:
                ready = poller.poll(_BOUND_S)
                if not ready:
                    raise OffpathError(f"no answer within {_BOUND_S:g} s")
                for fd, _ in ready:
                    answered = _take(by_fd[fd], flying[fd], found)
                    for _ in range(min(answered, max(0, count - sent))):
                        sent += 1
                        flying[fd].append((time.perf_counter_ns(), by_fd[fd].begin(kernel, arrays)))
            return found._replace(wall_ns=time.perf_counter_ns() - begin)

    def close(self) -> None:
        """End sessions, helper and daemon."""
        for session in self._sessions:
            session.close()
        end(self._helper, signal.SIGTERM)
        self._daemon.close()


def _take(session: Requester, flying: deque[tuple[int, Pending]], found: BatchBlock) -> int:
    """Read the answers that have arrived; returns their number. Raises: RequestFailed."""
    session.poll(0)
    now = time.perf_counter_ns()
    left = [each for each in flying if not each[1].done]
    for started, pending in flying:
        if pending.done:
            if isinstance(pending.outcome, RequestFailed):
                raise pending.outcome
            found.latencies_ns.append(now - started)
            found.rows[int(pending.result(0).arrays[0][0])] += 1
    answered = len(flying) - len(left)
    flying.clear()
    flying.extend(left)
    return answered


def _serve(channel: str) -> None:
    helper = Helper()

    def compute(rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """Takes the GPU's time, during which the host idles; each row gets the number of rows of its launch."""
        time.sleep(LAUNCH_S + ROW_S * len(rows))
        return np.full(len(rows), len(rows), np.uint16)

    helper.kernel(_ALONE, demand=100)(compute)
    helper.kernel(_BATCHED, demand=100, max_batch=MAX_BATCH, max_queue_delay_us=DELAY_US)(compute)
    helper.run(channel, emulate=["A100-40GB"])


def run(arguments: argparse.Namespace) -> Report:
    """Measure both kernels in alternating blocks. Raises: OffpathError."""
    started = time.monotonic()
    here, where = machine(), cores(pinned=True)
    pin(where.host)
    blocks, count = (4, 1_000) if arguments.quick else (10, 4_000)
    measured: dict[str, list[BatchBlock]] = {_ALONE: [], _BATCHED: []}
    bench = Bench(where)
    try:
        for kernel in measured:
            bench.block(kernel, count // 4)
        for number in range(blocks):
            for kernel in measured if number % 2 else reversed(measured):
                measured[kernel].append(bench.block(kernel, count))
    finally:
        bench.close()
    data = {
        "benchmark": "batching", "quick": arguments.quick, "machine": here, "is_pinned": where.is_pinned,
        "in_flight": SESSIONS * SLOTS, "requests_per_block": count, "blocks": blocks,
        **{kernel: _figures(each) for kernel, each in measured.items()},
        "throughput_over_alone": ratio(*[[one.per_second for one in measured[of]] for of in (_BATCHED, _ALONE)]),
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    spread = data[_BATCHED]["p99_ms"] / data[_BATCHED]["p50_ms"]
    bars = [
        Bar("throughput_over_alone", data["throughput_over_alone"]["median"], LEAST_RATIO, is_upper=False),
        Bar("batched p99 over p50", spread, MOST_SPREAD),
    ]
    return Report(data, _text(data), bars)


def _figures(blocks: list[BatchBlock]) -> dict[str, Any]:
    latencies = sorted(ns for block in blocks for ns in block.latencies_ns)
    rows = sum((block.rows for block in blocks), Counter[int]())
    launches = sum(count / size for size, count in rows.items())
    return {
        "requests_per_s": round(statistics.median(block.per_second for block in blocks)),
        "p50_ms": round(latencies[len(latencies) // 2] / 1e6, 2),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] / 1e6, 2),
        "rows_per_launch": round(len(latencies) / launches, 1),
    }


def _text(data: dict[str, Any]) -> str:
    lines = [
        f"kernel of {LAUNCH_S * 1e3:g} ms + {ROW_S * 1e3:g} ms for each row, {data['in_flight']} in flight, "
        f"{data['blocks']} blocks of {data['requests_per_block']} requests each, {data['seconds']} s",
        f"{'':>8}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'rows/launch':>13}",
    ]
    for kernel in (_ALONE, _BATCHED):
        row = data[kernel]
        lines.append(
            f"{kernel:>8}{row['requests_per_s']:>12}{row['p50_ms']:>9}{row['p99_ms']:>9}{row['rows_per_launch']:>13}"
        )
    over = data["throughput_over_alone"]
    lines.append(f"throughput_over_alone: {over['median']:.3f} [{over['min']:.3f}, {over['max']:.3f}]")
    return "\n".join([*lines, "", "bars"])
