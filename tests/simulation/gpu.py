"""A simulated GPU: the emulator's rules of MIG over plain bytes that outlive instances, helpers and daemons."""

from __future__ import annotations

import ctypes
import itertools
import zlib
from typing import TYPE_CHECKING, Any

from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.mig import gpu_model
from offpath.bindings.ports import MemoryExport

from .promises import promise
from .wires import Memory

if TYPE_CHECKING:
    from .world import World

SLICE_BYTES = 32_768
ROOM = 4_096
"""Landing and result bytes of a lane; a slice holds four such lanes."""


class Tenancy:
    """Who holds an instance's memory: one lease of one tenant."""

    __slots__ = ("generation", "lease", "range", "tenant")

    def __init__(self, lease: int, generation: int, tenant: str, held: range) -> None:
        self.lease = lease
        self.generation = generation
        self.tenant = tenant
        self.range = held

    def __repr__(self) -> str:
        return f"lease {self.lease} of {self.tenant}"


class SimGpu(EmulatedGpu):
    """Geometry is the emulator's own (`create_instance`, `destroy_instance`); memory is a bytearray."""

    def __init__(self, world: World, uuid: str, model: str) -> None:
        self.uuid = uuid
        self.model = gpu_model(model)
        self.slice_bytes = SLICE_BYTES
        self._world = world
        self._delayed = False
        self._fd = 0
        self._instances = {}
        self._ids = itertools.count(1)
        self.store = bytearray(SLICE_BYTES * self.model.memory_slices)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.store))
        self.tenancies: dict[int, Tenancy] = {}

    def taken(self, instance: int, lease: int, generation: int, tenant: str) -> Tenancy:
        """The helper gives the instance to a lease."""
        base, nbytes = self._range(instance)
        tenancy = Tenancy(lease, generation, tenant, range(base, base + nbytes))
        for other in self.tenancies.values():
            apart = other.range.stop <= base or base + nbytes <= other.range.start
            promise(apart, f"{tenancy} is cut into the memory of {other}")
        self.tenancies[instance] = tenancy
        return tenancy

    def holder(self, at: int) -> Tenancy | None:
        """Whose the byte is now."""
        for tenancy in self.tenancies.values():
            if at in tenancy.range:
                return tenancy
        return None

    def is_clean(self, instance: int) -> bool:
        base, nbytes = self._range(instance)
        return self.store.count(0, base, base + nbytes) == nbytes

    def open_instance(self, instance: int) -> Any:
        base, nbytes = self._range(instance)
        return SimInstance(self, self._world, base, nbytes, self.tenancies[instance])

    def scrub_instance(self, instance: int) -> int:
        base, nbytes = self._range(instance)
        self.store[base : base + nbytes] = bytes(nbytes)
        return nbytes

    def close(self) -> None:
        """Nothing of the system's is held."""

    def destroy_instance(self, instance: int) -> None:
        super().destroy_instance(instance)
        self.tenancies.pop(instance, None)


class SimInstance:
    """A worker's window on its instance."""

    def __init__(self, gpu: SimGpu, world: World, base: int, nbytes: int, tenancy: Tenancy) -> None:
        self._gpu = gpu
        self._world = world
        self._base = base
        self._nbytes = nbytes
        self._tenancy = tenancy

    def reserve(self, lane: int, lanes: int, landing_bytes: int, result_bytes: int) -> SimLane:
        share = landing_bytes + result_bytes
        promise(share * lanes <= self._nbytes, f"{lanes} lanes of {share} bytes in {self._nbytes}")
        at = self._base + lane * share
        self._world.judge.lane_reserved(self._gpu, at, share, self._tenancy)
        return SimLane(self._gpu, self._world, at, landing_bytes, result_bytes, self._tenancy)


class SimLane:
    """Implements `Lane`."""

    device = (1, 0)
    stream = 0

    def __init__(
        self, gpu: SimGpu, world: World, at: int, landing_bytes: int, result_bytes: int, tenancy: Tenancy
    ) -> None:
        self._gpu = gpu
        self._world = world
        self.at = at
        self.landing_bytes = landing_bytes
        self.result_bytes = result_bytes
        self.tenancy = tenancy
        self.pointer = gpu.address + at

    def read(self, at: int, nbytes: int) -> bytes:
        return bytes(self._gpu.store[self.at + at : self.at + at + nbytes])

    def write(self, at: int, content: bytes | memoryview) -> None:
        self._gpu.store[self.at + at : self.at + at + len(content)] = content

    def gather(self, at: int, pointer: int, nbytes: int) -> None:
        self.write(at, self.fetch(pointer, nbytes))

    def fetch(self, pointer: int, nbytes: int) -> bytes:
        return ctypes.string_at(pointer, nbytes)

    def checksum(self, nbytes: int) -> int:
        return zlib.crc32(self.read(0, nbytes))

    def synchronize(self) -> None:
        """Kernels are calls."""

    def export(self) -> MemoryExport:
        nbytes = self.landing_bytes + self.result_bytes
        number = self._world.export(Memory(self._gpu.store, self.at, nbytes, self.tenancy))
        return MemoryExport({"region": number, "offset": self.at, "nbytes": nbytes})

    def acquire(self, nbytes: int) -> None:
        """Host memory is coherent."""

    def publish(self, nbytes: int) -> None:
        """Likewise."""

    def scrub(self) -> int:
        nbytes = self.landing_bytes + self.result_bytes
        self._gpu.store[self.at : self.at + nbytes] = bytes(nbytes)
        return nbytes
