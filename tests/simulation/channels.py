"""The host channel's simulated adapter, with the rules of its loopback twin.

What a Unix socket does when its peer ends is kept too: what the peer sent before can still be read, unless the peer
left something unread itself, for then the first read fails with ECONNRESET (seen).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

from .promises import promise

if TYPE_CHECKING:
    from .world import World

SOCKET_MESSAGES = 278
"""What one end of a Unix socket pair queues of small messages by default (seen)."""


class SimConnection:
    """The daemon's end of a host channel."""

    def __init__(self, host: HostEnd) -> None:
        loop = host.world.loop
        self._host = host
        self._loop = loop
        self._fd = loop.open_fd()
        self._death = loop.open_fd()
        loop.certain.add(self._death)
        self.inbox: deque[bytes] = deque()
        self.is_open = True
        self.is_reset = False
        host.world.owned[self] = None
        self.peer_pid = host.pid
        self.peer = f"uid {host.world.uid}"
        self.is_self_probe = False

    def arrived(self) -> None:
        """Something to read, or the end."""
        if self.is_open:
            self._loop.flag(self._fd, bool(self.inbox) or not self._host.is_open or self._host.is_finished)
            self._loop.flag(self._death, self._host.is_dead)

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        promise(self.is_open, "the daemon sends on a connection that it closed")
        promise(0 < len(message) <= MAX_MESSAGE_BYTES, "a message of", len(message), "bytes")
        host = self._host
        if not host.is_open:
            raise PeerGone("host channel: Broken pipe")
        host.world.may_be_killed("before a message to the host")
        if host.is_full or len(host.inbox) >= SOCKET_MESSAGES or host.world.happens("channel_full"):
            host.was_full = True
            return False
        host.inbox.append(message)
        host.wake()
        host.world.may_be_killed("after a message to the host")
        return True

    def receive_message(self) -> bytes | None:
        promise(self.is_open, "the daemon reads from a connection that it closed")
        if self.is_reset:
            self.is_reset = False
            raise PeerGone("host channel: Connection reset by peer")
        if self.inbox:
            message = self.inbox.popleft()
            self.arrived()
            if len(message) > MAX_MESSAGE_BYTES:
                raise HostMessageError("too_long", str(len(message)))
            return message
        if not self._host.is_open or self._host.is_finished:
            raise PeerGone("host channel closed")
        return None

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        message = self.receive_message()
        return None if message is None else (message, ())

    def fileno(self) -> int:
        return self._fd

    def death_fileno(self) -> int:
        return self._death

    def has_ended(self) -> bool:
        return self._host.is_dead

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        del self._host.world.owned[self]
        self._loop.close_fd(self._fd)
        self._loop.close_fd(self._death)
        self._host.daemon_hung_up()


class HostEnd:
    """A host process's end; ``notify`` is called when there is something to read, or the daemon hung up."""

    def __init__(self, world: World, pid: int, notify: Callable[[], None]) -> None:
        self.world = world
        self.pid = pid
        self.inbox: deque[bytes] = deque()
        self.is_open = True
        self.is_finished = False
        self.is_dead = False
        self.is_full = False
        self.was_full = False
        """A message to it was not sent."""
        self.daemon_gone = False
        self.is_orphan = False
        """The daemon's process died: it let nobody go."""
        self.wake = notify
        self.daemon_end = SimConnection(self)

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """As a host process sends. Raises: PeerGone."""
        if self.daemon_gone:
            raise PeerGone("host channel: Broken pipe")
        self.daemon_end.inbox.append(message)
        self.daemon_end.arrived()
        return True

    def next_message(self) -> bytes | None:
        """Raises: PeerGone: nothing is left, and the daemon hung up."""
        if self.inbox:
            return self.inbox.popleft()
        if self.daemon_gone:
            raise PeerGone("host channel closed")
        return None

    def finish(self) -> None:
        """Say no more."""
        self.is_finished = True
        self.daemon_end.arrived()

    def daemon_hung_up(self) -> None:
        self.daemon_gone = True
        self.is_orphan = self.world.is_daemon_dying
        if self.is_open:
            self.wake()

    def close(self, *, is_death: bool = False) -> None:
        """Hang up; ``is_death``: the process ended."""
        self.is_dead = self.is_dead or is_death
        if self.is_open:
            self.is_open = False
            self.daemon_end.is_reset = bool(self.inbox)
            self.inbox.clear()
        self.daemon_end.arrived()


class SimChannelListener:
    """Where host processes connect."""

    address = "simulated"

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._fd = world.loop.open_fd()
        self._waiting: deque[SimConnection] = deque()
        self.is_open = True

    def connect(self, end: HostEnd) -> None:
        self._waiting.append(end.daemon_end)
        self._loop.flag(self._fd, True)

    def accept(self) -> SimConnection | None:
        connection = self._waiting.popleft() if self._waiting else None
        self._loop.flag(self._fd, bool(self._waiting))
        if connection is not None:
            connection.arrived()
        return connection

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self.is_open = False
        self._loop.close_fd(self._fd)
        while self._waiting:
            self._waiting.popleft().close()
