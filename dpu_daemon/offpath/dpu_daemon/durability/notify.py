"""The service's side of the service manager protocol: sends notifications (sd_notify) and takes passed descriptors.

Standard library only. `Notifier` sends; `take_listen_fds` and `watchdog_interval_s` read the environment set by systemd
or `offpath daemon run --keep` (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import select
import socket
import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final

from offpath.bindings.errors import HandoverError
from offpath.bindings.sockets import send_with_fds

logger = logging.getLogger(__name__)
FIRST_FD: Final = 3
"""The first passed descriptor."""
FD_NAME: Final = re.compile(r"[!-9;-~]{1,255}")
"""What systemd accepts as a descriptor's name: printable ASCII without colon. Spaces are not used here."""
MAX_LISTEN_FDS: Final = 65536
_MAX_FDS_PER_MESSAGE: Final = 253  # the kernel's SCM_MAX_FD
_TRIES: Final = 3
_TRY_MS: Final = 1
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class Notifier:
    """Reports the service's state. Without a manager (empty ``address``) every method does nothing and returns False.

    No method blocks for more than 3 ms or raises on failure: the daemon serves even if the manager does not listen.
    Each method returns whether the message is in the manager's socket.
    """

    def __init__(self, address: str = "") -> None:
        """``address``: a path, or ``@`` and a name for Linux's abstract sockets; other kinds count as empty."""
        self._sock: socket.socket | None = None
        self._address = "\0" + address[1:] if address.startswith("@") else address
        if address and address[0] not in "/@":
            logger.warning("NOTIFY_SOCKET is neither a path nor an abstract name; not notifying the service manager")
            self._address = ""
        self._has_failed = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """A notifier for the address in ``NOTIFY_SOCKET``, or one without a manager."""
        return cls(environment.get("NOTIFY_SOCKET", ""))

    @property
    def has_manager(self) -> bool:
        """False: notifications are not sent, and nothing can be stored."""
        return bool(self._address)

    def ready(self, status: str = "") -> bool:
        """The service has started or reloaded."""
        return self._send("READY=1" + _status(status))

    def reloading(self) -> bool:
        """A reload begins; `ready` ends it. The timestamp lets the manager match it to its own request."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> bool:
        """The service is shutting down."""
        return self._send("STOPPING=1")

    def watchdog(self) -> bool:
        """Keep-alive; due at least every `watchdog_interval_s`."""
        return self._send("WATCHDOG=1")

    def status(self, text: str) -> bool:
        """One line for ``systemctl status``."""
        return self._send(_status(text)[1:])

    def store(self, name: str, fds: Sequence[int]) -> bool:
        """Give the manager duplicates of ``fds`` to keep under ``name``; they are passed back at the next start.

        All go in one message, so all are kept or none. ``FDPOLL=0``: they are kept even if another end closes. A
        message in the manager's queue is handled even if this process dies now. Raises: ValueError: invalid name, or
        over 253 descriptors.
        """
        if not fds or len(fds) > _MAX_FDS_PER_MESSAGE:
            raise ValueError(f"{len(fds)} descriptors in one message")
        return self._send(f"FDSTORE=1\nFDPOLL=0\nFDNAME={_checked(name)}", fds)

    def forget(self, name: str) -> bool:
        """Have the manager drop everything kept under ``name``. Raises: ValueError."""
        return self._send(f"FDSTOREREMOVE=1\nFDNAME={_checked(name)}")

    def barrier(self, timeout_s: float = 1.0) -> bool:
        """Wait until the manager has handled all earlier messages, at most ``timeout_s``. Blocks: not for the loop."""
        if not self._address:
            return False
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                is_sent = self._send("BARRIER=1", [write_end])
            finally:
                os.close(write_end)
            if not is_sent:
                return False
            poller = select.poll()
            poller.register(read_end, 0)  # a hang-up is always reported
            return bool(poller.poll(max(0.0, timeout_s * 1e3)))
        finally:
            os.close(read_end)

    def connected(self) -> socket.socket:
        """A non-blocking socket to the manager, for `storing.Store`. Raises: OSError: no manager listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.connect(self._address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _send(self, message: str, fds: Sequence[int] = ()) -> bool:
        if not self._address:
            return False
        # The socket is kept: a process that is out of descriptors must still feed its watchdog.
        for is_fresh in (self._sock is None, True):
            try:
                if self._sock is None:
                    self._sock = self.connected()
                return self._try(self._sock, message.encode("utf-8", "replace"), fds)
            except (OSError, ValueError) as fault:  # ValueError: a path with a NUL
                self.close()
                if is_fresh:
                    return self._failed(str(fault))
        return False  # the manager was replaced twice

    def close(self) -> None:
        """Close the socket; the next message opens another. Idempotent."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def __del__(self) -> None:
        self.close()  # one datagram socket without pending work, so no context manager is needed

    def _try(self, sock: socket.socket, message: bytes, fds: Sequence[int]) -> bool:
        for _ in range(_TRIES):
            try:
                if fds:
                    send_with_fds(sock, message, fds, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                else:
                    sock.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._has_failed = False
                return True
            except BlockingIOError:  # its queue is full (10 messages by kernel default)
                poller = select.poll()
                poller.register(sock, select.POLLOUT)
                poller.poll(_TRY_MS)
        return self._failed("its queue is full")

    def _failed(self, why: str) -> bool:
        if not self._has_failed:  # once per outage, not with every message
            logger.warning("cannot notify the service manager: %s", why, extra={"code": "notify_failed"})
        self._has_failed = True
        return False


def _status(text: str) -> str:
    return f"\nSTATUS={' '.join(text.split())}" if text else ""


def _checked(name: str) -> str:
    if not FD_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid descriptor name")
    return name


def _number(environment: Mapping[str, str], key: str, most: int) -> int:
    text = environment[key]
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise HandoverError(f"{key}={text[:40]!r} is not a number up to {most}")
    return int(text)


def take_listen_fds(environment: MutableMapping[str, str] = os.environ) -> dict[str, list[int]]:
    """The passed descriptors, by name, now owned by this process and closed on exec. Unnamed ones are ``unknown``.

    The variables are removed so that no child uses them; therefore a second call returns nothing. Descriptors meant for
    another process are ignored. Raises: HandoverError: the variables are invalid.
    """
    given = {key: environment.pop(key, None) for key in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    variables = {key: text for key, text in given.items() if text is not None}
    if "LISTEN_PID" not in variables or "LISTEN_FDS" not in variables:
        return {}
    if _number(variables, "LISTEN_PID", 1 << 31) != os.getpid():
        return {}
    count = _number(variables, "LISTEN_FDS", MAX_LISTEN_FDS)
    names = variables["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in variables else ["unknown"] * count
    if not count and names == [""]:
        names = []
    if len(names) != count:
        raise HandoverError(f"LISTEN_FDS={count}, but LISTEN_FDNAMES has {len(names)} names")
    for name in names:
        if not FD_NAME.fullmatch(name):
            raise HandoverError(f"LISTEN_FDNAMES: {name[:40]!r} is not a valid descriptor name")
    taken: dict[str, list[int]] = {}
    for fd, name in enumerate(names, FIRST_FD):
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFD)
            fcntl.fcntl(fd, fcntl.F_SETFD, flags | fcntl.FD_CLOEXEC)
        except OSError as fault:
            raise HandoverError(f"LISTEN_FDS={count}, but descriptor {fd} is {_why(fault)}") from None
        taken.setdefault(name, []).append(fd)
    return taken


def _why(fault: OSError) -> str:
    return "not open" if fault.errno == errno.EBADF else str(fault.strerror)


def watchdog_interval_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """The longest time the manager allows between two `Notifier.watchdog` calls, or None: no watchdog is set.

    Raises: HandoverError: the variables are invalid.
    """
    if "WATCHDOG_USEC" not in environment:
        return None
    if "WATCHDOG_PID" in environment and _number(environment, "WATCHDOG_PID", 1 << 31) != os.getpid():
        return None
    microseconds = _number(environment, "WATCHDOG_USEC", (1 << 63) - 1)
    if not microseconds:
        raise HandoverError("WATCHDOG_USEC=0 is not a valid interval")
    return microseconds / 1e6


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors; ones that are not open are ignored."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
