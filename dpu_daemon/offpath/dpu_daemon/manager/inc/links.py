"""Requests of the job manager to emulated switches and the INA controller (a Unix socket each) and key-value services
(UDP), and their replies."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter

from offpath.bindings.errors import ControlError, FrameError, OffpathError
from offpath.bindings.wire import control, ina_admin
from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.ingress.streams import hang_up
from offpath.dpu_daemon.switch.inc import messages
from offpath.dpu_daemon.switch.inc.packets import CONTROLLED, TOKEN_BYTES, DatagramInvalid, address_of, controlled
from offpath.dpu_daemon.switch.inc.packets import control as datagram

ANSWER_S: Final = 2.0
_AGAIN_S: Final = 0.1
_R = TypeVar("_R", bound=BaseModel)


class LinkAway(OffpathError):
    """A switch or a service does not answer, or not understandably."""


def token_of(secret: bytes, identity: str) -> bytes:
    """Of a task, for its control datagrams."""
    return hashlib.blake2b(identity.encode(), key=secret[:64], digest_size=TOKEN_BYTES).digest()


async def query_switch(path: str, request: messages.ToSwitch, wanted: type[_R]) -> _R | Fault:
    """The switch's reply, or its refusal. Raises: LinkAway."""
    return await _query(f"switch at {path}", path, request, messages.FROM_SWITCH, wanted)


async def query_controller(path: str, request: ina_admin.Request, wanted: type[_R]) -> _R | Fault:
    """The INA controller's reply on its admin socket, or its refusal. Raises: LinkAway."""
    return await _query(f"INA controller at {path}", path, request, ina_admin.FROM_CONTROLLER_ADMIN, wanted)


async def _query(
    peer: str, path: str, request: BaseModel, replies: TypeAdapter[Any], wanted: type[_R]
) -> _R | Fault:  # fmt: skip
    """Raises: LinkAway."""
    writer = None
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(frame(control.encode(request)))
            frames, whole = FrameReader(), list[bytes]()
            while not whole:
                data = await reader.read(65_536)
                if not data:
                    raise LinkAway(f"{peer} closed the connection")
                whole = frames.feed(data)
        return _checked(replies, whole[0], wanted)
    except (OSError, TimeoutError, FrameError, ControlError) as fault:
        raise LinkAway(f"{peer}: {fault or 'no answer'}") from None
    finally:
        if writer is not None:
            await hang_up(writer)


def _checked(replies: TypeAdapter[Any], body: bytes, wanted: type[_R]) -> _R | Fault:
    """Raises: ControlError: a reply of another type."""
    reply = control.decode(replies, body)
    if isinstance(reply, wanted | Fault):
        return reply
    raise ControlError("model", f"{type(reply).__name__} is no reply to this request")


class ServiceLinks(asyncio.DatagramProtocol):
    """One socket to all services."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[bytes, asyncio.Future[bytes]]] = {}
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self) -> None:
        """Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("0.0.0.0", 0))

    def close(self) -> None:
        """Idempotent."""
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: object) -> None:
        """A reply; its token proves it."""
        try:
            token, number, body = controlled(data, CONTROLLED)
        except DatagramInvalid:
            return
        expected, future = self._waiting.get(number, (b"", None))
        if future is not None and token == expected and not future.done():
            future.set_result(body)

    def error_received(self, exc: Exception) -> None:
        """The service is not there (yet): the datagram is repeated."""

    async def query(self, address: str, identity: str, request: messages.ToService, wanted: type[_R]) -> _R:
        """The service's reply; the request is repeated until it arrives. Raises: LinkAway."""
        assert self._transport is not None
        token, number = token_of(self._secret, identity), next(self._numbers) & 0xFFFF_FFFF
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (token, future)
        try:
            target, sent = address_of(address), datagram(token, number, control.encode(request))
            async with asyncio.timeout(ANSWER_S):
                while not future.done():
                    self._transport.sendto(sent, target)
                    await asyncio.wait([future], timeout=_AGAIN_S)
            reply = control.decode(messages.FROM_SERVICE, future.result())
        except (TimeoutError, DatagramInvalid, ControlError) as fault:
            raise LinkAway(f"service at {address}: {fault or 'no answer'}") from None
        finally:
            del self._waiting[number]
        if not isinstance(reply, wanted):
            raise LinkAway(f"service at {address} answered {type(reply).__name__}: {reply}"[:200])
        return reply
