"""The ROUTER of a listener: CURVE with an allow-list, events of its connections, and one descriptor for all of it."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.zeromq.authority import Authority
from offpath.bindings.zeromq.library import Pace, has_news, monitored, next_event, set_limits, unmonitored, zmq
from offpath.bindings.zeromq.watch import PartWatch


class Router:
    """Its owner receives from ``sock``. libzmq's descriptors are edge-triggered, and sending may consume the edge: what
    is left keeps an own descriptor readable, see `show`.

    ``options``: of the socket, beside those of every listener. ``is_full``: refuses further connections.
    Raises: NobodyAllowed: ``allowed`` is empty.
    """

    def __init__(
        self, secret: bytes, allowed: Mapping[bytes, str], domain: str, is_full: Callable[[], bool], pace: Pace,
        options: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        self._context = zmq.Context(1)
        try:
            self.authority = Authority(self._context, domain, allowed, is_full)
        except BaseException:
            self._context.destroy(0)
            raise
        self.sock = self._context.socket(zmq.ROUTER)
        self._monitor = monitored(self.sock)
        self.parts = PartWatch()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_awake = False
        self._poll = select.epoll(select.EPOLL_CLOEXEC)
        for fd in (
            int(self.sock.FD), int(self._monitor.FD), self.authority.fileno(), self._wake, self.parts.fileno()
        ):  # fmt: skip
            self._poll.register(fd, select.EPOLLIN)
        set_limits(self.sock, pace)
        self.sock.setsockopt(zmq.ROUTER_MANDATORY, 1)  # otherwise messages for a closed peer are dropped silently
        self.sock.setsockopt(zmq.ROUTER_HANDOVER, 0)
        self.sock.setsockopt(zmq.CURVE_SERVER, 1)
        self.sock.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self.sock.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        self.sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler, nobody is accepted
        for option, value in options:
            self.sock.setsockopt(option, value)

    def bind(self, address: str) -> str:
        """Listen; returns the address with its port. Raises: PlaceUnusable: then it is closed."""
        try:
            self.sock.bind(address)
        except zmq.ZMQError as fault:
            self.close()
            raise PlaceUnusable(f"{address}: {fault.strerror}") from None
        return cast(bytes, self.sock.last_endpoint).decode().rstrip("\0")

    @property
    def is_closed(self) -> bool:
        """`close` was called."""
        return self._context.closed

    def fileno(self) -> int:
        """Readable: there is something to receive, a handshake, an event, or `show` was called. -1: closed."""
        return self._poll.fileno() if not self._poll.closed else -1

    def next_event(self) -> tuple[int, int] | None:
        """Of a connection: (event, its descriptor), or None."""
        return next_event(self._monitor)

    def send(self, routing_id: bytes, body: bytes) -> None:
        """Does not block. Raises: zmq.Again: the peer's queue is full. zmq.ZMQError: its connection is closed."""
        try:
            self.sock.send_multipart((routing_id, body), zmq.NOBLOCK, copy=True)
        finally:
            if has_news(self.sock):  # sending may have consumed the edge
                self.show(True)

    def show(self, is_readable: bool) -> None:
        """Keep the descriptor readable, or leave it to libzmq's."""
        if is_readable is not self.is_awake:
            self.is_awake = is_readable
            if is_readable:
                os.eventfd_write(self._wake, 1)
            else:
                os.eventfd_read(self._wake)

    def close(self) -> None:
        """Stop listening and hang up, after ``LINGER``. Idempotent."""
        if self._context.closed:
            return
        self.authority.close()
        unmonitored(self.sock, self._monitor)
        self.sock.close()
        self._context.term()
        self.parts.close()
        self._poll.close()
        os.close(self._wake)
