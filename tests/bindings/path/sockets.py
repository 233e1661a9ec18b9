"""Doorbells and messages on two pairs of sockets: on one C sends and receives, on the other Python."""

from __future__ import annotations

import socket
from random import Random
from typing import Any

from offpath.bindings import twins

LENGTHS = (0, 1, 3, 4, 4, 4, 4, 5, 8, 9, 104, 4079, 4080, 4081, 4082, 6000)
WHATS = ("send", "send", "receive", "receive", "receive_message", "ring", "ring", "read", "wait", "spin")
READ, WRITE = 1, 4
"""POLLIN, POLLOUT."""


class Ends:
    """A pair of sockets, and how one implementation takes them. The peer's end is plain Python."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.open()

    def open(self) -> None:
        self.ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peer.setblocking(False)
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    @property
    def end(self) -> Any:
        return self.ours if self.module is twins else self.ours.fileno()

    def do(self, what: str, argument: Any) -> Any:
        if what == "send":
            return self.peer.send(argument) if argument else None
        if what == "read":
            return self.peer.recv(8)
        if what == "ring":
            return self.module.ring(self.end, argument)
        if what == "wait":
            return self.module.wait(self.ours.fileno(), argument, 0.0)
        if what == "spin":
            return self.module.spin(self.ours.fileno(), argument)
        return getattr(self.module, what)(self.end)

    def reopen(self, how: str) -> None:
        """Close one of the ends; or both, and begin anew."""
        if how == "ours":
            self.ours.close()
        elif how == "peer":
            self.peer.close()
        else:
            self.close()
            self.open()

    def close(self) -> None:
        self.ours.close()
        self.peer.close()


def tried(ends: Ends, what: str, argument: Any) -> tuple[Any, ...]:
    try:
        value = ends.do(what, argument)
    except Exception as fault:
        # A time-out and a closed end have their own words in each; what a caller acts on is the errno.
        return "raised", type(fault), "", str(getattr(fault, "errno", None)), ""
    return "returned", type(value), value


class Bells:
    """See `tests.bindings.path.sweep.Pair`. Close it in the end."""

    def __init__(self, module: Any) -> None:
        self._both = Ends(module), Ends(twins)

    def __call__(self, noise: Random) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        if noise.random() < 0.03:
            how = noise.choice(("ours", "peer", *["both"] * 6))
            for ends in self._both:
                ends.reopen(how)
        what = noise.choice(WHATS)
        argument: Any = None
        if what == "send":
            argument = noise.randbytes(noise.choice(LENGTHS))
        elif what == "ring":
            argument = noise.choice((0, 1, 0x01000005, 0xFFFFFFFF, noise.getrandbits(32), -1, 1 << 32))
        elif what == "wait":
            argument = noise.choice((READ, WRITE))
        elif what == "spin":
            argument = noise.choice((0, -1, 1000))
        return tried(self._both[0], what, argument), tried(self._both[1], what, argument)

    def close(self) -> None:
        for ends in self._both:
            ends.close()
