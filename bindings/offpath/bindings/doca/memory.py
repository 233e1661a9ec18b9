"""Memory maps of DOCA devices: local memory, memory exported to a DPU, and memory imported from a host."""

from __future__ import annotations

import ctypes
from ctypes import byref

from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_mmap import LOCAL_READ_ONLY, LOCAL_READ_WRITE, PCI_READ_ONLY, PCI_READ_WRITE
from offpath.bindings.doca._abi_types import ADDRESS, HANDLE, SIZE, U32
from offpath.bindings.doca.device import Device
from offpath.bindings.doca.handles import Handle


class Mmap(Handle):
    """A range of memory, known to one device. Made by `ours`, `shared` and `imported`. DOCA refuses to close it while a
    buffer lies in it."""

    def __init__(self, device: Device, pointer: int | None) -> None:
        super().__init__(device.doca, "memory map", pointer, "doca_mmap_destroy", device)
        self._device = device
        self._view: memoryview | None = None
        self.address = 0
        self.nbytes = 0

    @classmethod
    def ours(cls, device: Device, view: memoryview, *, is_written: bool) -> Mmap:
        """Memory of this process, for copies on this device only. Keeps ``view``. Raises: DocaError, DeviceGone."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        made = cls._new(device, address, view.nbytes, LOCAL_READ_WRITE if is_written else LOCAL_READ_ONLY)
        made._view = view[:]
        return made

    @classmethod
    def shared(
        cls, device: Device, address: int, nbytes: int, *, is_written: bool, dmabuf: tuple[int, int] | None = None
    ) -> Mmap:
        """Memory that `export` makes accessible to the DPU; the caller keeps it alive. ``dmabuf``: descriptor, and the
        range's offset in it. Raises: DocaError, DeviceGone."""
        return cls._new(device, address, nbytes, PCI_READ_WRITE if is_written else PCI_READ_ONLY, dmabuf)

    @classmethod
    def imported(cls, device: Device, export: bytes) -> Mmap:
        """A host's export. ``address`` is the exporter's: never dereference it here. Raises: DocaError, DeviceGone."""
        made = HANDLE()
        device.doca.call("doca_mmap_create_from_export", None, export, len(export), device.pointer, byref(made))
        mmap = cls(device, made.value)
        try:
            mmap._read_range()
        except BaseException:
            mmap.close()
            raise
        return mmap

    @classmethod
    def _new(
        cls, device: Device, address: int, nbytes: int, permissions: int, dmabuf: tuple[int, int] | None = None
    ) -> Mmap:
        doca, made = device.doca, HANDLE()
        doca.call("doca_mmap_create", byref(made))
        mmap = cls(device, made.value)
        try:
            doca.call("doca_mmap_add_dev", mmap.pointer, device.pointer)
            doca.call("doca_mmap_set_permissions", mmap.pointer, permissions)
            if dmabuf is None:
                doca.call("doca_mmap_set_memrange", mmap.pointer, address, nbytes)
            else:
                fd, offset = dmabuf
                doca.call("doca_mmap_set_dmabuf_memrange", mmap.pointer, fd, address, offset, nbytes)
            doca.call("doca_mmap_start", mmap.pointer)
        except BaseException:
            mmap.close()
            raise
        mmap.address, mmap.nbytes = address, nbytes
        return mmap

    def export(self) -> bytes:
        """An export blob for this BlueField's DPU, valid until the map is closed. A secret: for the DPU's daemon only.

        Raises: DocaError, DeviceGone.
        """
        start, length = ADDRESS(), SIZE()
        self.doca.call("doca_mmap_export_pci", self.pointer, self._device.pointer, byref(start), byref(length))
        assert start.value, "DOCA returned neither an export nor an error"
        return ctypes.string_at(start.value, length.value)  # the map owns the original

    def buffers(self) -> int:
        """Number of buffers in it now. Raises: DocaError."""
        count = U32()
        self.doca.call("doca_mmap_get_num_bufs", self.pointer, byref(count))
        return count.value

    def _read_range(self) -> None:
        """Stays unknown if DOCA does not report it for an import; DOCA documents that only for RDMA."""
        start, length = ADDRESS(), SIZE()
        unavailable = (Status.BAD_STATE, Status.INVALID_VALUE, Status.NOT_SUPPORTED, Status.NOT_PERMITTED)
        if not self.doca.call("doca_mmap_get_memrange", self.pointer, byref(start), byref(length), expect=unavailable):
            self.address, self.nbytes = start.value or 0, length.value

    def _destroy(self) -> None:
        super()._destroy()
        if self._view is not None:
            self._view.release()
            self._view = None
