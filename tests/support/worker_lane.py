"""The worker's end of the copy engine `cuda` in this process: a lane, its channel, and what a worker does with it."""

from __future__ import annotations

import os
import socket

from offpath.bindings.loopback.channel import LoopbackConnection
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.loopback.lane import ResultExporter
from offpath.bindings.ports import Lane, MemoryExport
from offpath.host_helper.payloads import Payloads

PAGE = os.sysconf("SC_PAGE_SIZE")


class WorkerEnd:
    """Carries out the engine's messages only in `drain`: as late as a worker can. ``channel`` is the daemon's end."""

    def __init__(self, landing_bytes: int = PAGE, result_bytes: int = PAGE, lane: Lane | None = None) -> None:
        self._gpu = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=landing_bytes + result_bytes + 2 * PAGE)
        instance = self._gpu.open_instance(self._gpu.create_instance("7g.40gb", 0))
        self._instance = instance
        self.lane: Lane = lane or instance.reserve(0, 1, landing_bytes, result_bytes)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel, self.end = LoopbackConnection(ours), LoopbackConnection(theirs)
        self.payloads = Payloads(self.lane, "lease 1 lane 0")

    def export(self) -> MemoryExport:
        """What the worker exports, with descriptors of its own."""
        made = ResultExporter(self.lane).export()
        return MemoryExport(made.descriptor, tuple(os.dup(fd) for fd in made.fds))

    def drain(self) -> int:
        """Carry out the waiting messages; returns how many packets there were."""
        count = 0
        self.channel.flush()
        while (received := self.end.receive()) is not None:
            assert self.payloads.handle(*received) == b""
            count += 1
        return count

    def read(self, at: int, nbytes: int) -> bytes:
        """The lane's bytes, as a kernel that is launched now sees them."""
        self.drain()
        self.lane.acquire(self.lane.landing_bytes)
        return self.lane.read(at, nbytes)

    def close(self) -> None:
        self.payloads.clear()
        self.channel.close()
        self.end.close()
        self._instance.close()
        self._gpu.close()
