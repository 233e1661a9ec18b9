"""A process's context on the one GPU or MIG instance that it may see."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from offpath.bindings.cuda.driver import NOT_INITIALIZED, VISIBLE_VARIABLE, Driver, load
from offpath.bindings.errors import CudaError, DeviceError

logger = logging.getLogger(__name__)
_UUID: Final = re.compile(r"(?:GPU|MIG)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
_BLOCKING_SYNC: Final = 4  # CU_CTX_SCHED_BLOCKING_SYNC: the CPU sleeps while it waits for the GPU
_SPIN: Final = 1
MULTIPROCESSORS: Final = 16
"""Number of the device attribute; under MPS those that are enabled."""
_MPS: Final = 133
_DMA_BUF, _FLUSH_OPTIONS, _WRITES_ORDERING = 124, 117, 118
_READ_ONLY_PINS: Final = 113
_ORDERED_BY_OWNER: Final = 100
_FLUSH_BY_HOST: Final = 1


class Context:
    """The primary context of the GPU or MIG instance ``uuid``, current in the calling thread.

    It sets ``CUDA_VISIBLE_DEVICES``, so it must come before anything else that uses CUDA in this process. Frameworks
    (torch, cupy) then use the same context.
    """

    def __init__(self, uuid: str, *, others: Sequence[str] = (), is_spinning: bool = False) -> None:
        """``is_spinning``: waits for the GPU poll instead of sleeping. ``others``: whole GPUs that this process may see
        too, as its devices 1, 2 …. It has no context there: the frameworks that use them make it, and
        `synchronize_others` finds it.

        Raises: DeviceError: CUDA shows other devices than these, or none. CudaMissing: no driver. CudaLost: the device
        failed.
        """
        names = [uuid, *others]
        found = [_UUID.fullmatch(name) for name in names]
        wanted = [UUID(each[1]) for each in found if each is not None]
        if len(wanted) < len(names):
            raise DeviceError(f"{', '.join(names)}: not all are UUIDs of GPUs or MIG instances")
        os.environ[VISIBLE_VARIABLE] = ",".join(names)
        self.driver: Driver = load()
        self.uuid = uuid
        self._views: list[tuple[int, int, int]] = []
        self._device, *self._unused = self._devices(wanted)
        """``_unused``: other devices on which no primary context was found yet."""
        self._others: dict[Any, Any] = {}
        """The primary contexts of other devices, which kernels have made."""
        driver = self.driver
        driver.call("cuDevicePrimaryCtxSetFlags", self._device, _SPIN if is_spinning else _BLOCKING_SYNC)
        self._context: Any = driver.call("cuDevicePrimaryCtxRetain", self._device)
        driver.call("cuCtxSetCurrent", self._context)
        self.exports_dmabuf = bool(self._attribute(_DMA_BUF))
        self.needs_flush = self._attribute(_WRITES_ORDERING) < _ORDERED_BY_OWNER
        self.can_flush = bool(self._attribute(_FLUSH_OPTIONS) & _FLUSH_BY_HOST)
        self.pins_read_only = bool(self._attribute(_READ_ONLY_PINS))
        """Host memory can be registered that is mapped read-only."""
        self.multiprocessors = self._attribute(MULTIPROCESSORS)
        self.is_under_mps = bool(self._attribute(_MPS))

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device, as the driver counts them. Raises: CudaError, CudaLost."""
        free, total = self.driver.call("cuMemGetInfo")
        return int(free), int(total)

    def flush_peer_writes(self) -> None:
        """Make what peers wrote by GPUDirect RDMA visible to kernels (GPUs whose writes are not ordered by the owner).
        Raises: DeviceError."""
        if not self.needs_flush:
            return
        if not self.can_flush:
            raise DeviceError(f"{self.uuid}: the driver can neither order nor flush what peers write")
        api = self.driver.api
        self.driver.call(
            "cuFlushGPUDirectRDMAWrites", api.CUflushGPUDirectRDMAWritesTarget(0),
            api.CUflushGPUDirectRDMAWritesScope(_ORDERED_BY_OWNER),
        )  # fmt: skip

    def synchronize_others(self) -> None:
        """Wait for the work on the other devices that kernels have used. Raises: CudaError, CudaLost: it failed."""
        for device in list(self._unused):
            _, is_active = self.driver.call("cuDevicePrimaryCtxGetState", device)
            if is_active:
                self._others[device] = self.driver.call("cuDevicePrimaryCtxRetain", device)
                self._unused.remove(device)
        if not self._others:
            return
        try:
            for context in self._others.values():
                self.driver.call("cuCtxSetCurrent", context)
                self.driver.call("cuCtxSynchronize")
        finally:
            self.driver.call("cuCtxSetCurrent", self._context)

    def add_block(self, base: int, nbytes: int) -> int:
        """Register an allocation; returns the address that code in this process uses for it: the device's, or on the
        emulator the host's view."""
        seen = self.driver.host_address(base) if self.driver.is_emulated else base
        self._views.append((seen, base, nbytes))
        return seen

    def drop_block(self, base: int) -> None:
        """Forget an allocation. Idempotent."""
        self._views = [view for view in self._views if view[1] != base]

    def on_device(self, pointer: int) -> int:
        """The device's address of what `add_block` gave an address for; any other pointer as it is."""
        for seen, base, nbytes in self._views:
            if 0 <= pointer - seen < nbytes:
                return base + pointer - seen
        return pointer

    def close(self) -> None:
        """Release the context. The process's memory on the device is freed with it. Idempotent; errors are logged."""
        if self._context is None:
            return
        self._context = None
        for device in (*self._others, self._device):
            try:
                self.driver.call("cuDevicePrimaryCtxRelease", device)
            except DeviceError as fault:
                logger.info("context of %s: %s", self.uuid, fault)

    def _devices(self, wanted: list[UUID]) -> list[Any]:
        """CUDA's devices, which must be these, in this order."""
        try:
            self.driver.call("cuInit", 0)
            count = self.driver.call("cuDeviceGetCount")
        except CudaError as fault:
            if fault.code == NOT_INITIALIZED:
                raise DeviceError(
                    "the process that forked this one had used CUDA: import the libraries before `Helper.run`, but"
                    " call nothing of them that initialises a GPU"
                ) from fault
            raise
        if count != len(wanted):
            raise DeviceError(f"CUDA shows {count} devices for {self.uuid}, not {len(wanted)}")
        devices = [self.driver.call("cuDeviceGet", number) for number in range(count)]
        if [self.driver.uuid(device) for device in devices] != wanted:
            raise DeviceError(f"CUDA shows another device than {self.uuid}")
        return devices

    def _attribute(self, number: int) -> int:
        return self.driver.attribute(self._device, number)
