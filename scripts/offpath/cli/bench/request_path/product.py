"""Settings 3 and 4, each a real daemon, helper and requester.

3      offpath with its daemon on the host core: scheduler and copy on the host, through shared memory
4      offpath
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from offpath.cli.bench.daemon_process import DaemonProcess
from offpath.cli.bench.kernels import register_kernel
from offpath.cli.bench.measure import Block, Cores, CpuMeter, children, end, fork
from offpath.cli.bench.request_path.backend import DEPTH, LARGEST, SMALL, Payload
from offpath.cli.local.child import COMMAND_LINE
from offpath.host_helper.helper import Helper
from offpath.host_helper.kernels import LaneContext
from offpath.host_helper.pending import Pending
from offpath.host_helper.requester import Requester

LANES: Final = 4
_KERNEL_MS: Final = (0, 4)
_TENANT: Final = "bench"


@dataclass(frozen=True, slots=True)
class Options:
    """``spin_us``: the daemon's `datapath.spin_us`; 0 leaves the key out, which earlier builds do not have.
    ``module``: what runs `offpath daemon run`; ``environment``: for that process."""

    spin_us: int = 0
    module: str = COMMAND_LINE
    environment: Mapping[str, str] = field(default_factory=dict)

    def table(self) -> str:
        """The configuration's ``[datapath]``."""
        return f"[datapath]\nspin_us = {self.spin_us}\n" if self.spin_us else ""


class Offpath:
    """One lease of a whole emulated GPU."""

    def __init__(self, name: str, cores: Cores, *, daemon_on_host: bool, options: Options | None = None) -> None:
        """Raises: OffpathError: daemon or helper do not start."""
        self.name = name
        options = options or Options()
        tables = (
            f'[[lease]]\ntenant = "{_TENANT}"\nprofile = "7g.40gb"\n'
            f"[leasing]\nlanes = {LANES}\nlanding_bytes = {LARGEST}\n{options.table()}"
        )
        self._daemon_on_host = daemon_on_host
        self._daemon = DaemonProcess(
            {_TENANT: ""}, tables, core=cores.host if daemon_on_host else cores.dpu,
            module=options.module, environment=options.environment,
        )  # fmt: skip
        channel = self._daemon.host_socket
        self._helper = fork(cores.host, lambda: _serve_kernels(channel))
        self._requesters: list[Requester] = []
        try:
            self._large = self.connect(1, LARGEST)
            self._small = self.connect(DEPTH, SMALL)
            self._large.submit("k0", [np.zeros(64, np.uint8)], timeout=30.0)
        except BaseException:
            self.close()
            raise

    def connect(self, slots: int, payload_bytes: int, result_bytes: int = 4096) -> Requester:
        """A session that ends with the setting. Raises: OffpathError."""
        requester = self._daemon.connect(_TENANT, slots, payload_bytes, result_bytes)
        self._requesters.append(requester)
        requester.kernel_id("k0")
        return requester

    def cpu_pids(self) -> dict[str, list[int]]:
        """The processes by role."""
        return {"daemon": [self._daemon.pid], "worker": children(self._helper), "helper": [self._helper]}

    def realtime_pids(self) -> list[int]:
        """Helper and workers."""
        return [self._helper, *children(self._helper)]

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """See `Backend.block`."""
        requester = self._small if payload.nbytes <= SMALL else self._large
        return self.run(requester, f"k{kernel_ms}", payload, count, in_flight)

    def run(self, requester: Requester, kernel: str, payload: Payload, count: int, in_flight: int) -> Block:
        """A block of any kernel over any session."""
        latencies: list[int] = []
        stages: list[tuple[int, ...]] = []
        arrays = [payload]
        flying: deque[tuple[int, Pending]] = deque()
        meter = CpuMeter(self.cpu_pids())
        begin = time.perf_counter_ns()
        for _ in range(count):
            if len(flying) == in_flight:
                _take(flying, latencies, stages)
            started = time.perf_counter_ns()
            flying.append((started, requester.begin(kernel, arrays)))
        while flying:
            _take(flying, latencies, stages)
        wall = time.perf_counter_ns() - begin
        spent = meter.spent()
        host = spent["worker"] + spent["helper"] + (spent["daemon"] if self._daemon_on_host else 0)
        return Block(latencies, wall, host, stages, spent)

    def close(self) -> None:
        """End requesters, helper and daemon."""
        for requester in self._requesters:
            requester.close()
        end(self._helper, signal.SIGTERM)
        self._daemon.close()


class Identity:
    """A running setting with another kernel, which returns its payload; implements `Backend`."""

    def __init__(self, name: str, product: Offpath) -> None:
        """Raises: OffpathError."""
        self.name = name
        self._product = product
        self._requester = product.connect(1, SMALL, SMALL)

    def realtime_pids(self) -> list[int]:
        """As the setting's."""
        return self._product.realtime_pids()

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """See `Backend.block`; without a kernel's time."""
        return self._product.run(self._requester, "identity", payload, count, in_flight)

    def close(self) -> None:
        """Nothing: the setting owns the session."""


def _take(flying: deque[tuple[int, Pending]], latencies: list[int], stages: list[tuple[int, ...]]) -> None:
    started, pending = flying.popleft()
    result = pending.result()
    latencies.append(time.perf_counter_ns() - started)
    s = result.stages
    stages.append((s.queued, s.copy, s.launch, s.kernel, s.back, s.total))


def _serve_kernels(channel: str) -> None:
    helper = Helper()

    @helper.lane_opened
    def touch(lane: LaneContext) -> None:
        """Fault in the lane's pages before the measurement."""
        lane.memory.write(0, bytes(lane.memory.landing_bytes))

    @helper.kernel("identity", demand=14)
    def identity(view: Payload) -> Payload:
        return view

    for kernel_ms in _KERNEL_MS:
        register_kernel(helper, kernel_ms)
    helper.run(channel, emulate=["A100-40GB"])
