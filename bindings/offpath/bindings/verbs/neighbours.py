"""Whether an address answers on our link, found out without waiting for long.

To connect a queue pair the kernel resolves the peer's address, a second long if nobody answers, and pyverbs holds the
interpreter meanwhile. Whoever names an address that nobody has must not stop a daemon for so long.
"""

from __future__ import annotations

import contextlib
import socket
import time
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

WAIT_S: Final = 0.1
_TABLE: Final = Path("/proc/self/net/arp")  # /proc/net is hidden where /proc shows processes only (ProcSubset=pid)
_COMPLETE: Final = 0x2  # ATF_COM, include/uapi/linux/if_arp.h
_DISCARD_PORT: Final = 9
_LOOK_S: Final = 0.001


def answers(address: IPv4Address, ours: IPv4Address, wait_s: float = WAIT_S, table: Path = _TABLE) -> bool:
    """It is an address of this machine, or of a neighbour that the kernel knows or gets to know by then."""
    if _is_local(address) or _is_known(address, table):
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        with contextlib.suppress(OSError):  # no route: nobody will answer
            sock.bind((str(ours), 0))
            sock.sendto(b"", (str(address), _DISCARD_PORT))  # what is sent must be addressed first
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if _is_known(address, table):
                return True
            time.sleep(_LOOK_S)
    return False


def _is_local(address: IPv4Address) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.bind((str(address), 0))
        except OSError:
            return False
    return not (address.is_multicast or address.is_unspecified or address.is_reserved)


def _is_known(address: IPv4Address, table: Path) -> bool:
    """Columns: address, hardware type, flags, hardware address, mask, device (proc(5), /proc/net/arp)."""
    for line in table.read_text("ascii").splitlines()[1:]:
        fields = line.split()
        if fields and fields[0] == str(address) and int(fields[2], 16) & _COMPLETE:
            return True
    return False
