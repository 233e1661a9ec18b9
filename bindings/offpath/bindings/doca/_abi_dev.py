"""libdoca_common: devices and representors (doca_dev.h)."""

from __future__ import annotations

from typing import Final

from offpath.bindings.doca._abi_types import (
    EXPERIMENTAL,
    HANDLE,
    HANDLES,
    INT,
    OUT_HANDLE,
    OUT_HANDLES,
    OUT_U8,
    OUT_U16,
    OUT_U32,
    STABLE,
    STATUS,
    TEXT,
    U32,
    Function,
)

PCI_ADDR_BYTES: Final = 13
IFACE_NAME_BYTES: Final = 256
IBDEV_NAME_BYTES: Final = 64
REP_FILTER_NET: Final = 2

FUNCTIONS: Final = (
    Function("doca_devinfo_create_list", STATUS, (OUT_HANDLES, OUT_U32), STABLE, "2.5"),
    Function("doca_devinfo_destroy_list", STATUS, (HANDLES,), STABLE, "2.5"),
    Function("doca_devinfo_get_pci_addr_str", STATUS, (HANDLE, TEXT), STABLE, "2.5"),
    Function("doca_devinfo_is_equal_pci_addr", STATUS, (HANDLE, TEXT, OUT_U8), STABLE, "2.5"),
    Function("doca_devinfo_get_ibdev_name", STATUS, (HANDLE, TEXT, U32), STABLE, "2.5"),
    Function("doca_devinfo_get_iface_name", STATUS, (HANDLE, TEXT, U32), STABLE, "2.5"),
    Function("doca_devinfo_get_vhca_id", STATUS, (HANDLE, OUT_U16), EXPERIMENTAL, "3.0"),
    Function("doca_dev_open", STATUS, (HANDLE, OUT_HANDLE), STABLE, "2.5"),
    Function("doca_dev_close", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_dev_as_devinfo", HANDLE, (HANDLE,), STABLE, "2.5"),
    Function("doca_devinfo_rep_create_list", STATUS, (HANDLE, INT, OUT_HANDLES, OUT_U32), STABLE, "2.5"),
    Function("doca_devinfo_rep_destroy_list", STATUS, (HANDLES,), STABLE, "2.5"),
    Function("doca_devinfo_rep_get_pci_addr_str", STATUS, (HANDLE, TEXT), STABLE, "2.5"),
    Function("doca_devinfo_rep_is_equal_pci_addr", STATUS, (HANDLE, TEXT, OUT_U8), STABLE, "2.5"),
    Function("doca_dev_rep_open", STATUS, (HANDLE, OUT_HANDLE), STABLE, "2.5"),
    Function("doca_dev_rep_close", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_devinfo_rep_cap_is_filter_net_supported", STATUS, (HANDLE, OUT_U8), STABLE, "2.5"),
)
