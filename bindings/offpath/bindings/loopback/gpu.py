"""GPU `loopback`: emulates an A100, or any model of the table, by its rules and host memory.

The device's memory is one sealed memfd that outlives instances. As on a real GPU, the next tenant finds what the last
one left, unless it is scrubbed. Sizes are scaled: a memory slice is ``slice_bytes``. With ``delayed_visibility`` peers
write into a second copy of a lane's landing buffer, and only `acquire` makes it visible to kernels. A launch without
`acquire` computes on stale bytes, as on a GPU below WRITES_ORDERING_OWNER.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import DeviceError, DeviceGone, PlacementTaken
from offpath.bindings.memory.region import Region, round_to_page, sealed_memfd
from offpath.bindings.mig import GpuModel, MigProfile, gpu_model
from offpath.bindings.ports import MemoryExport

DEFAULT_SLICE_BYTES: Final = 64 << 20
_SCRUB_CHUNK: Final = 1 << 20
_MEDIA_EXTENSION: Final = "+me"


@dataclass(frozen=True, slots=True)
class _Instance:
    profile: MigProfile
    start: int

    @property
    def memory(self) -> range:
        return range(self.start, self.start + self.profile.memory_slices)


class EmulatedGpu:
    """Implements `offpath.bindings.ports.Gpu`. The ledger is in the process that creates instances. Forked workers
    inherit it and may open the instances that existed at the fork."""

    is_emulated: Final = True

    def __init__(
        self,
        uuid: str,
        model: str,
        *,
        slice_bytes: int = DEFAULT_SLICE_BYTES,
        delayed_visibility: bool = False,
    ) -> None:
        """Raises: DeviceError: unknown model. RegionError: no memory is left for it."""
        self.uuid = uuid
        self.links: Mapping[str, int] = {}
        self.model: GpuModel = gpu_model(model)
        self.slice_bytes = round_to_page(slice_bytes)
        self._delayed = delayed_visibility
        self._fd = sealed_memfd(f"offpath-{uuid}", self.slice_bytes * self.model.memory_slices)
        self._instances: dict[int, _Instance] = {}
        self._ids = itertools.count(1)

    def profile_bytes(self, profile: str) -> int:
        """See `Gpu.profile_bytes`."""
        return self.model.profile(profile).memory_slices * self.slice_bytes

    def create_instance(self, profile: str, start: int) -> int:
        """See `Gpu.create_instance`."""
        self._check()
        wanted = _Instance(self.model.profile(profile), start)
        others = list(self._instances.values())
        if start not in wanted.profile.starts:
            raise PlacementTaken(f"{profile} may start at {wanted.profile.starts}, not at {start}")
        if any(set(wanted.memory) & set(other.memory) for other in others):
            raise PlacementTaken(f"{profile} at {start}: memory slices in use")
        used = sum(other.profile.compute_slices for other in others)
        if used + wanted.profile.compute_slices > self.model.compute_slices:
            raise PlacementTaken(f"{profile} at {start}: {used} of {self.model.compute_slices} compute slices in use")
        if sum(other.profile.name == profile for other in others) >= wanted.profile.max_instances:
            raise PlacementTaken(f"{profile}: {wanted.profile.max_instances} instances at most")
        media = _MEDIA_EXTENSION in profile and any(_MEDIA_EXTENSION in other.profile.name for other in others)
        if media:
            raise PlacementTaken(f"{profile}: the GPU's one media extension is in use")
        self._instances[instance := next(self._ids)] = wanted
        return instance

    def open_instance(self, instance: int) -> EmulatedInstance:
        """See `Gpu.open_instance`."""
        base, nbytes = self._range(instance)
        return EmulatedInstance(self._fd, base, nbytes, self._delayed)

    def scrub_instance(self, instance: int) -> int:
        """See `Gpu.scrub_instance`."""
        base, nbytes = self._range(instance)
        return _scrub_file(self._fd, base, nbytes)

    def destroy_instance(self, instance: int) -> None:
        """See `Gpu.destroy_instance`."""
        self._instances.pop(instance, None)

    def instances(self) -> list[tuple[int, str, int]]:
        """See `Gpu.instances`."""
        return [(i, held.profile.name, held.start) for i, held in self._instances.items()]

    def close(self) -> None:
        """Free the device's memory. Mappings of workers live until they end."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check(self) -> None:
        if self._fd < 0:
            raise DeviceGone(f"{self.uuid} was closed")

    def _range(self, instance: int) -> tuple[int, int]:
        self._check()
        try:
            held = self._instances[instance]
        except KeyError:
            raise DeviceError(f"{self.uuid} has no instance {instance}") from None
        return held.start * self.slice_bytes, held.profile.memory_slices * self.slice_bytes


class EmulatedInstance:
    """Implements `InstanceMemory`: gives this process access to one instance only."""

    def __init__(self, gpu_fd: int, base: int, nbytes: int, delayed: bool) -> None:
        self._fd = os.dup(gpu_fd)
        self._base = base
        self._nbytes = nbytes
        self._delayed = delayed
        self._lanes: list[EmulatedLane] = []

    def reserve(self, lane: int, lanes: int, landing_bytes: int, result_bytes: int) -> EmulatedLane:
        """See `InstanceMemory.reserve`. Lanes are contiguous and equal in size."""
        landing, result = round_to_page(landing_bytes), round_to_page(result_bytes)
        share = landing + result
        if not 0 <= lane < lanes:
            raise DeviceError(f"lane {lane} of {lanes}")
        if share * lanes > self._nbytes:
            raise DeviceError(f"{lanes} lanes of {share} bytes do not fit the instance's {self._nbytes}")
        made = EmulatedLane(os.dup(self._fd), self._base + lane * share, landing, result, self._delayed)
        self._lanes.append(made)
        return made

    def close(self) -> None:
        """Close lanes, then the handle."""
        for lane in self._lanes:
            lane.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class EmulatedLane:
    """Implements `Lane`, in host memory."""

    device: Final = (1, 0)
    stream: Final = 0
    pins_read_only: Final = True

    def __init__(self, fd: int, offset: int, landing_bytes: int, result_bytes: int, delayed: bool) -> None:
        self.offset = offset
        self.landing_bytes = landing_bytes
        self.result_bytes = result_bytes
        self._region = Region(fd, offset, landing_bytes + result_bytes)
        self._pinned: set[int] = set()
        # Peers write here while visibility is delayed; they read the result half after `publish`.
        self._peer_side = Region.create("offpath-peer-side", landing_bytes + result_bytes) if delayed else None

    @property
    def pointer(self) -> int:
        """Address of the landing buffer in this process."""
        return self._region.address

    @property
    def peer_pointer(self) -> int:
        """See `Lane.peer_pointer`."""
        return (self._peer_side or self._region).address

    def dmabuf(self) -> tuple[int, int] | None:
        """See `Lane.dmabuf`: host memory has none."""
        return None

    def read(self, at: int, nbytes: int) -> bytes:
        """See `Lane.read`."""
        return bytes(self._view(at, nbytes))

    def write(self, at: int, content: bytes | memoryview) -> None:
        """See `Lane.write`."""
        self._view(at, len(content))[:] = content

    def gather(self, at: int, pointer: int, nbytes: int) -> None:
        """See `Lane.gather`."""
        self._view(at, nbytes)
        ctypes.memmove(self._region.address + at, pointer, nbytes)

    def fetch(self, pointer: int, nbytes: int) -> bytes:
        """See `Lane.fetch`."""
        return ctypes.string_at(pointer, nbytes)

    def checksum(self, nbytes: int) -> int:
        """See `Lane.checksum`. Copies nothing."""
        return zlib.crc32(self._view(0, nbytes))

    def synchronize(self) -> None:
        """See `Lane.synchronize`: kernels are calls, which have ended when they return."""

    def _view(self, at: int, nbytes: int) -> memoryview:
        if at < 0 or nbytes < 0 or at + nbytes > self._region.nbytes:
            raise DeviceError(f"{nbytes} bytes at {at} are outside the lane's {self._region.nbytes}")
        return self._region.view[at : at + nbytes]

    def pin(self, address: int, nbytes: int) -> None:
        """See `Lane.pin`: nothing copies but this process, which needs no pinned memory."""
        if address in self._pinned:
            raise DeviceError("the memory is pinned")
        self._pinned.add(address)

    def unpin(self, address: int) -> None:
        """See `Lane.unpin`."""
        if address not in self._pinned:
            raise DeviceError("the memory is not pinned")
        self._pinned.remove(address)

    def load(self, at: int, address: int, nbytes: int) -> None:
        """See `Lane.load`: as a peer writes, so that `acquire` is needed where visibility is delayed."""
        if at < 0 or nbytes < 0 or at + nbytes > self.landing_bytes:
            raise DeviceError(f"{nbytes} bytes at {at} are outside the landing buffer's {self.landing_bytes}")
        ctypes.memmove(self.peer_pointer + at, address, nbytes)

    def export_results(self) -> MemoryExport:
        """See `Lane.export_results`. The lane keeps ownership of the descriptor in ``fds``."""
        whole = self.export()
        offset = int(whole.descriptor["offset"]) + self.landing_bytes
        return MemoryExport({"offset": offset, "nbytes": self.result_bytes}, whole.fds)

    def export(self) -> MemoryExport:
        """See `Lane.export`. The lane keeps ownership of the descriptor in ``fds``."""
        nbytes = self.landing_bytes + self.result_bytes
        if self._peer_side is not None:
            return MemoryExport({"offset": 0, "nbytes": nbytes}, (self._peer_side.fd,))
        return MemoryExport({"offset": self.offset, "nbytes": nbytes}, (self._region.fd,))

    def acquire(self, nbytes: int) -> None:
        """See `Lane.acquire`: a no-op in coherent host memory, a copy when visibility is delayed."""
        if self._peer_side is not None:
            ctypes.memmove(self._region.address, self._peer_side.address, min(nbytes, self.landing_bytes))

    def publish(self, nbytes: int) -> None:
        """See `Lane.publish`. GPU stores before a signal need no more than this."""
        if self._peer_side is not None:
            at = self.landing_bytes
            ctypes.memmove(self._peer_side.address + at, self._region.address + at, min(nbytes, self.result_bytes))

    def scrub(self) -> int:
        """See `Lane.scrub`."""
        if self._peer_side is not None:
            ctypes.memset(self._peer_side.address, 0, self._peer_side.nbytes)
        nbytes = self._region.nbytes
        ctypes.memset(self._region.address, 0, nbytes)
        zeros = bytes(_SCRUB_CHUNK)
        for at in range(0, nbytes, _SCRUB_CHUNK):
            chunk = self._region.view[at : at + _SCRUB_CHUNK]
            if chunk != zeros[: len(chunk)]:
                raise DeviceError(f"scrub left bytes at lane offset {at}")
        return nbytes

    def close(self) -> None:
        """Release the reservation, unscrubbed."""
        self._region.close()
        if self._peer_side is not None:
            self._peer_side.close()


def _scrub_file(fd: int, base: int, nbytes: int) -> int:
    """Zero a range of the device by deallocating its pages, which then read as zeros, and verify it by reading. Maps
    nothing: a scrub must succeed on a host without free memory. Raises: DeviceError: bytes remained, or the kernel
    refused."""
    try:
        _punch(fd, base, nbytes)
        zeros = bytes(_SCRUB_CHUNK)
        for at in _data_chunks(fd, base, nbytes):
            chunk = os.pread(fd, min(_SCRUB_CHUNK, nbytes - at), base + at)
            if chunk != zeros[: len(chunk)]:
                raise DeviceError(f"scrub left bytes at device offset {base + at}")
    except OSError as fault:
        raise DeviceError(f"scrub of {nbytes} bytes at device offset {base}: {fault}") from fault
    return nbytes


def _punch(fd: int, base: int, nbytes: int) -> None:
    """Deallocate the range where the kernel can (FALLOC_FL_PUNCH_HOLE | KEEP_SIZE = 3); otherwise overwrite it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    if libc.fallocate(fd, 3, base, nbytes) != 0:
        zeros = bytes(_SCRUB_CHUNK)
        for at in range(0, nbytes, _SCRUB_CHUNK):
            os.pwrite(fd, zeros[: nbytes - at], base + at)


def _data_chunks(fd: int, base: int, nbytes: int) -> list[int]:
    """Offsets (from ``base``) of the chunks that have pages. The file system defines a hole as zero."""
    chunks: list[int] = []
    at = base
    while at < base + nbytes:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        if at >= base + nbytes:
            break
        start = (at - base) // _SCRUB_CHUNK * _SCRUB_CHUNK
        chunks.append(start)
        at = base + start + _SCRUB_CHUNK
    return chunks
