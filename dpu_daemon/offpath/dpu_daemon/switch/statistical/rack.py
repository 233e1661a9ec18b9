"""A rack with a statistical switch: servers' links with rates, the switch's aggregators between them. No I/O, no clock.

A packet of a process passes its server's uplink, the aggregators, and the downlink of the receiver's server. Rates,
marks and losses come from the emulated links alone. `handle` and `advance` return what arrives at processes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from offpath.bindings.ina.packets import HEAD_BYTES, Flag, Packet, PacketKind, Refusal
from offpath.dpu_daemon.switch.statistical.aggregators import Aggregators, JobCounters
from offpath.dpu_daemon.switch.statistical.links import Link

MOST_JOBS: Final = 1024
MOST_QUEUED: Final = 1 << 16
"""Packets on all links at once."""
_ENDED_JOBS: Final = 256
"""Jobs that have left whose counters are kept."""


@dataclass(frozen=True, slots=True)
class RackSettings:
    """``link_bps``: of each server in each direction. ``rtt_ns``: from a PS's last received packet to its answer, on
    top of the links' queues. ``mark_bytes``, ``drop_bytes``: see `Link`. ``stale_ns``: see `Aggregators`."""

    servers: tuple[str, ...]
    aggregators: int
    link_bps: float
    rtt_ns: int
    mark_bytes: float
    drop_bytes: float
    stale_ns: int


@dataclass(eq=False, slots=True)
class Port:
    """A process of a job. ``rank`` -1: its PS."""

    job: int
    rank: int
    server: int


@dataclass(slots=True)
class _Job:
    workers: int
    ps: Port | None = None
    ports: dict[int, Port] = field(default_factory=dict)
    """Workers by rank."""
    is_ready: bool = False
    nbytes: int = 0
    """Of gradients in results to all workers."""


Delivery = tuple[Port, Packet]


class Rack:
    """Not thread-safe. Times are in ns of one clock and never decrease."""

    def __init__(self, settings: RackSettings) -> None:
        """Raises: ValueError."""
        names, numbers = settings.servers, (settings.rtt_ns, settings.mark_bytes, settings.drop_bytes)
        if not names or "" in names or len(set(names)) < len(names):
            raise ValueError("want servers with different names")
        if not (math.isfinite(settings.link_bps) and settings.link_bps > 0 and all(each >= 0 for each in numbers)):
            raise ValueError("want links with a rate, and no negative RTT, threshold or limit")
        self.aggregators = Aggregators(settings.aggregators, settings.stale_ns)
        self.dropped = 0
        """Packets that a process must not send, or of which there are too many."""
        self._settings = settings
        self._up, self._down = (
            [Link(settings.link_bps, settings.mark_bytes, settings.drop_bytes) for _ in settings.servers]
            for _ in range(2)
        )
        self._jobs: dict[int, _Job] = {}
        self._ended: dict[int, dict[str, Any]] = {}
        self._queue: list[tuple[int, int, Port | None, Packet]] = []
        """By time: packets that arrive at a process, or (None) at the switch."""
        self._order = itertools.count()

    # -- processes ----------------------------------------------------------------------------------------------------
    def attach(self, packet: Packet) -> Port | Refusal:
        """A process connects with an ATTACH."""
        name = packet.payload.decode()
        if name not in self._settings.servers:
            return Refusal.SERVER
        job = self._jobs.get(packet.job)
        if job is None:
            if len(self._jobs) >= MOST_JOBS:
                return Refusal.LIMITS
            job = _Job(packet.workers)
        if job.workers != packet.workers:
            return Refusal.MISMATCH
        rank = packet.bitmap.bit_length() - 1
        if rank in job.ports or (rank < 0 and job.ps is not None):
            return Refusal.TAKEN
        self._jobs[packet.job] = job
        port = Port(packet.job, rank, self._settings.servers.index(name))
        if rank < 0:
            job.ps = port
        else:
            job.ports[rank] = port
        return port

    def newly_ready(self, number: int) -> list[Port]:
        """The job's ports, once, when the last of them has attached."""
        job = self._jobs[number]
        if job.is_ready or job.ps is None or len(job.ports) < job.workers:
            return []
        job.is_ready = True
        return [job.ps, *job.ports.values()]

    def detach(self, port: Port) -> Delivery | None:
        """A process has disconnected; returns what its PS learns."""
        job = self._jobs[port.job]
        if port.rank < 0:
            job.ps = None
        else:
            del job.ports[port.rank]
        if job.ps is None and not job.ports:
            self._ended[port.job] = self._of_job(port.job, job)
            if len(self._ended) > _ENDED_JOBS:
                del self._ended[next(iter(self._ended))]
            del self._jobs[port.job]
            self.aggregators.forget(port.job)
        if job.ps is None or port.rank < 0:
            return None
        return job.ps, Packet(PacketKind.DETACHED, port.job, 0, job.workers, 1 << port.rank)

    # -- packets ------------------------------------------------------------------------------------------------------
    def handle(self, port: Port, packet: Packet, now_ns: int) -> None:
        """A process sends a packet. One that is not its own to send is dropped and counted."""
        job = self._jobs[port.job]
        if packet.job != port.job or packet.workers != job.workers or not _may_send(port, packet):
            self.dropped += 1
        else:
            self._onto(self._up[port.server], None, packet, now_ns)

    def next_ns(self) -> int | None:
        """When `advance` has something to do."""
        return self._queue[0][0] if self._queue else None

    def advance(self, now_ns: int) -> list[Delivery]:
        """Everything that happens up to now; returns what arrives at processes, in order."""
        found: list[Delivery] = []
        while self._queue and self._queue[0][0] <= now_ns:
            at_ns, _, port, packet = heapq.heappop(self._queue)
            if port is not None:
                found.append((port, packet))
            else:
                self._at_switch(packet, at_ns)
        return found

    def flush_stale(self, now_ns: int) -> None:
        """See `Aggregators.flush_stale`."""
        for packet in self.aggregators.flush_stale(now_ns):
            self._to_ps(packet, now_ns)

    def statistics(self) -> dict[str, Any]:
        """Counters of jobs, also of those that have left, and of links, as plain data."""
        jobs = {**self._ended, **{number: self._of_job(number, job) for number, job in self._jobs.items()}}
        links = {
            name: {"up": asdict(self._up[server].counters), "down": asdict(self._down[server].counters)}
            for server, name in enumerate(self._settings.servers)
        }
        return {
            "aggregators": self.aggregators.count, "taken": len(self.aggregators.taken), "dropped": self.dropped,
            "jobs": {f"{number:016x}": counters for number, counters in jobs.items()}, "links": links,
        }  # fmt: skip

    # -- parts --------------------------------------------------------------------------------------------------------
    def _of_job(self, number: int, job: _Job) -> dict[str, Any]:
        counters = self.aggregators.counters.get(number) or JobCounters()
        return {"workers": job.workers, "nbytes": job.nbytes, **asdict(counters)}

    def _at_switch(self, packet: Packet, now_ns: int) -> None:
        job = self._jobs.get(packet.job)
        if job is None:
            return  # it has left
        if packet.kind is PacketKind.DATA:
            for each in self.aggregators.data(packet, now_ns):
                self._to_ps(each, now_ns)
        elif packet.kind is PacketKind.FLUSH:
            for each in self.aggregators.flush(packet):
                self._to_ps(each, now_ns)
        else:
            self.aggregators.result(packet)
            if packet.bitmap == (1 << job.workers) - 1:
                job.nbytes += len(packet.payload)
            for rank, port in job.ports.items():
                if packet.bitmap >> rank & 1:
                    self._onto(self._down[port.server], port, replace(packet, bitmap=1 << rank), now_ns)

    def _to_ps(self, packet: Packet, now_ns: int) -> None:
        job = self._jobs.get(packet.job)
        if job is not None and job.ps is not None:
            self._onto(self._down[job.ps.server], job.ps, packet, now_ns, self._settings.rtt_ns)

    def _onto(self, link: Link, to: Port | None, packet: Packet, now_ns: int, delay_ns: int = 0) -> None:
        if len(self._queue) >= MOST_QUEUED:
            self.dropped += 1
            return
        arrives = link.offer(HEAD_BYTES + len(packet.payload), now_ns)
        if arrives is None:
            return
        at_ns, is_marked = arrives
        if is_marked and packet.kind is not PacketKind.FLUSH:
            packet = replace(packet, flags=packet.flags | Flag.CONGESTED)
        heapq.heappush(self._queue, (at_ns + delay_ns, next(self._order), to, packet))


def _may_send(port: Port, packet: Packet) -> bool:
    if port.rank < 0:
        return packet.kind in (PacketKind.RESULT, PacketKind.FLUSH)
    return packet.kind is PacketKind.DATA and packet.bitmap == 1 << port.rank
