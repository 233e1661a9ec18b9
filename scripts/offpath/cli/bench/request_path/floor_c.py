"""The floor in C (csrc/floor.c), with its requester in C too. `floor_c_spin` busy-polls for as long as a block runs.

floor_c       the middle, the worker and the requester block in the kernel, as the Python floor's do
floor_c_spin  the middle busy-polls. Worker and requester do too where each has a core of its own; with two cores they
              share the host's core, and block
"""

from __future__ import annotations

import array
import struct
import subprocess
from typing import IO, Final

from offpath.bindings.errors import PeerGone
from offpath.cli.bench.compiled import built
from offpath.cli.bench.measure import Block, Cores, cpu_ns
from offpath.cli.bench.request_path.backend import LARGEST, SMALL, Payload

_PIDS = struct.Struct("=2Q")
_BLOCK = struct.Struct("=4Q")
_SUMS = struct.Struct("=2Q")
_SPIN_MIDDLE, _SPIN_ALL = 1, 7
_UNPINNED: Final = -1


class FloorC:
    """One program of three processes."""

    def __init__(self, cores: Cores, *, spins: bool) -> None:
        """Raises: NotBuilt: no compiler. PeerGone: the program does not start."""
        self.name = "floor_c_spin" if spins else "floor_c"
        how, worker_core = _SPIN_MIDDLE if spins else 0, cores.host
        if spins and cores.spare is not None:
            how, worker_core = _SPIN_ALL, cores.spare
        places = [str(_UNPINNED if core is None else core) for core in (cores.dpu, cores.host, worker_core)]
        command = [built("floor.c"), *places, str(how), str(SMALL), str(LARGEST)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        try:
            middle, worker = _PIDS.unpack(self._read(_PIDS.size))
        except PeerGone:
            self.close()
            raise
        self._pids = {"daemon": [middle], "worker": [worker]}

    def realtime_pids(self) -> list[int]:
        """The requester, which is not this process."""
        return [self._process.pid]

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """See `Backend.block`; the program has bytes of its own, as many as ``payload``."""
        before = {role: cpu_ns(pids) for role, pids in self._pids.items()}
        self._to.write(_BLOCK.pack(payload.nbytes, count, in_flight, kernel_ms))
        self._to.flush()
        wall_ns, requester_ns = _SUMS.unpack(self._read(_SUMS.size))
        latencies = array.array("Q", self._read(8 * count)).tolist()
        spent = {role: cpu_ns(pids) - before[role] for role, pids in self._pids.items()} | {"requester": requester_ns}
        return Block(latencies, wall_ns, spent["worker"], cpu_ns=spent)

    def _read(self, nbytes: int) -> bytes:
        data = self._from.read(nbytes)
        if len(data) < nbytes:
            raise PeerGone(f"{self.name} ended with status {self._process.wait()}")
        return data

    def close(self) -> None:
        """End the three processes; the two children end with their parent."""
        self._process.kill()
        self._process.wait()
        self._to.close()
        self._from.close()
