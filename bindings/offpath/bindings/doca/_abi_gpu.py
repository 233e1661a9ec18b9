"""libdoca_gpunetio: GPU memory, where the GPU's driver is (doca_gpunetio.h, all experimental)."""

from __future__ import annotations

from typing import Final

from offpath.bindings.doca._abi_types import (
    ADDRESS,
    ENUM,
    EXPERIMENTAL,
    HANDLE,
    OUT_ADDRESS,
    OUT_HANDLE,
    OUT_INT,
    SIZE,
    STATUS,
    TEXT,
    Function,
)

MEM_TYPE_GPU: Final = 0

FUNCTIONS: Final = (
    Function("doca_gpu_create", STATUS, (TEXT, OUT_HANDLE), EXPERIMENTAL, "3.0"),
    Function("doca_gpu_destroy", STATUS, (HANDLE,), EXPERIMENTAL, "3.0"),
    Function("doca_gpu_mem_alloc", STATUS, (HANDLE, SIZE, SIZE, ENUM, OUT_ADDRESS, OUT_ADDRESS), EXPERIMENTAL, "3.0"),
    Function("doca_gpu_mem_free", STATUS, (HANDLE, ADDRESS), EXPERIMENTAL, "3.0"),
    Function("doca_gpu_dmabuf_fd", STATUS, (HANDLE, ADDRESS, SIZE, OUT_INT), EXPERIMENTAL, "3.0"),
)
