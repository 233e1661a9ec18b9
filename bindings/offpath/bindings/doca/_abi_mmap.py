"""libdoca_common: memory that devices may access (doca_mmap.h)."""

from __future__ import annotations

from typing import Final

from offpath.bindings.doca._abi_types import (
    ADDRESS,
    HANDLE,
    INT,
    OUT_ADDRESS,
    OUT_HANDLE,
    OUT_SIZE,
    OUT_U8,
    OUT_U32,
    OUT_U64,
    SIZE,
    STABLE,
    STATUS,
    U32,
    Function,
)

LOCAL_READ_ONLY: Final = 0
LOCAL_READ_WRITE: Final = 1
PCI_READ_ONLY: Final = 16
PCI_READ_WRITE: Final = 32

FUNCTIONS: Final = (
    Function("doca_mmap_create", STATUS, (OUT_HANDLE,), STABLE, "2.5"),
    Function("doca_mmap_destroy", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_mmap_start", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_mmap_add_dev", STATUS, (HANDLE, HANDLE), STABLE, "2.5"),
    Function("doca_mmap_set_memrange", STATUS, (HANDLE, ADDRESS, SIZE), STABLE, "2.5"),
    Function("doca_mmap_set_dmabuf_memrange", STATUS, (HANDLE, INT, ADDRESS, SIZE, SIZE), STABLE, "2.5"),
    Function("doca_mmap_get_memrange", STATUS, (HANDLE, OUT_ADDRESS, OUT_SIZE), STABLE, "2.5"),
    Function("doca_mmap_set_permissions", STATUS, (HANDLE, U32), STABLE, "2.5"),
    Function("doca_mmap_get_num_bufs", STATUS, (HANDLE, OUT_U32), STABLE, "2.5"),
    Function("doca_mmap_export_pci", STATUS, (HANDLE, HANDLE, OUT_ADDRESS, OUT_SIZE), STABLE, "2.5"),
    Function("doca_mmap_create_from_export", STATUS, (OUT_U64, ADDRESS, SIZE, HANDLE, OUT_HANDLE), STABLE, "2.5"),
    Function("doca_mmap_cap_is_export_pci_supported", STATUS, (HANDLE, OUT_U8), STABLE, "2.5"),
    Function("doca_mmap_cap_is_create_from_export_pci_supported", STATUS, (HANDLE, OUT_U8), STABLE, "2.5"),
)
