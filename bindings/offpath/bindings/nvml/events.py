"""Xid events, by which the driver reports critical errors. NVML delivers them per GPU; the event names the instance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offpath.bindings.errors import NvmlError
from offpath.bindings.nvml import _check
from offpath.bindings.nvml.records import XidEvent
from offpath.bindings.nvml.session import Nvml

_XID: Final = 8
"""nvmlEventTypeXidCriticalError."""
_NONE: Final = 0xFFFF_FFFF


class XidEvents:
    """The events of some GPUs, from the moment of construction."""

    def __init__(self, nvml: Nvml, gpus: Iterable[str]) -> None:
        """A GPU that reports no events is left out, as in `watched`. Raises: DeviceError."""
        self._nvml = nvml
        self._set = nvml.call("nvmlEventSetCreate")
        self.watched: tuple[str, ...] = ()
        for gpu in gpus:
            try:
                nvml.call("nvmlDeviceRegisterEvents", nvml.device(gpu), _XID, self._set)
            except NvmlError as fault:
                if fault.code != _check.NOT_SUPPORTED:
                    self.close()
                    raise
            else:
                self.watched += (gpu,)

    def wait(self, timeout_ms: int) -> XidEvent | None:
        """The next event; None: none within ``timeout_ms``. Blocks with the GIL released. Raises: DeviceError."""
        try:
            event = self._nvml.call("nvmlEventSetWait_v2", self._set, timeout_ms)
        except NvmlError as fault:
            if fault.code == _check.TIMEOUT:
                return None
            raise
        gpu: str = self._nvml.call("nvmlDeviceGetUUID", event.device)
        instances = (int(event.gpuInstanceId), int(event.computeInstanceId))
        of_gpu, of_compute = (None if each == _NONE else each for each in instances)
        return XidEvent(gpu, int(event.eventData), of_gpu, of_compute)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._set is not None:
            events, self._set = self._set, None
            try:
                self._nvml.call("nvmlEventSetFree", events)
            except NvmlError:
                return  # the driver is gone
