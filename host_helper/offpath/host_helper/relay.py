"""Connects the supervisor to a daemon over a carrier with threads: a child process relays the messages.

A process with threads must not fork, and the supervisor must fork workers. The child holds the carrier's connection.
A socket pair joins it to the supervisor, which sees it as a local daemon. Messages pass whole and in order, with
backpressure in both directions. When either side closes, the relay closes the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from typing import Final

from offpath.bindings.errors import HostChannelError, KeyNotListed, OffpathError, PeerGone
from offpath.bindings.loopback.channel import LoopbackConnection
from offpath.bindings.ports import HostConnection, HostConnector

_PR_SET_PDEATHSIG: Final = 1
_LEAVE_S: Final = 3.0
_RETRY_MS: Final = 1
_HELD_UP_TURNS: Final = 5000
_CONNECTED: Final = b"+"


class Relay(LoopbackConnection):
    """Implements `offpath.bindings.ports.HostEnd` for the creating process, and owns the child.

    Raises: PeerGone, KeyNotListed, HostChannelError: as the connector reported.
    """

    def __init__(self, connector: HostConnector) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        self._owner = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            ours.close()
            _run(connector, theirs)
        theirs.close()
        super().__init__(ours)
        try:
            verdict = self.wait_message()
        except PeerGone:
            verdict = b"P: its relay ended"
        if verdict != _CONNECTED:
            self.close()
            text = verdict[1:].decode("utf-8", "replace")
            raise {b"K": KeyNotListed, b"P": PeerGone}.get(verdict[:1], HostChannelError)(text)

    def close(self) -> None:
        """Close, and wait until the child has relayed what was sent. In a worker forked meanwhile, only close the copy
        of the supervisor's end.
        """
        super().close()
        child, self._child = self._child, 0
        if child and os.getpid() == self._owner:
            pidfd = os.pidfd_open(child)
            if not select.select([pidfd], [], [], _LEAVE_S)[0]:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(pidfd)


def _run(connector: HostConnector, sock: socket.socket) -> None:
    """The child's main function; does not return."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)  # the pipe is the supervisor's
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a signal to the process group: the supervisor still leaves
    status = 1
    try:
        near = LoopbackConnection(sock)
        try:
            far = connector.connect()
        except OffpathError as fault:
            kind = "K" if isinstance(fault, KeyNotListed) else "P" if isinstance(fault, PeerGone) else "H"
            near.send(f"{kind}{fault}".encode()[:4000])
        else:
            with contextlib.closing(far):
                near.send(_CONNECTED)
                _carry(near, far)
        status = 0
    except PeerGone:
        status = 0
    finally:
        os._exit(status)


def _carry(near: HostConnection, far: HostConnection) -> None:
    """Relay in both directions until one side has closed. Raises: PeerGone."""
    poll = select.poll()
    poll.register(near.fileno(), select.POLLIN)
    poll.register(far.fileno(), select.POLLIN)
    is_finished = False
    while True:
        if dict(poll.poll()).get(near.fileno(), 0) & select.POLLHUP and is_finished:
            return  # the supervisor's end is closed for reading too
        if not is_finished:
            try:
                _pass_on(near, far)
            except _Ended:
                is_finished = True
                poll.modify(near.fileno(), 0)
                far.finish()
        try:
            _pass_on(far, near)
        except _Ended:
            return


class _Ended(Exception):
    """The side that was read is closed or finished."""


def _pass_on(source: HostConnection, target: HostConnection) -> None:
    """Relay what waits at ``source`` to ``target``. Raises: _Ended. PeerGone: ``target`` closed, or stopped reading."""
    while True:
        try:
            received = source.receive()
        except OffpathError:  # closed, or an invalid message
            raise _Ended from None
        if received is None:
            return
        for fd in received[1]:
            os.close(fd)
        for _ in range(_HELD_UP_TURNS):
            if target.send(received[0]):
                break
            select.select([], [], [], _RETRY_MS / 1e3)
        else:
            raise PeerGone("it stopped reading")
