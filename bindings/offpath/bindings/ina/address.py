"""Addresses of switches: ``unix://PATH`` or ``tcp://HOST:PORT``."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Final, NamedTuple

from offpath.bindings.errors import FabricAddressError
from offpath.bindings.plausible import port_fault

_LONGEST_PATH: Final = 107
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""A host without power closes no connection: it counts as gone after 5 s."""


class Address(NamedTuple):
    """``target``: as `socket.socket.connect` takes it."""

    family: socket.AddressFamily
    target: str | tuple[str, int]


def parse_address(text: str) -> Address:
    """Raises: FabricAddressError."""
    scheme, _, rest = text.partition("://")
    if scheme == "unix" and 0 < len(rest.encode()) <= _LONGEST_PATH and "\0" not in rest:
        return Address(socket.AF_UNIX, rest)
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        if host and port.isascii() and port.isdecimal() and not port_fault(rest):
            bare = host.removeprefix("[").removesuffix("]")
            return Address(socket.AF_INET6 if ":" in bare else socket.AF_INET, (bare, int(port)))
    raise FabricAddressError(f"{text!r:.200}: want unix://PATH or tcp://HOST:PORT")


def begin_connecting(text: str) -> socket.socket:
    """A non-blocking socket that is connecting; once writable, it is connected or has failed.

    Raises: FabricAddressError; OSError: it has failed already. Resolving a host name may block: use numeric addresses.
    """
    address = parse_address(text)
    sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        tune(sock)
        error = sock.connect_ex(address.target)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, f"{text}: {errno.errorcode.get(error, error)}")
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Set the fabric's socket options; none for a Unix socket."""
    if sock.family == socket.AF_UNIX:
        return
    for level, option, value in _KEEPALIVE:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)
