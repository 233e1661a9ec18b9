"""libdoca_common: descriptors of ranges, from which tasks are made (doca_buf.h, doca_buf_inventory.h).

``..._get_by_addr`` and ``..._get_by_data`` are inline functions of the header, so no library exports them. See
`offpath.bindings.doca.buffers`.
"""

from __future__ import annotations

from typing import Final

from offpath.bindings.doca._abi_types import (
    ADDRESS,
    HANDLE,
    OUT_HANDLE,
    OUT_SIZE,
    OUT_U16,
    OUT_U32,
    SIZE,
    STABLE,
    STATUS,
    Function,
)

FUNCTIONS: Final = (
    Function("doca_buf_inventory_create", STATUS, (SIZE, OUT_HANDLE), STABLE, "2.5"),
    Function("doca_buf_inventory_start", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_buf_inventory_destroy", STATUS, (HANDLE,), STABLE, "2.5"),
    Function(
        "doca_buf_inventory_buf_get_by_args", STATUS, (HANDLE, HANDLE, ADDRESS, SIZE, ADDRESS, SIZE, OUT_HANDLE),
        STABLE, "2.5",
    ),
    Function("doca_buf_inventory_get_num_elements", STATUS, (HANDLE, OUT_U32), STABLE, "2.5"),
    Function("doca_buf_inventory_get_num_free_elements", STATUS, (HANDLE, OUT_U32), STABLE, "2.5"),
    Function("doca_buf_dec_refcount", STATUS, (HANDLE, OUT_U16), STABLE, "2.5"),
    Function("doca_buf_get_data_len", STATUS, (HANDLE, OUT_SIZE), STABLE, "2.5"),
)  # fmt: skip
