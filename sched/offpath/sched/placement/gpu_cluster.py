"""The GPUs of a cluster's servers, the jobs on them, and the network that these get."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.errors import SchedError
from offpath.sched.ina.statistical.model import Spread
from offpath.sched.ina.statistical.network import Network
from offpath.sched.ina.statistical.steady import SteadyState

PLAIN: Final = 64
"""Servers up to which nothing needs to be compiled: that would take longer than all decisions of a small cluster."""


class GpusHeld(SchedError):
    """A placement names GPUs that are not free or a server that is lost, or a job that runs already or does not."""


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """``workers``: (server, GPUs), by server. ``ps``: server of the PS; None: the job is on one server and has no
    traffic. ``has_ina``: its packets may use the switches' aggregators."""

    workers: tuple[tuple[int, int], ...]
    ps: int | None = None
    has_ina: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return sum(count for _, count in self.workers)

    @property
    def spread(self) -> Spread | None:
        """The job's traffic; None if it has none."""
        if self.ps is None:
            return None
        return Spread(tuple(server for server, _ in self.workers), self.ps, self.has_ina)


class GpuCluster:
    """``gpus`` and ``free`` are by server, shape [S]; a lost server has none free."""

    def __init__(self, network: Network, gpus: int | Sequence[int], *, compiled: bool | None = None) -> None:
        """``gpus``: per server, or of every server. ``compiled``: see `SteadyState`. Raises: GpusHeld."""
        counts = [gpus] * network.servers if isinstance(gpus, int) else list(gpus)
        if len(counts) != network.servers or any(count < 0 for count in counts):
            raise GpusHeld(f"GPUs of {len(counts)} servers, {network.servers} are in the network; none below 0")
        self.network = network
        self.steady = SteadyState(network, compiled=compiled)
        self.gpus: NDArray[np.int64] = np.array(counts, np.int64)
        self.free: NDArray[np.int64] = self.gpus.copy()
        self.rack_of: NDArray[np.int64] = np.array(network.rack_of, np.int64)
        self.uplinks_gbps: NDArray[np.float64] = np.array(network.uplink_gbps)
        self.running: dict[str, JobPlacement] = {}
        self.lost: set[int] = set()
        self.is_linked: NDArray[np.bool_] = np.array(network.link_gbps) > 0
        """By server: its access link is up."""
        self.largest_job = 0
        """GPUs of the largest job that an idle cluster can place."""
        self._measure()

    def copied(self) -> GpuCluster:
        """A cluster that changes independently of this one."""
        other = object.__new__(GpuCluster)
        other.__dict__.update(self.__dict__)
        other.steady = self.steady.copied()
        other.free, other.is_linked = self.free.copy(), self.is_linked.copy()
        other.running, other.lost = dict(self.running), set(self.lost)
        return other

    @property
    def most_gpus(self) -> int:
        """G of the paper: GPUs of the largest server."""
        return int(self.gpus.max())

    def regions(self) -> list[NDArray[np.int64]]:
        """Servers that can exchange traffic: those of all racks with an uplink, then each other rack's by itself."""
        joined = np.array(self.network.uplink_gbps)[self.rack_of] > 0
        found = [np.flatnonzero(joined & self.is_linked)]
        for rack, gbps in enumerate(self.network.uplink_gbps):
            if gbps == 0:
                found.append(np.flatnonzero((self.rack_of == rack) & self.is_linked))
        return [each for each in found if len(each)]

    def start(self, job: str, placement: JobPlacement, data_gbit: float = 1.0) -> None:
        """Take the GPUs. Raises: GpusHeld: then nothing changes."""
        if job in self.running:
            raise GpusHeld(f"job {job} is running already")
        servers = [server for server, _ in placement.workers]
        if not servers or len(set(servers)) != len(servers):
            raise GpusHeld(f"job {job}: no server, or one is named twice")
        if placement.ps is None and len(servers) > 1:
            raise GpusHeld(f"job {job} spans {len(servers)} servers and has no parameter server")
        for server, count in placement.workers:
            if not 0 <= server < len(self.free) or server in self.lost or not 1 <= count <= self.free[server]:
                raise GpusHeld(f"job {job}: {count} GPUs are not free on server {server}")
        if placement.ps is not None and (not 0 <= placement.ps < len(self.free) or placement.ps in self.lost):
            raise GpusHeld(f"job {job}: server {placement.ps} for its parameter server is lost or unknown")
        for server, count in placement.workers:
            self.free[server] -= count
        spread = placement.spread
        if spread is not None:
            self.steady.add(job, spread, data_gbit)
        self.running[job] = placement

    def finish(self, job: str) -> None:
        """Release the job's GPUs. Raises: GpusHeld: it does not run."""
        placement = self.running.pop(job, None)
        if placement is None:
            raise GpusHeld(f"job {job} is not running")
        if placement.ps is not None:
            self.steady.remove(job)
        for server, count in placement.workers:
            if server not in self.lost:
                self.free[server] += count

    def switch_off_ina(self, jobs: Collection[str]) -> None:
        """Take aggregation from running jobs that span servers. Raises: GpusHeld: then nothing changes."""
        changed = {job: replace(self.running[job], has_ina=False) for job in jobs if job in self.running}
        spreads: dict[Hashable, Spread] = {job: each.spread for job, each in changed.items() if each.spread is not None}
        if len(spreads) < len(set(jobs)):
            raise GpusHeld("a job that is to lose aggregation does not run or has one server")
        self.steady.change(spreads)
        self.running.update(changed)

    def lose(self, server: int) -> tuple[str, ...]:
        """A server is lost or drained: nothing is started on it. Returns the jobs that have a worker or PS there; the
        caller decides about them, and calls `finish` for each that ends. Raises: GpusHeld: unknown server."""
        if not 0 <= server < len(self.free):
            raise GpusHeld(f"server {server} is not in the cluster")
        self.lost.add(server)
        self.free[server] = 0
        self.is_linked[server] = False
        self._measure()
        return tuple(job for job, placement in self.running.items() if server in _servers(placement))

    def regain(self, server: int) -> None:
        """A lost server is back, with the GPUs that running jobs do not hold. Raises: GpusHeld: it was not lost."""
        if server not in self.lost:
            raise GpusHeld(f"server {server} is not lost")
        self.lost.remove(server)
        held = sum(count for each in self.running.values() for at, count in each.workers if at == server)
        self.free[server] = self.gpus[server] - held
        self.is_linked[server] = self.network.link_gbps[server] > 0
        self._measure()

    def _measure(self) -> None:
        """Set `largest_job`."""
        present = self.gpus.copy()
        present[list(self.lost)] = 0
        self.largest_job = max([int(present.max()), *(int(present[each].sum()) for each in self.regions())])


def _servers(placement: JobPlacement) -> Iterable[int]:
    yield from (server for server, _ in placement.workers)
    if placement.ps is not None:
        yield placement.ps
