"""Whether a peer's link-layer address is known. Connecting a queue pair waits for it in the kernel, with the
interpreter locked, for a second if nobody answers: so it is asked for before, and waited for without blocking.
"""

from __future__ import annotations

import contextlib
import socket
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from offpath.bindings.errors import VerbsError
from offpath.bindings.verbs.devices import Choice

PROC: Final = Path("/proc/net")
_DISCARD: Final = 9
_COMPLETE: Final = 0x2  # ATF_COM
_UP_GATEWAY: Final = 0x3  # RTF_UP | RTF_GATEWAY


def ipv4_of(gid: str) -> IPv4Address:
    """The address that packets for this GID are routed to. Raises: VerbsError: it is none of RoCEv2 over IPv4."""
    mapped = IPv6Address(gid).ipv4_mapped
    if mapped is None or mapped.is_multicast or mapped.is_unspecified or mapped.is_loopback:
        raise VerbsError(f"connect to {gid}", "no GID of RoCEv2 over IPv4")
    return mapped


def ask(choice: Choice, peer: IPv4Address) -> None:
    """Have the kernel find it out: send an empty datagram there. Does not block; raises nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        sock.bind((str(choice.gid.ipv4), 0))
        sock.sendto(b"", (str(peer), _DISCARD))


def is_known(peer: IPv4Address, proc: Path = PROC) -> bool:
    """It is one of our own, or its link-layer address, or its gateway's, is known."""
    if _is_ours(peer):
        return True
    known = {str(peer), *_gateways(peer, proc)}
    for line in (proc / "arp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[0] in known and int(fields[2], 16) & _COMPLETE:
            return True
    return False


def _is_ours(peer: IPv4Address) -> bool:
    """Only an address of this machine can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((str(peer), 0))
        except OSError:
            return False
        return True


def _gateways(peer: IPv4Address, proc: Path) -> set[str]:
    """Of the routes that lead there, in the main table."""
    found = set()
    for line in (proc / "route").read_text().splitlines()[1:]:
        fields = line.split()
        network, gateway, mask = (socket.ntohl(int(fields[column], 16)) for column in (1, 2, 7))
        if int(fields[3], 16) & _UP_GATEWAY == _UP_GATEWAY and int(peer) & mask == network:
            found.add(str(IPv4Address(gateway)))
    return found
