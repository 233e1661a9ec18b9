"""Inventories of buffers. A task takes one buffer for its source and one for its target.

Reimplements the header's inline functions over ``..._get_by_args``.
"""

from __future__ import annotations

from ctypes import byref

from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_types import HANDLE, SIZE, U32
from offpath.bindings.doca.handles import Handle
from offpath.bindings.doca.load import Library
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.errors import DeviceError, DocaError


class Inventory(Handle):
    """At most ``elements`` buffers. Buffers are raw DOCA pointers: they live for one task, on the request path."""

    def __init__(self, doca: Library, elements: int, *parents: Handle) -> None:
        """Make and start it. Raises: DocaError."""
        made = HANDLE()
        doca.call("doca_buf_inventory_create", elements, byref(made))
        super().__init__(doca, "buffer inventory", made.value, "doca_buf_inventory_destroy", *parents)
        self._unreleased: list[int] = []
        try:
            doca.call("doca_buf_inventory_start", self.pointer)
        except BaseException:
            self.close()
            raise

    def by_data(self, mmap: Mmap, address: int, nbytes: int) -> int | None:
        """A buffer full of data: a source. None: all are in use. Raises: DocaError: it exceeds the memory."""
        return self._get(mmap, address, nbytes, nbytes)

    def by_addr(self, mmap: Mmap, address: int, nbytes: int) -> int | None:
        """An empty buffer: a target. None: all are in use. Raises: DocaError: it exceeds the memory."""
        return self._get(mmap, address, nbytes, 0)

    def release(self, buffer: int) -> None:
        """Return a buffer to the inventory. Raises: DocaError: DOCA refused; `close` tries again."""
        try:
            self.doca.call("doca_buf_dec_refcount", buffer, None)
        except DeviceError:
            self._unreleased.append(buffer)
            raise

    def data_bytes(self, buffer: int) -> int:
        """Length of the data in a buffer; for a target, of what was copied. Raises: DocaError."""
        count = SIZE()
        self.doca.call("doca_buf_get_data_len", buffer, byref(count))
        return count.value

    @property
    def size(self) -> int:
        """Buffers in use and free."""
        return self._count("doca_buf_inventory_get_num_elements")

    @property
    def free(self) -> int:
        """Buffers not in use."""
        return self._count("doca_buf_inventory_get_num_free_elements")

    def _count(self, name: str) -> int:
        count = U32()
        self.doca.call(name, self.pointer, byref(count))
        return count.value

    def _get(self, mmap: Mmap, address: int, nbytes: int, data_bytes: int) -> int | None:
        made = HANDLE()
        status = self.doca.call(
            "doca_buf_inventory_buf_get_by_args", self.pointer, mmap.pointer, address, nbytes, address, data_bytes,
            byref(made), expect=(Status.NO_MEMORY,),
        )  # fmt: skip
        if status:
            return None
        if not made.value:
            raise DocaError("take a buffer", "DOCA returned neither a buffer nor an error")
        return made.value

    def _destroy(self) -> None:
        while self._unreleased:
            self.doca.call("doca_buf_dec_refcount", self._unreleased[-1], None)
            self._unreleased.pop()
        super()._destroy()
