"""Many sessions of several tenants, driven from this one process by one epoll over the sessions' descriptors."""

from __future__ import annotations

import resource
import select
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.daemon_process import DaemonProcess
from offpath.cli.bench.kernels import register_kernel
from offpath.cli.bench.measure import Cores, CpuMeter, children, end, fork
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.helper import Helper
from offpath.host_helper.pending import Pending
from offpath.host_helper.requester import Requester

PAYLOAD_BYTES: Final = 4096
LANES: Final = 4
MOST_IN_FLIGHT: Final = 16
"""Of one session."""
_BOUND_S: Final = 30.0
_LIMITS: Final = "max_sessions = 1024\nmax_jobs = 4096"


class CrowdBlock(NamedTuple):
    """One run of requests: latencies by tenant, wall time, and CPU time by role."""

    latencies_ns: dict[str, list[int]]
    wall_ns: int
    cpu_ns: dict[str, int]


class _Client:
    """One session with its requests in flight, oldest first."""

    __slots__ = ("flying", "requester", "tenant")

    def __init__(self, tenant: str, requester: Requester) -> None:
        self.tenant = tenant
        self.requester = requester
        self.flying: deque[tuple[int, Pending]] = deque()


class Crowd:
    """A daemon with a GPU for each tenant, and sessions that stay open while blocks use some of them."""

    def __init__(self, cores: Cores, sessions: Mapping[str, int], tables: str = "") -> None:
        """``sessions``: of each tenant. Raises: OffpathError: daemon, helper or sessions do not start."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # four descriptors for each session
        leases = "".join(
            f'[[lease]]\ntenant = "{name}"\ngpu = {number}\nprofile = "7g.40gb"\n'
            for number, name in enumerate(sessions)
        )
        leasing = f"[leasing]\nlanes = {LANES}\nlanding_bytes = 65536\nresult_bytes = 65536\n"
        self._daemon = DaemonProcess(dict.fromkeys(sessions, _LIMITS), leases + leasing + tables, core=cores.dpu)
        channel, gpus = self._daemon.host_socket, ["A100-40GB"] * len(sessions)
        self._helper = fork(cores.host, lambda: _serve(channel, gpus))
        self._clients: dict[str, list[_Client]] = {name: [] for name in sessions}
        try:
            for name, count in sessions.items():
                for _ in range(count):
                    requester = self._daemon.connect(name, MOST_IN_FLIGHT, PAYLOAD_BYTES)
                    self._clients[name].append(_Client(name, requester))
                self._clients[name][0].requester.submit("k0", [np.zeros(64, np.uint8)], timeout=_BOUND_S)
        except BaseException:
            self.close()
            raise

    def block(self, sessions: Mapping[str, int], in_flight: int, count: int) -> CrowdBlock:
        """``count`` requests over the first sessions of each tenant, each with ``in_flight``. A session submits again
        as soon as an answer is read. Raises: OffpathError: a request failed."""
        chosen = [client for name, number in sessions.items() for client in self._clients[name][:number]]
        by_fd = {client.requester.fileno(): client for client in chosen}
        poller = select.epoll()
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        latencies: dict[str, list[int]] = {name: [] for name in sessions}
        arrays = [np.zeros(PAYLOAD_BYTES, np.uint8)]
        pids = {"daemon": [self._daemon.pid], "worker": children(self._helper)}
        meter = CpuMeter(pids)
        begin = time.perf_counter_ns()
        for _ in range(in_flight):
            for client in chosen:
                client.flying.append((time.perf_counter_ns(), client.requester.begin("k0", arrays)))
        sent = in_flight * len(chosen)
        done = 0
        while done < sent:
            ready = poller.poll(_BOUND_S)
            if not ready:
                raise OffpathError(f"no answer within {_BOUND_S:g} s")
            for fd, _ in ready:
                client = by_fd[fd]
                answered = _take(client, latencies[client.tenant])
                done += answered
                for _ in range(min(answered, max(0, count - sent))):
                    sent += 1
                    client.flying.append((time.perf_counter_ns(), client.requester.begin("k0", arrays)))
        wall = time.perf_counter_ns() - begin
        spent = meter.spent()
        poller.close()
        return CrowdBlock(latencies, wall, spent)

    def close(self) -> None:
        """End sessions, helper and daemon."""
        for clients in self._clients.values():
            for client in clients:
                client.requester.close()
        end(self._helper, signal.SIGTERM)
        self._daemon.close()


def _take(client: _Client, latencies: list[int]) -> int:
    """Read the answers that have arrived. Raises: RequestFailed."""
    client.requester.poll(0)
    now = time.perf_counter_ns()
    left: deque[tuple[int, Pending]] = deque()
    for started, pending in client.flying:
        if not pending.done:
            left.append((started, pending))
            continue
        if isinstance(pending.outcome, RequestFailed):
            raise pending.outcome
        latencies.append(now - started)
    answered = len(client.flying) - len(left)
    client.flying = left
    return answered


def _serve(channel: str, gpus: Sequence[str]) -> None:
    helper = Helper()
    register_kernel(helper, 0)
    helper.run(channel, emulate=gpus)
