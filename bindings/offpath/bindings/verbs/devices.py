"""Selects the RDMA port and its GID from sysfs, without opening a device; reads the limits of a device.

A RoCEv2 connection names its ends by GIDs. The GID of an IPv4 address is that address mapped into IPv6 (IBTA annex
A17). Its index depends on the order in which the interface got its addresses, so it is looked up each time and never
configured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from itertools import count
from pathlib import Path
from typing import Final

from offpath.bindings.errors import GidMissing, NoRdmaDevice, PortDown
from offpath.bindings.verbs.library import attempt, library

SYSFS: Final = Path("/sys")
_NO_GID: Final = IPv6Address(0).exploded
_ATTRIBUTE_BYTES: Final = 4096
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"


@dataclass(frozen=True, slots=True)
class Gid:
    """A filled entry of a port's GID table. ``kind`` and ``netdev`` are the kernel's strings."""

    index: int
    address: IPv6Address
    kind: str
    netdev: str

    @property
    def ipv4(self) -> IPv4Address | None:
        """The address to which packets for this GID are routed; None unless it is RoCEv2 over IPv4."""
        return self.address.ipv4_mapped if self.kind == "RoCE v2" else None


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA device. ``pci``: the bridges from the root to the device; empty for software devices."""

    device: str
    number: int
    state: str
    gids: tuple[Gid, ...]
    pci: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.device}/{self.number}"

    @property
    def is_active(self) -> bool:
        """It can carry traffic."""
        return self.state == "ACTIVE"

    @property
    def usable_gids(self) -> tuple[Gid, ...]:
        """The GIDs that a connection can use."""
        return tuple(gid for gid in self.gids if gid.ipv4 is not None)


@dataclass(frozen=True, slots=True)
class Choice:
    """A port and the GID to connect by."""

    port: Port
    gid: Gid


def ports(sysfs: Path = SYSFS, gids_of: str | None = None) -> list[Port]:
    """All ports of all RDMA devices that this process may see, by name. Blocks for some milliseconds.

    ``gids_of``: read only this device's GID tables, which take nearly all of the time; other ports have no GIDs then.
    """
    return [_port(folder, sysfs, gids_of) for folder in sorted(sysfs.glob("class/infiniband/*/ports/*"))]


def choose(
    *, device: str | None = None, netdev: str | None = None, near: str | None = None, sysfs: Path = SYSFS
) -> Choice:
    """The port of this RDMA device, over this network interface, nearest to this PCI address; each is optional.

    Refuses several ports that match equally: a cluster's transport must not depend on the order of names. Raises:
    NoRdmaDevice, PortDown, GidMissing.
    """
    found = ports(sysfs, gids_of=device)
    if not found:
        raise NoRdmaDevice("the kernel lists no RDMA device")
    fitting = [
        port for port in found if device in (None, port.device) and (netdev is None or netdev in _netdevs(sysfs, port))
    ]
    wanted = ", ".join(
        f"{name} {value}" for name, value in (("device", device), ("interface", netdev), ("near", near)) if value
    )
    if not fitting:
        raise NoRdmaDevice(f"no port for {wanted}; there are {_listed(found)}")
    up = [port for port in fitting if port.is_active]
    if not up:
        raise PortDown(f"{_listed(fitting)}: not ACTIVE")
    named = [port for port in up if _gid(port, netdev) is not None]
    if not named:
        raise GidMissing(f"{_listed(up)}: no GID of RoCEv2 over IPv4")
    if near is not None:
        place = pci_path(near, sysfs)
        closest = max(shared_bridges(port.pci, place) for port in named)
        named = [port for port in named if shared_bridges(port.pci, place) == closest]
    if len(named) > 1:
        raise NoRdmaDevice(f"several ports fit ({_listed(named)}): name a device or a network interface")
    gid = _gid(named[0], netdev)
    assert gid is not None
    return Choice(named[0], gid)


def _gid(port: Port, netdev: str | None) -> Gid | None:
    return next((gid for gid in port.usable_gids if netdev in (None, gid.netdev)), None)


def _netdevs(sysfs: Path, port: Port) -> set[str]:
    """Interfaces of the port's GIDs, and the device's own: an interface that is down may have no GID."""
    of_gids = {gid.netdev for gid in port.gids}
    folder = sysfs / "class" / "infiniband" / port.device
    of_driver = {path.name for path in folder.glob("device/net/*")} | {_read_sysfs(folder / "parent")}  # for rdma_rxe
    return of_gids | of_driver


def _listed(listed: list[Port]) -> str:
    return ", ".join(f"{port} {port.state}" for port in listed)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the device. ``page_sizes``: a mask with a bit for each size of memory page that it maps."""

    page_sizes: int
    message_bytes: int
    mtu_bytes: int
    queue_pairs: int
    work_requests: int


def limits(port: Port) -> Limits:
    """Query the device, which is opened and closed. Raises: VerbsMissing, VerbsError."""
    verbs = library()
    with attempt(f"open {port.device}", lambda: verbs.device.Context(name=port.device)) as context:
        device = attempt(f"query {port.device}", context.query_device)
        found = attempt(f"query {port}", lambda: context.query_port(port.number))
        return Limits(
            page_sizes=device.page_size_cap,
            message_bytes=found.max_msg_sz,
            mtu_bytes=128 << found.active_mtu,  # enum ibv_mtu: 1 is 256, 5 is 4096
            queue_pairs=device.max_qp,
            work_requests=device.max_qp_wr,
        )


# -- sysfs --------------------------------------------------------------------------------------------------------
def _port(folder: Path, sysfs: Path, gids_of: str | None) -> Port:
    device = folder.parents[1]
    return Port(
        device=device.name,
        number=int(folder.name),
        state=_read_sysfs(folder / "state").partition(": ")[2],
        gids=tuple(_gids(folder)) if gids_of in (None, device.name) else (),
        pci=_bridges(device / "device", sysfs) if (device / "device").exists() else (),
    )


def _gids(folder: Path) -> Iterator[Gid]:
    """The filled entries. A table has hundreds of entries, nearly all empty, and the kernel queries the device for
    each. Paths are text: one object per entry takes longer than the entry's read."""
    for index in count():
        text = _read_sysfs(f"{folder}/gids/{index}")
        if not text:
            return
        if text != _NO_GID:
            kind, netdev = (_read_sysfs(f"{folder}/gid_attrs/{name}/{index}") for name in ("types", "ndevs"))
            yield Gid(index, IPv6Address(text), kind, netdev)


def _read_sysfs(path: Path | str) -> str:
    """The attribute's text; empty where the kernel has none, as for an entry that is being removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _ATTRIBUTE_BYTES).decode().strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


# -- PCI ----------------------------------------------------------------------------------------------------------
def gpus(sysfs: Path = SYSFS) -> list[str]:
    """PCI addresses of the NVIDIA GPUs of this machine."""
    return [
        folder.name
        for folder in sorted(sysfs.glob("bus/pci/devices/*"))
        if _read_sysfs(folder / "vendor") == _NVIDIA and _read_sysfs(folder / "class").startswith(_DISPLAY_CLASS)
    ]


def pci_path(address: str, sysfs: Path = SYSFS) -> tuple[str, ...]:
    """The bridges from the root to a PCI device. Raises: NoRdmaDevice: the device does not exist."""
    link = sysfs / "bus" / "pci" / "devices" / address
    if not link.exists():
        raise NoRdmaDevice(f"no PCI device {address} (write it as `lspci -D` does)")
    return _bridges(link, sysfs)


def _bridges(link: Path, sysfs: Path) -> tuple[str, ...]:
    steps = os.path.relpath(link.resolve(), (sysfs / "devices").resolve()).split(os.sep)
    return tuple(steps) if steps[0].startswith("pci") else ()


def shared_bridges(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Number of path elements from the root that two devices share. 0: different roots; 1: the root only; more: a
    switch."""
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared
