"""Lists DOCA devices and selects one; representors, by which the DPU accesses functions of the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ctypes import byref
from dataclasses import dataclass
from enum import Enum
from typing import Final

from offpath.bindings.doca._abi_dev import IBDEV_NAME_BYTES, IFACE_NAME_BYTES, PCI_ADDR_BYTES, REP_FILTER_NET
from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_types import HANDLE, HANDLES, U8, U16, U32, U64
from offpath.bindings.doca.handles import Handle
from offpath.bindings.doca.load import Library
from offpath.bindings.errors import DeviceError, DocaMissing, DocaTooOld, NoDocaDevice

_NO: Final = (Status.NOT_SUPPORTED, Status.DRIVER)
_NAMELESS: Final = (Status.INVALID_VALUE, Status.OPERATING_SYSTEM, Status.NOT_FOUND, Status.NOT_SUPPORTED)


class Ability(Enum):
    """What a device is selected for."""

    COPY = "copy"
    """Copies between memory of this machine and a host's export: the DPU's side."""
    EXPORT = "export"
    """Lets a DPU access memory of this machine: the host's side."""
    SERVE = "serve"
    """Accepts Comch connections: the DPU's side."""
    CONNECT = "connect"
    """Connects by Comch: the host's side."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device of this machine. ``copy_bytes``: the largest copy in one task, 0 if it cannot copy."""

    pci: str
    ibdev: str
    netdev: str
    vhca: int | None
    abilities: frozenset[Ability]
    copy_bytes: int

    @property
    def able_to(self) -> str:
        """Its abilities as text."""
        return ", ".join(sorted(ability.value for ability in self.abilities))

    def __str__(self) -> str:
        names = ", ".join(name for name in (self.ibdev, self.netdev) if name)
        return f"{self.pci} ({names})" if names else self.pci


class Device(Handle):
    """An opened device. All objects made on it are closed with it."""

    def __init__(self, doca: Library, devinfo: int, info: DeviceInfo) -> None:
        """Open it. Use `open_device`, which provides ``devinfo``. Raises: DocaError."""
        opened = HANDLE()
        doca.call("doca_dev_open", devinfo, byref(opened))
        super().__init__(doca, "device", opened.value, "doca_dev_close")
        self.info = info

    @property
    def devinfo(self) -> int:
        """For capability queries; owned by the device, not by the list."""
        found: int = self.doca.value("doca_dev_as_devinfo", self.pointer)
        return found

    def limit(self, name: str) -> int:
        """A u32 limit from a ``..._cap_get_max_...`` function. Raises: DocaError."""
        value = U32()
        self.doca.call(name, self.devinfo, byref(value))
        return value.value


class Representor(Handle):
    """A function of the host, as the DPU accesses it."""

    def __init__(self, device: Device, devinfo: int, pci: str) -> None:
        """Open it. Use `open_representor`. Raises: DocaError."""
        opened = HANDLE()
        device.doca.call("doca_dev_rep_open", devinfo, byref(opened))
        super().__init__(device.doca, "representor", opened.value, "doca_dev_rep_close", device)
        self.pci = pci


def devices(doca: Library) -> list[DeviceInfo]:
    """All devices of this machine. Raises: DocaError."""
    with _listed(doca) as found:
        return [_info(doca, each) for each in found]


def open_device(doca: Library, ability: Ability, name: str = "") -> Device:
    """The device of that PCI address, RDMA device or network interface. Without a name: the only capable one.

    Refuses several that match: a cluster's transport must not depend on the order of names. Raises: NoDocaDevice,
    DocaError.
    """
    with ExitStack() as undo:
        with _listed(doca) as found:
            device = Device(doca, *_chosen(doca, [(each, _info(doca, each)) for each in found], ability, name))
            undo.callback(device.close)
        undo.pop_all()
        return device


def _chosen(doca: Library, known: list[tuple[int, DeviceInfo]], ability: Ability, name: str) -> tuple[int, DeviceInfo]:
    named = [(each, info) for each, info in known if not name or _is_called(doca, each, info, name)]
    able = [(each, info) for each, info in named if ability in info.abilities]
    request = f"to {ability.value}" + (f", named {name}" if name else "")
    if not able:
        found = "; ".join(f"{info} to {info.able_to or 'do nothing'}" for _, info in known)
        raise NoDocaDevice(
            f"no device {request}", f"there are {found}" if known else "DOCA lists none",
            check="`doca_caps --list-devs`; copies need a BlueField in DPU mode, and the host's side its function",
        )  # fmt: skip
    if len(able) > 1:
        listed = ", ".join(str(info) for _, info in able)
        raise NoDocaDevice(f"several devices {request}", listed, check="name one")
    return able[0]


def representors(device: Device) -> list[str]:
    """PCI addresses of the host's functions, as the host sees them. Raises: DocaError."""
    with _listed_representors(device) as found:
        return [_text(device.doca, "doca_devinfo_rep_get_pci_addr_str", each) for each in found]


def open_representor(device: Device, pci: str = "") -> Representor:
    """The host's function at that address; without one, the only function. Raises: NoDocaDevice, DocaError."""
    doca = device.doca
    with _listed_representors(device) as found:
        every = [(each, _text(doca, "doca_devinfo_rep_get_pci_addr_str", each)) for each in found]
        fitting = [(each, at) for each, at in every if not pci or _is_at(doca, "devinfo_rep", each, pci)]
        if len(fitting) != 1:
            raise NoDocaDevice(
                f"{'several representors' if fitting else 'no representor'} {pci}".rstrip(),
                f"there are {', '.join(at for _, at in every) or 'none'}",
                check="`doca_caps --list-rep-devs` on the DPU; the host's `lspci -D` shows the same addresses",
            )
        opened = Representor(device, *fitting[0])
    return opened


def shows_representors(device: Device) -> bool:
    """Whether the host's functions are visible here. Raises: DocaError."""
    return _is_supported(device.doca, "doca_devinfo_rep_cap_is_filter_net_supported", device.devinfo)


# -- within -----------------------------------------------------------------------------------------------------------
@contextmanager
def _listed(doca: Library) -> Iterator[list[int]]:
    """The list's elements are freed with it; objects opened from them stay."""
    every, count = HANDLES(), U32()
    if doca.call("doca_devinfo_create_list", byref(every), byref(count), expect=(Status.NOT_FOUND,)):
        yield []
        return
    try:
        yield [pointer for n in range(count.value) if (pointer := every[n])]
    finally:
        doca.call("doca_devinfo_destroy_list", every)


@contextmanager
def _listed_representors(device: Device) -> Iterator[list[int]]:
    doca, every, count = device.doca, HANDLES(), U32()
    doca.call("doca_devinfo_rep_create_list", device.pointer, REP_FILTER_NET, byref(every), byref(count))
    try:
        yield [pointer for n in range(count.value) if (pointer := every[n])]
    finally:
        doca.call("doca_devinfo_rep_destroy_list", every)


def _info(doca: Library, devinfo: int) -> DeviceInfo:
    abilities, copy_bytes = set(), 0
    copies = not doca.call("doca_dma_cap_task_memcpy_is_supported", devinfo, expect=_NO)
    if copies:
        most = U64()
        doca.call("doca_dma_cap_task_memcpy_get_max_buf_size", devinfo, byref(most))
        copy_bytes = most.value
    if copies and _is_supported(doca, "doca_mmap_cap_is_create_from_export_pci_supported", devinfo):
        abilities.add(Ability.COPY)
    if _is_supported(doca, "doca_mmap_cap_is_export_pci_supported", devinfo):
        abilities.add(Ability.EXPORT)
    for ability, role in ((Ability.SERVE, "server"), (Ability.CONNECT, "client")):
        try:
            if not doca.call(f"doca_comch_cap_{role}_is_supported", devinfo, expect=_NO):
                abilities.add(ability)
        except (DocaMissing, DocaTooOld):  # 2.5
            pass
    return DeviceInfo(
        pci=_text(doca, "doca_devinfo_get_pci_addr_str", devinfo),
        ibdev=_text(doca, "doca_devinfo_get_ibdev_name", devinfo, IBDEV_NAME_BYTES),
        netdev=_text(doca, "doca_devinfo_get_iface_name", devinfo, IFACE_NAME_BYTES),
        vhca=_vhca(doca, devinfo), abilities=frozenset(abilities), copy_bytes=copy_bytes,
    )  # fmt: skip


def _vhca(doca: Library, devinfo: int) -> int | None:
    if not doca.has("doca_devinfo_get_vhca_id"):
        return None
    found = U16()
    try:
        doca.call("doca_devinfo_get_vhca_id", devinfo, byref(found))
    except DeviceError:  # informational only
        return None
    return found.value


def _is_supported(doca: Library, name: str, devinfo: int) -> bool:
    yes = U8()
    return not doca.call(name, devinfo, byref(yes), expect=_NO) and bool(yes.value)


def _text(doca: Library, name: str, devinfo: int, nbytes: int = 0) -> str:
    """Without ``nbytes`` the function takes no size: a PCI address. The other names are optional."""
    room = ctypes.create_string_buffer(nbytes or PCI_ADDR_BYTES)
    if nbytes:
        return "" if doca.call(name, devinfo, room, nbytes, expect=_NAMELESS) else room.value.decode("ascii", "replace")
    doca.call(name, devinfo, room)
    return room.value.decode("ascii", "replace")


def _is_called(doca: Library, devinfo: int, info: DeviceInfo, name: str) -> bool:
    return name in (info.ibdev, info.netdev) or (":" in name and _is_at(doca, "devinfo", devinfo, name))


def _is_at(doca: Library, kind: str, devinfo: int, pci: str) -> bool:
    """DOCA compares, with or without the domain."""
    same = U8()
    name = f"doca_{kind}_is_equal_pci_addr"
    return not doca.call(name, devinfo, pci.encode(), byref(same), expect=(Status.INVALID_VALUE,)) and bool(same.value)
