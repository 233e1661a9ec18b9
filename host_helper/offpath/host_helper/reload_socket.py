"""The helper's own socket, on which `offpath helper reload` requests a reload: one JSON object in each packet.

A client sends `ReloadRequest` and waits for `Reloaded` or `ReloadFailed`. Only the helper's user and root may.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Annotated, Final, Literal

import orjson
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter, ValidationError

from offpath.bindings.errors import ControlError, OffpathError, RegionError
from offpath.bindings.runtime import make_runtime_directory, runtime_directory
from offpath.bindings.sockets import connect_within, listening_socket, peer_credentials
from offpath.bindings.wire import document, fields

logger = logging.getLogger(__name__)
MAX_BYTES: Final = 65_536
SYSTEM_DIRECTORY: Final = "/run/offpath-helper"
"""The runtime directory of the shipped unit."""
_CONNECT_S: Final = 5.0
_MOST_DETAIL: Final = 2_000
Names = Annotated[list[fields.Name], Field(max_length=fields.MAX_OFFERED)]
Detail = Annotated[str, StringConstraints(max_length=_MOST_DETAIL)]


class _Message(BaseModel):
    model_config = fields.STRICT


class ReloadRequest(_Message):
    """Load the file anew, and serve its kernels."""

    kind: Literal["reload"]


class Reloaded(_Message):
    """The new kernels are in force. ``revision``: how often this process has reloaded. ``is_joined``: the daemon serves
    them now; else it does when the helper joins it."""

    kind: Literal["reloaded"] = "reloaded"
    revision: fields.U32
    added: Names
    replaced: Names
    removed: Names
    is_joined: bool


class ReloadFailed(_Message):
    """Everything is as it was. ``code``: ``file`` (it cannot be loaded or served), ``busy`` (a reload is under way),
    ``ends`` (the helper ends), ``message`` (the request is none)."""

    kind: Literal["failed"] = "failed"
    code: Literal["file", "busy", "ends", "message"]
    detail: Detail


_REPLIES: Final[TypeAdapter[Reloaded | ReloadFailed]] = TypeAdapter(
    Annotated[Reloaded | ReloadFailed, Field(discriminator="kind")], config=fields.HIDING
)


class HelperUnreachable(OffpathError):
    """No helper of this name listens for reloads in the runtime directory."""


class ReloadRefused(OffpathError):
    """The helper did not take over the new file; its kernels are as they were."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


def failed(code: Literal["file", "busy", "ends", "message"], detail: str) -> ReloadFailed:
    """The reply, with as much of ``detail`` as fits."""
    return ReloadFailed(code=code, detail=detail[:_MOST_DETAIL])


def read_request(body: bytes) -> None:
    """Raises: ControlError: it is no `ReloadRequest`."""
    try:
        ReloadRequest.model_validate(document.read(body))
    except ValidationError as fault:
        raise ControlError("model", f"{fault.error_count()} faults") from None


def file_name(helper: str) -> str:
    """The socket's name in its directory."""
    return f"helper-{helper}.sock"


def listen(helper: str, runtime_dir: str | None) -> socket.socket | None:
    """The helper's listening socket: in ``$RUNTIME_DIRECTORY``, else in ``runtime_dir`` if that exists, else in the
    user's own. None: it cannot be made; the reason is logged, and SIGHUP remains."""
    try:
        directory = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0] or runtime_dir
        if not directory:
            make_runtime_directory(directory := runtime_directory())
        return listening_socket(os.path.join(directory, file_name(helper)), socket.SOCK_SEQPACKET, wait_s=0.5)
    except (OSError, RegionError) as fault:
        logger.info("no socket for `offpath helper reload`: %s", fault)
        return None


def may_reload(peer: socket.socket) -> bool:
    """True if the peer is root or this process's user."""
    return peer_credentials(peer)[1] in (0, os.getuid())


def request_reload(helper: str, runtime_dir: str | None, timeout_s: float) -> Reloaded:
    """Have the helper of this name reload its file; wait for at most ``timeout_s``.

    Raises: HelperUnreachable, ReloadRefused; ControlError: the reply is no message of this protocol.
    """
    name = file_name(helper)
    paths = [os.path.join(runtime_directory(runtime_dir), name)]
    if runtime_dir is None:
        paths.append(os.path.join(SYSTEM_DIRECTORY, name))
    path = next((each for each in paths if os.path.lexists(each)), paths[0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as sock:
        try:
            connect_within(sock, path, _CONNECT_S)
            sock.settimeout(timeout_s)
            sock.send(orjson.dumps(ReloadRequest(kind="reload").model_dump()))
            body = sock.recv(MAX_BYTES)
        except TimeoutError:
            raise HelperUnreachable(f"helper {helper!r} at {path} did not answer within {timeout_s:g} s") from None
        except OSError as fault:
            raise HelperUnreachable(f"no helper {helper!r} at {path}: {fault.strerror or fault}") from None
    if not body:
        raise HelperUnreachable(f"helper {helper!r} at {path} closed the connection: another user's, or it ended")
    try:
        reply = _REPLIES.validate_python(document.read(body))
    except ValidationError as fault:
        raise ControlError("model", f"{fault.error_count()} faults") from None
    if isinstance(reply, ReloadFailed):
        raise ReloadRefused(reply.code, reply.detail)
    return reply


def answer(peer: socket.socket, reply: BaseModel) -> None:
    """Send the reply and close. A peer that has left is no fault."""
    with contextlib.suppress(OSError):
        peer.send(orjson.dumps(reply.model_dump()))
    peer.close()
