"""A lane in a GPU's memory: one block that the worker allocates, landing buffer and result half back to back."""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Iterator
from typing import Any, Final

from offpath.bindings.cuda.context import Context
from offpath.bindings.cuda.kernels import ZeroCheck
from offpath.bindings.errors import DeviceError
from offpath.bindings.memory.region import Region, round_to_page
from offpath.bindings.ports import DEVICE_CPU, DEVICE_CUDA, MemoryExport

BLOCK_UNIT: Final = 2 << 20
"""The driver backs memory with pages of 2 MiB."""
BOUNCE_BYTES: Final = 1 << 20
_LEGACY_STREAM: Final = 1
_DMA_BUF_FD: Final = 1
_SYNC_MEMOPS: Final = 6
_REGISTER_READ_ONLY: Final = 8


class CudaLane:
    """Implements `Lane`. On the emulator kernels get the host's view of the device's memory."""

    def __init__(self, context: Context, landing_bytes: int, result_bytes: int) -> None:
        """Raises: DeviceError: the memory is too small. CudaError, CudaLost."""
        self.landing_bytes = round_to_page(landing_bytes)
        self.result_bytes = round_to_page(result_bytes)
        self._context = context
        self._driver = context.driver
        self._call = context.driver.call
        self._nbytes = self.landing_bytes + self.result_bytes
        self._block_bytes = (self._nbytes + BLOCK_UNIT - 1) // BLOCK_UNIT * BLOCK_UNIT
        self._bounce = self._base = self._fd = 0
        self._check: ZeroCheck | None = None
        self._staging: Region | None = None
        self._staged_from = 0
        """Where in the lane the staging memory begins: the landing buffer, or the result half."""
        self._is_loaded = False
        """A `load` was started and not waited for."""
        self._stream: Any = self._call("cuStreamCreate", 0)  # ordered with the legacy default stream
        self._base = int(self._call("cuMemAlloc", self._block_bytes))
        self.pointer = context.add_block(self._base, self._block_bytes)
        """See `Lane.pointer`."""
        self._call("cuPointerSetAttribute", 1, self._driver.api.CUpointer_attribute(_SYNC_MEMOPS), self._base)
        self._bounce = int(self._call("cuMemAllocHost", BOUNCE_BYTES))
        self._fd = -1
        self._is_open = True

    @property
    def device(self) -> tuple[int, int]:
        """See `Lane.device`: the process sees one device."""
        return (DEVICE_CPU, 0) if self._driver.is_emulated else (DEVICE_CUDA, 0)

    @property
    def stream(self) -> int:
        """See `Lane.stream`."""
        return 0 if self._driver.is_emulated else int(self._stream)

    @property
    def peer_pointer(self) -> int:
        """See `Lane.peer_pointer`: as `pointer`, which a card can register where the kernel has nvidia-peermem."""
        return self.pointer

    def dmabuf(self) -> tuple[int, int] | None:
        """See `Lane.dmabuf`: of the whole block, because the driver exports no part of one. Raises: CudaError."""
        if not self._context.exports_dmabuf:
            return None
        if self._fd < 0:
            kind = self._driver.api.CUmemRangeHandleType(_DMA_BUF_FD)
            self._fd = int(self._call("cuMemGetHandleForAddressRange", self._base, self._block_bytes, kind, 0))
        return self._fd, 0

    def export(self) -> MemoryExport:
        """See `Lane.export`: to a copy engine that maps host memory. It cannot reach a GPU, so from the first export on
        payloads pass through pinned host memory, from which `acquire` takes them, and results likewise. Raises:
        DeviceError, RegionError: no memory for it."""
        return self._stage(0)

    def export_results(self) -> MemoryExport:
        """See `Lane.export_results`: pinned host memory, to which `publish` brings results. Raises: as `export`."""
        return self._stage(self.landing_bytes)

    def _stage(self, start: int) -> MemoryExport:
        if self._staging is None:
            self._staging = Region.create("offpath-staging", self._nbytes - start)
            self._staged_from = start
            self._call("cuMemHostRegister", self._staging.address, self._staging.nbytes, 0)
        elif start != self._staged_from:
            raise DeviceError("a lane is exported to one kind of copy engine")
        return MemoryExport({"offset": 0, "nbytes": self._nbytes - start}, (self._staging.fd,))

    @property
    def pins_read_only(self) -> bool:
        """See `Lane.pins_read_only`."""
        return self._context.pins_read_only

    def pin(self, address: int, nbytes: int) -> None:
        """See `Lane.pin`."""
        self._call("cuMemHostRegister", address, nbytes, _REGISTER_READ_ONLY if self.pins_read_only else 0)

    def unpin(self, address: int) -> None:
        """See `Lane.unpin`."""
        self._call("cuMemHostUnregister", address)

    def load(self, at: int, address: int, nbytes: int) -> None:
        """See `Lane.load`. The driver reads memory that is not pinned before the call returns."""
        self._check_range(at, nbytes)
        if at + nbytes > self.landing_bytes:
            raise DeviceError(f"{nbytes} bytes at {at} are outside the landing buffer's {self.landing_bytes}")
        self._call("cuMemcpyHtoDAsync", self._base + at, address, nbytes, self._stream)
        self._is_loaded = True

    def read(self, at: int, nbytes: int) -> bytes:
        """See `Lane.read`."""
        self._check_range(at, nbytes)
        return self.fetch(self._base + at, nbytes)

    def fetch(self, pointer: int, nbytes: int) -> bytes:
        """See `Lane.fetch`."""
        pointer = self._context.on_device(pointer)
        return b"".join(ctypes.string_at(self._bounce, size) for _, size in self._to_host(pointer, nbytes))

    def write(self, at: int, content: bytes | memoryview) -> None:
        """See `Lane.write`."""
        view = memoryview(content)
        self._check_range(at, view.nbytes)
        room = (ctypes.c_char * BOUNCE_BYTES).from_address(self._bounce)
        for start in range(0, view.nbytes, BOUNCE_BYTES):
            piece = view[start : start + BOUNCE_BYTES]
            memoryview(room).cast("B")[: piece.nbytes] = piece
            self._call("cuMemcpyHtoDAsync", self._base + at + start, self._bounce, piece.nbytes, self._stream)
            self._call("cuStreamSynchronize", self._stream)

    def gather(self, at: int, pointer: int, nbytes: int) -> None:
        """See `Lane.gather`."""
        self._check_range(at, nbytes)
        if nbytes:
            self._call("cuMemcpyDtoDAsync", self._base + at, self._context.on_device(pointer), nbytes, self._stream)
            self._call("cuStreamSynchronize", self._stream)

    def checksum(self, nbytes: int) -> int:
        """See `Lane.checksum`: through the bounce buffer, at the speed of the bus."""
        self._check_range(0, nbytes)
        room = (ctypes.c_char * BOUNCE_BYTES).from_address(self._bounce)
        crc = 0
        for _, size in self._to_host(self._base, nbytes):
            crc = zlib.crc32(memoryview(room)[:size], crc)
        return crc

    def synchronize(self) -> None:
        """See `Lane.synchronize`: the lane's stream, the default stream for kernels of code that knows no other, and
        the other devices of a gang."""
        self._context.synchronize_others()  # first: what runs there may still write into the lane
        self._call("cuStreamSynchronize", self._stream)
        self._call("cuStreamSynchronize", self._driver.api.CUstream(_LEGACY_STREAM))

    def acquire(self, nbytes: int) -> None:
        """See `Lane.acquire`. A `load` needs no wait before kernels on the lane's stream. The emulator's kernels are
        the host's code and on no stream."""
        if self._is_loaded:
            self._is_loaded = False
            if not self.stream:
                self._call("cuStreamSynchronize", self._stream)
        elif self._staging is None:
            self._context.flush_peer_writes()
        elif nbytes and not self._staged_from:
            nbytes = min(nbytes, self.landing_bytes)
            self._call("cuMemcpyHtoDAsync", self._base, self._staging.address, nbytes, self._stream)
            self._call("cuStreamSynchronize", self._stream)

    def publish(self, nbytes: int) -> None:
        """See `Lane.publish`. Peers that reach the GPU's memory read it where finished kernels and copies left it."""
        if self._staging is not None and nbytes:
            at, nbytes = self.landing_bytes, min(nbytes, self.result_bytes)
            staged = self._staging.address + at - self._staged_from
            self._call("cuMemcpyDtoHAsync", staged, self._base + at, nbytes, self._stream)
            self._call("cuStreamSynchronize", self._stream)

    def scrub(self) -> int:
        """See `Lane.scrub`: a memset, then a kernel that counts what is not zero."""
        if self._staging is not None:
            ctypes.memset(self._staging.address, 0, self._staging.nbytes)
        self._call("cuMemsetD8Async", self._base, 0, self._block_bytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)
        if self._check is None:
            self._check = ZeroCheck(self._context, self._stream)
        if not self._check.is_zero(self._base, self._nbytes):
            raise DeviceError("the scrub left bytes in the lane that are not zero")
        return self._nbytes

    def close(self) -> None:
        """Free the block, after its dma-buf: an open one keeps the instance in use. Idempotent. Raises: CudaError,
        CudaLost."""
        if not self._is_open:
            return
        self._is_open = False
        if self._fd >= 0:
            os.close(self._fd)
        if self._staging is not None:
            self._call("cuMemHostUnregister", self._staging.address)
            self._staging.close()
        self._call("cuMemFreeHost", self._bounce)
        self._context.drop_block(self._base)
        self._call("cuMemFree", self._base)
        self._call("cuStreamDestroy", self._stream)

    def _to_host(self, pointer: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of each piece, while it is in the bounce buffer."""
        for start in range(0, nbytes, BOUNCE_BYTES):
            size = min(BOUNCE_BYTES, nbytes - start)
            self._call("cuMemcpyDtoHAsync", self._bounce, pointer + start, size, self._stream)
            self._call("cuStreamSynchronize", self._stream)
            yield start, size

    def _check_range(self, at: int, nbytes: int) -> None:
        if not self._is_open:
            raise DeviceError("the lane is closed")
        if at < 0 or nbytes < 0 or at + nbytes > self._nbytes:
            raise DeviceError(f"{nbytes} bytes at {at} are outside the lane's {self._nbytes}")
