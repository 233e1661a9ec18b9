"""Checks that a peer's link-layer address is known, without waiting for long.

To connect a queue pair the kernel resolves the peer's address, for a second if nobody answers, and pyverbs holds the
GIL meanwhile. A peer that names an unused address must not stop a daemon for so long.
"""

from __future__ import annotations

import contextlib
import socket
import time
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from offpath.bindings.errors import VerbsError

WAIT_S: Final = 0.1
_TABLES: Final = Path("/proc/self/net")  # /proc/net is hidden where /proc shows processes only (ProcSubset=pid)
_COMPLETE: Final = 0x2  # ATF_COM, include/uapi/linux/if_arp.h
_UP, _GATEWAY = 0x1, 0x2  # RTF_UP, RTF_GATEWAY, include/uapi/linux/route.h
_DISCARD_PORT: Final = 9
_LOOK_S: Final = 0.001


def ipv4_of(gid: str) -> IPv4Address:
    """The address that packets for this GID are routed to. Raises: VerbsError: not a GID of RoCEv2 over IPv4."""
    mapped = IPv6Address(gid).ipv4_mapped
    if mapped is None or mapped.is_multicast or mapped.is_unspecified or mapped.is_loopback:
        raise VerbsError(f"connect to {gid}", "not a GID of RoCEv2 over IPv4")
    return mapped


def resolve(address: IPv4Address, ours: IPv4Address) -> None:
    """Make the kernel resolve it, by sending a datagram there. Does not block; raises nothing."""
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_INET, kind) as sock, contextlib.suppress(OSError):  # no route: nobody will answer
        sock.bind((str(ours), 0))
        sock.sendto(b"", (str(address), _DISCARD_PORT))


def is_known(address: IPv4Address, tables: Path = _TABLES) -> bool:
    """It is an address of this machine, or its link-layer address, or that of its gateway, is resolved."""
    if _is_local(address):
        return True
    known = _resolved(tables)
    return str(address) in known or _gateway(address, tables) in known


def answers(address: IPv4Address, ours: IPv4Address, wait_s: float = WAIT_S, tables: Path = _TABLES) -> bool:
    """It is known, or becomes known within ``wait_s``. Blocks that long."""
    if is_known(address, tables):
        return True
    resolve(address, ours)
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        if is_known(address, tables):
            return True
        time.sleep(_LOOK_S)
    return False


def _is_local(address: IPv4Address) -> bool:
    """Only an address of this machine can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.bind((str(address), 0))
        except OSError:
            return False
    return not (address.is_multicast or address.is_unspecified or address.is_reserved)


def _resolved(tables: Path) -> set[str]:
    """Columns: address, hardware type, flags, hardware address, mask, device (proc(5), /proc/net/arp)."""
    rows = [line.split() for line in (tables / "arp").read_text("ascii").splitlines()[1:]]
    return {row[0] for row in rows if row and int(row[2], 16) & _COMPLETE}


def _gateway(address: IPv4Address, tables: Path) -> str:
    """Gateway of the most specific route in the main table (proc(5), /proc/net/route: hexadecimal, network byte order).
    Empty: the address is on-link or unreachable."""
    closest, found = -1, ""
    for line in (tables / "route").read_text("ascii").splitlines()[1:]:
        row = line.split()
        network, gateway, mask = (socket.ntohl(int(row[column], 16)) for column in (1, 2, 7))
        flags = int(row[3], 16)
        if flags & _UP and int(address) & mask == network and mask > closest:
            closest, found = mask, str(IPv4Address(gateway)) if flags & _GATEWAY else ""
    return found
