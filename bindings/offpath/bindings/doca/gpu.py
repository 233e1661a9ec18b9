"""GPU memory by GPUNetIO, for when DOCA itself allocates it and exports it as a dma-buf.

Never run on a GPU, only on the emulator, which uses host memory. Whether DOCA's allocation lands in a MIG instance is
unproven, so workers allocate by CUDA and only export by DOCA (`offpath.bindings.doca.lane`).
"""

from __future__ import annotations

import os
from ctypes import byref

from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_gpu import MEM_TYPE_GPU
from offpath.bindings.doca._abi_types import ADDRESS, HANDLE, INT
from offpath.bindings.doca.handles import Handle
from offpath.bindings.doca.load import Library


class Gpu(Handle):
    """A GPU by its PCI address. A CUDA context must exist in this process."""

    def __init__(self, doca: Library, pci: str) -> None:
        """Raises: DocaError."""
        made = HANDLE()
        doca.call("doca_gpu_create", pci.encode(), byref(made))
        super().__init__(doca, "GPU", made.value, "doca_gpu_destroy")


class GpuMemory(Handle):
    """A range of a GPU's memory. ``address`` is in the GPU's address space."""

    def __init__(self, gpu: Gpu, nbytes: int, alignment: int) -> None:
        """``nbytes`` is a multiple of ``alignment``, a power of two. Raises: DocaError."""
        made = ADDRESS()
        gpu.doca.call("doca_gpu_mem_alloc", gpu.pointer, nbytes, alignment, MEM_TYPE_GPU, byref(made), None)
        super().__init__(gpu.doca, "GPU memory range", made.value, "doca_gpu_mem_free", gpu)
        self._gpu = gpu
        self.address = self.pointer
        self.nbytes = nbytes
        self._dmabuf = -1

    def dmabuf(self) -> int | None:
        """Its dma-buf, which the memory owns; None: this driver supports none. Raises: DocaError."""
        if self._dmabuf < 0:
            fd = INT(-1)
            status = self.doca.call(
                "doca_gpu_dmabuf_fd", self._gpu.pointer, self.pointer, self.nbytes, byref(fd),
                expect=(Status.NOT_SUPPORTED,),
            )  # fmt: skip
            if status:
                return None
            self._dmabuf = fd.value
        return self._dmabuf

    def _destroy(self) -> None:
        self.doca.call("doca_gpu_mem_free", self._gpu.pointer, self.pointer)
        if self._dmabuf >= 0:
            os.close(self._dmabuf)
            self._dmabuf = -1
