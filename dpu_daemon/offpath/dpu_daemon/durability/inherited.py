"""Takes over what a service manager passes at start: listening sockets and stored descriptors."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final

from offpath.bindings.errors import HandoverError
from offpath.bindings.runtime import ADMIN_SOCKET, FABRIC_SOCKET, HOST_SOCKET, NEGOTIATE_SOCKET
from offpath.bindings.sockets import inherited_listener
from offpath.dpu_daemon.durability.notify import take_listen_fds

LISTENING: Final = {
    "negotiate": (NEGOTIATE_SOCKET, socket.SOCK_STREAM),
    "fabric": (FABRIC_SOCKET, socket.SOCK_SEQPACKET),
    "host": (HOST_SOCKET, socket.SOCK_SEQPACKET),
    "admin": (ADMIN_SOCKET, socket.SOCK_STREAM),
}
"""Name of a listening socket (``FileDescriptorName=``) → its file in the runtime directory, and its kind."""


@dataclass(slots=True, eq=False)
class Inherited:
    """Listening sockets by name, at most one each; and descriptors that an earlier run of the daemon stored."""

    listening: dict[str, socket.socket] = field(default_factory=dict)
    stored: dict[str, list[int]] = field(default_factory=dict)

    def close_unused(self) -> None:
        """Close the listening sockets that were not taken. The service manager keeps its duplicates open."""
        while self.listening:
            self.listening.popitem()[1].close()


def take_inherited() -> Inherited:
    """Everything passed to this process. Raises: HandoverError: a socket does not match its name."""
    inherited = Inherited(stored=take_listen_fds())
    for name, (_, kind) in LISTENING.items():
        fds = inherited.stored.pop(name, [])
        if len(fds) > 1:
            raise HandoverError(f"{len(fds)} listening sockets are named {name}")
        if fds:
            inherited.listening[name] = inherited_listener(name, fds[0], kind)
    return inherited
