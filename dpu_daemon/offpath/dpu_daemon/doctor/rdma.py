"""Checks RDMA: devices, ports, addresses, library, limits. Without RDMA there is one note: loopback needs none."""

from __future__ import annotations

import mmap
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from offpath.bindings.errors import VerbsError, VerbsMissing
from offpath.bindings.verbs import library
from offpath.bindings.verbs.devices import SYSFS, Port, gpus, limits, pci_path, ports, shared_bridges
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.doctor.findings import Finding, Severity, ok

_LITTLE_MEMLOCK: Final = 64 << 20
_CAP_IPC_LOCK: Final = 1 << 14
_KIB, _MIB = 10, 20


def check_rdma(config: DaemonConfig | None, sysfs: Path = SYSFS) -> Iterator[Finding]:
    """Checks every port, then what all of them share."""
    found = ports(sysfs)
    if not found:
        yield Finding(
            "rdma", Severity.NOTE, "this kernel shows no RDMA device: requests can use loopback only",
            "on a machine with a card: load its driver (mlx5_ib); `rdma link` must list it",
        )  # fmt: skip
        return
    yield ok("rdma", ", ".join(map(str, found)))
    for port in found:
        yield from _port(port)
    yield from _device_limits(found)
    if config is None:  # else `check_limits` compares the configuration's sum
        yield _memlock()
    for address in gpus(sysfs):
        yield _nearest(address, found, sysfs)


def _port(port: Port) -> Iterator[Finding]:
    netdevs = sorted({gid.netdev for gid in port.gids if gid.netdev}) or ["NETDEV"]
    if port.is_active:
        yield ok("rdma-port", f"{port} is ACTIVE")
    else:
        yield Finding(
            "rdma-port", Severity.WARNING, f"{port} is {port.state}: it carries no traffic",
            f"ip link set {netdevs[0]} up; then look at its cable and switch",
        )  # fmt: skip
    if not port.usable_gids:
        kinds = ", ".join(f"{gid.index}: {gid.address} {gid.kind}" for gid in port.gids) or "an empty table"
        yield Finding(
            "rdma-gid", Severity.WARNING, f"{port} has no GID of RoCEv2 over IPv4, but {kinds}",
            f"ip addr add ADDRESS dev {netdevs[0]}",
        )  # fmt: skip
    for gid in port.usable_gids:
        yield ok("rdma-gid", f"{port}: index {gid.index} is {gid.ipv4} on {gid.netdev}")


def _device_limits(found: list[Port]) -> Iterator[Finding]:
    for port in found:
        try:
            allowed = limits(port)
        except VerbsMissing as fault:
            fix = "apt-get install python3-pyverbs, and run offpath with the distribution's Python (docs/rdma.md)"
            yield Finding("rdma-library", Severity.WARNING, str(fault), fix)
            return
        except VerbsError as fault:
            yield Finding("rdma-limits", Severity.WARNING, str(fault), "let this user open /dev/infiniband/uverbs*")
            continue
        if not allowed.page_sizes & mmap.PAGESIZE:
            yield Finding(
                "rdma-limits", Severity.WARNING, f"{port} does not map pages of {mmap.PAGESIZE} bytes, the kernel's",
                "boot a kernel with another page size, or use another device",
            )  # fmt: skip
            continue
        yield ok(
            "rdma-limits",
            f"{port} maps pages of {mmap.PAGESIZE} bytes, MTU {allowed.mtu_bytes},"
            f" messages up to {allowed.message_bytes >> _KIB} KiB, {allowed.queue_pairs} queue pairs",
        )
    yield _library()


def _library() -> Finding:
    found = library.version()
    if found is None:
        return ok("rdma-library", "pyverbs, of an unknown release")
    if found[0] < library.OLDEST:
        return Finding(
            "rdma-library", Severity.WARNING, f"pyverbs {found[0]}.{found[1]} is older than any tested release",
            f"rdma-core {library.OLDEST} or later",
        )  # fmt: skip
    return ok("rdma-library", f"pyverbs {found[0]}.{found[1]}")


def _memlock() -> Finding:
    allowed, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if allowed == resource.RLIM_INFINITY or _may_pin():
        return ok("memlock", "nothing limits what an RDMA device may pin for this process")
    if allowed < _LITTLE_MEMLOCK:
        return Finding(
            "memlock", Severity.WARNING, f"RLIMIT_MEMLOCK is {allowed >> _KIB} KiB: no more can be registered",
            "LimitMEMLOCK= in the unit; `offpath doctor --memlock --config FILE` computes it",
        )  # fmt: skip
    return ok("memlock", f"{allowed >> _MIB} MiB may be registered")


def _may_pin() -> bool:
    """Whether the process has CAP_IPC_LOCK, which lifts the limit."""
    capabilities = re.search(r"^CapEff:\s+([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return capabilities is not None and bool(int(capabilities[1], 16) & _CAP_IPC_LOCK)


def _nearest(address: str, found: list[Port], sysfs: Path) -> Finding:
    place = pci_path(address, sysfs)
    on_pci = [port for port in found if port.pci]
    if not on_pci:
        return Finding(
            "rdma-gpu", Severity.NOTE, f"GPU {address}: no RDMA port of this machine is on PCI",
            "none of them can write into its memory: data goes through the host's",
        )  # fmt: skip
    shared, nearest = max(((shared_bridges(port.pci, place), port) for port in on_pci), key=lambda pair: pair[0])
    if shared > 1:
        return ok("rdma-gpu", f"GPU {address}: {nearest} is below the same bridge")
    if shared == 1:
        return Finding(
            "rdma-gpu", Severity.NOTE, f"GPU {address}: {nearest}, the nearest port, shares only the PCI root with it",
            "slots below one PCIe switch are faster, if the machine has them",
        )  # fmt: skip
    return Finding(
        "rdma-gpu", Severity.WARNING, f"GPU {address}: no RDMA port shares a PCI root with it",
        "move the card to a slot of the GPU's socket: writes between sockets are slow, or impossible",
    )  # fmt: skip
