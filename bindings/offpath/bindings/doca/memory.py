"""Memory as DOCA's devices reach it: ours, what we let a DPU reach, and what a host let us reach."""

from __future__ import annotations

import ctypes
from ctypes import byref

from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_mmap import LOCAL_READ_ONLY, LOCAL_READ_WRITE, PCI_READ_ONLY, PCI_READ_WRITE
from offpath.bindings.doca._abi_types import ADDRESS, HANDLE, SIZE, U32
from offpath.bindings.doca.device import Device
from offpath.bindings.doca.handles import Handle


class Mmap(Handle):
    """A range of memory, known to one device. Made by `ours`, `shared` and `imported`. DOCA refuses to close it while
    a buffer lies in it."""

    def __init__(self, device: Device, pointer: int | None) -> None:
        super().__init__(device.doca, "memory map", pointer, "doca_mmap_destroy", device)
        self._device = device
        self._view: memoryview | None = None
        self.address = 0
        self.nbytes = 0

    @classmethod
    def ours(cls, device: Device, view: memoryview, *, is_written: bool) -> Mmap:
        """Memory of this process, for copies on this device alone; ``view`` is kept. Raises: DocaError, DeviceGone."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        made = cls._new(device, address, view.nbytes, LOCAL_READ_WRITE if is_written else LOCAL_READ_ONLY)
        made._view = view[:]
        return made

    @classmethod
    def shared(
        cls, device: Device, address: int, nbytes: int, *, is_written: bool, dmabuf: tuple[int, int] | None = None
    ) -> Mmap:
        """Memory that the DPU may reach by `export`; the caller keeps it. ``dmabuf``: its descriptor, and where the
        range starts in it. Raises: DocaError, DeviceGone."""
        return cls._new(device, address, nbytes, PCI_READ_WRITE if is_written else PCI_READ_ONLY, dmabuf)

    @classmethod
    def imported(cls, device: Device, export: bytes) -> Mmap:
        """What a host exported. ``address`` is the exporter's, and never to be used here. Raises: DocaError,
        DeviceGone."""
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
        """What lets this BlueField's DPU in until the map is closed. It is a key: for the DPU's daemon alone.

        Raises: DocaError, DeviceGone.
        """
        start, length = ADDRESS(), SIZE()
        self.doca.call("doca_mmap_export_pci", self.pointer, self._device.pointer, byref(start), byref(length))
        assert start.value, "DOCA exported nothing and did not say so"
        return ctypes.string_at(start.value, length.value)  # the original is the map's

    def buffers(self) -> int:
        """How many lie in it now. Raises: DocaError."""
        count = U32()
        self.doca.call("doca_mmap_get_num_bufs", self.pointer, byref(count))
        return count.value

    def _read_range(self) -> None:
        """Stays unknown where DOCA does not tell it of what was imported: that it does is documented for RDMA only."""
        start, length = ADDRESS(), SIZE()
        untold = (Status.BAD_STATE, Status.INVALID_VALUE, Status.NOT_SUPPORTED, Status.NOT_PERMITTED)
        if not self.doca.call("doca_mmap_get_memrange", self.pointer, byref(start), byref(length), expect=untold):
            self.address, self.nbytes = start.value or 0, length.value

    def _destroy(self) -> None:
        super()._destroy()
        if self._view is not None:
            self._view.release()
            self._view = None
