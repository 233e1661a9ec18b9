"""A job's way to the collaboration controller: its socket for jobs, and a gateway for devices."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError, PeerGone, ProtocolError
from offpath.bindings.runtime import COLLAB_SOCKET, local_socket
from offpath.bindings.trust import connect_daemon
from offpath.bindings.wire import control
from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.collab import Answer, CheckIn, Result
from offpath.bindings.wire.collab_admin import FROM_COLLAB, Request
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.bindings.zeromq.gateway import Gateway
from offpath.host_helper.collab.settings import Settings

ANSWER_S: Final = 5.0
_R = TypeVar("_R", bound=BaseModel)


class JobRefused(OffpathError):
    """The controller refused what the job asked for; ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class Controller(Protocol):
    """What a borrower needs. Both calls block for some seconds at most."""

    def ask(self, request: Request, wanted: type[_R]) -> _R:
        """Raises: JobRefused. PeerGone: no answer."""

    def exchange(self, items: Sequence[CheckIn | Result]) -> list[Answer]:
        """The answers, in order. Raises: PeerGone: no answer; send them again."""

    def close(self) -> None:
        """Hang up. Idempotent."""


class LocalController:
    """A controller whose socket is on this machine. Raises: OptionRefused, KeyFileRefused, PlaceUnusable."""

    def __init__(self, settings: Settings, answer_s: float = ANSWER_S) -> None:
        server_key, secret, _ = settings.keys()
        self._path = local_socket(COLLAB_SOCKET, settings.runtime_dir)
        self._gateway = Gateway(settings.gateway, server_key, secret, answer_s)
        self._answer_s = answer_s

    def ask(self, request: Request, wanted: type[_R]) -> _R:
        """See `Controller`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            try:
                connect_daemon(sock, self._path, self._answer_s)
                sock.settimeout(self._answer_s)
                sock.sendall(frame(control.encode(request)))
                reader, frames = FrameReader(), list[bytes]()
                while not frames:
                    data = sock.recv(65_536)
                    if not data:
                        raise PeerGone("the controller closed the connection")
                    frames += reader.feed(data)
                reply = control.decode(FROM_COLLAB, frames[0])
            except (OSError, ProtocolError) as fault:
                raise PeerGone(f"controller at {self._path}: {fault or 'no answer'}") from None
        if isinstance(reply, Fault):
            raise JobRefused(reply.code, reply.detail)
        if not isinstance(reply, wanted):
            raise PeerGone(f"the controller answered {type(reply).__name__}, not {wanted.__name__}")
        return reply

    def exchange(self, items: Sequence[CheckIn | Result]) -> list[Answer]:
        """See `Controller`."""
        return self._gateway.exchange(items)

    def close(self) -> None:
        """See `Controller`."""
        self._gateway.close()
