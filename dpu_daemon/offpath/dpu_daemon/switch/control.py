"""The control socket of a switch: server and client. Length-prefixed JSON, one request per connection.

A Unix socket serves only the process's own user and root. A TCP socket serves every peer that reaches the address:
configure a loopback or management address.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import dataclass
from typing import Any, Final

import orjson

from offpath.bindings.errors import ControlError, FrameError, PeerGone, RequestRefused
from offpath.bindings.ina.address import parse_address
from offpath.bindings.sockets import peer_credentials
from offpath.bindings.wire import document
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.ingress.streams import StreamListener, hang_up
from offpath.dpu_daemon.listening.accepting import Unidentified
from offpath.dpu_daemon.switch.switch import Switch, listen
from offpath.sched.ina.protocol.records import Permission, RecordError, permission_from_data, permission_to_data

logger = logging.getLogger(__name__)
ANSWER_S: Final = 5.0
CLEAR_S: Final = 10.0
"""A fence is answered once it is clear: members that do not disconnect are disconnected within this time."""
MOST_CAPACITY: Final = 1 << 16
_READ_BYTES: Final = 65_536
_MOST_INTEGER: Final = (1 << 63) - 1
_LONGEST_LEADER: Final = 64
_MOST_PEERS: Final = 1024
"""Connections without a request; the oldest one is closed to make room."""
MOST_FENCES: Final = 512
"""Fences waited for; a controller sends at most 256 commands concurrently."""


class SwitchRefused(RequestRefused):
    """The switch refuses a command: an old term, a fenced stamp, or another permission of the same stamp."""


# -- server -----------------------------------------------------------------------------------------------------------
class ControlServer:
    """Serves a switch's control socket."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._listener: StreamListener | None = None
        self._path = ""
        self._leader = ""
        """Name of the controller that leads in the root's term."""
        self._fences = 0
        """Fences waited for."""

    async def start(self, address: str) -> str:
        """Listen; returns the address to connect to. Raises: FabricAddressError, PlaceUnusable."""
        sock, found = listen(address)
        family, target = parse_address(found)
        if family == socket.AF_UNIX:
            self._path = str(target)
        self._listener = StreamListener("switch control", sock, self._peer, Unidentified(_MOST_PEERS))
        self._listener.open()
        return found

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            await self._listener.close()
        if self._path and os.path.exists(self._path):
            os.unlink(self._path)

    async def _peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            sock = writer.get_extra_info("socket")
            if sock.family == socket.AF_UNIX and peer_credentials(sock)[1] not in (0, os.getuid()):
                return
            async with asyncio.timeout(ANSWER_S + CLEAR_S):
                request = await _one(reader)
                assert self._listener is not None
                self._listener.identified(writer)  # its request may have to wait and must not be evicted
                writer.write(frame(orjson.dumps(await self._answer(request))))
                await writer.drain()
        except (PeerGone, FrameError, TimeoutError, OSError):
            pass  # the peer is gone, or sent nothing that can be answered
        finally:
            writer.close()

    async def _answer(self, request: Any) -> dict[str, Any]:
        try:
            match request:
                case {"kind": "lead", "term": term, "leader": str(leader)} if 0 < len(leader) <= _LONGEST_LEADER:
                    return self._lead(_number(term), leader)
                case {"life": str(life)} if life != self._switch.life:
                    return _refused("the command is for another process of this switch")
                case {"kind": "allow", "permission": data}:
                    if not self._switch.allow(permission_from_data(data)):
                        return _refused("an old term, a fenced stamp, or another permission than before for this stamp")
                    return {"kind": "allowed"}
                case {"kind": "fence", "term": term, "job": str(job), "incarnation": incarnation, "stamp": stamp}:
                    numbers = _number(term), _number(incarnation), _number(stamp)
                    return await self._fence(numbers[0], job, *numbers[1:])
                case {"kind": "capacity", "capacity": capacity}:
                    if not 0 < _number(capacity) <= MOST_CAPACITY:
                        return _refused(f"the capacity must be 1 to {MOST_CAPACITY}")
                    self._switch.root.capacity = capacity
                    return {"kind": "done"}
                case {"kind": "stats"}:
                    return {"kind": "stats", **self._switch.statistics()}
        except RecordError as fault:
            return _refused(str(fault))
        return _refused("unknown request")

    def _lead(self, term: int, leader: str) -> dict[str, Any]:
        """A controller that does not lead receives only the term. This applies to an older controller, and to a second
        one with the same term."""
        root = self._switch.root
        is_led = term > root.term or (term == root.term and self._leader in ("", leader))
        if is_led:
            root.led_by(term)
            self._leader = leader
        permissions = [permission_to_data(each) for each in root.permissions()] if is_led else []
        return {
            "kind": "led", "is_led": is_led, "term": root.term, "life": self._switch.life, "capacity": root.capacity,
            "permissions": permissions,
        }  # fmt: skip

    async def _fence(self, term: int, job: str, incarnation: int, stamp: int) -> dict[str, Any]:
        if not self._switch.fence(term, job, incarnation, stamp):
            return _refused("an old term")
        logger.info("%s fenced up to stamp %d", job, stamp, extra={"code": "job_fenced"})
        if self._fences >= MOST_FENCES:
            return _refused("it is fenced, but too many fences are pending: retry")
        self._fences += 1
        try:
            async with asyncio.timeout(CLEAR_S):
                while not self._switch.root.is_clear(job, incarnation, stamp):
                    self._switch.changed.clear()
                    await self._switch.changed.wait()
        except TimeoutError:
            return _refused("it is fenced, but not clear yet: retry")
        finally:
            self._fences -= 1
        return {"kind": "fenced"}


def _refused(why: str) -> dict[str, Any]:
    return {"kind": "refused", "detail": why[:500]}


def _number(value: Any) -> int:
    """Check for a non-negative 64-bit integer. Raises: RecordError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_INTEGER:
        raise RecordError(f"{value!r:.80} is not a valid number")
    return value


def _meant(life: str) -> dict[str, str]:
    return {"life": life} if life else {}


async def _one(reader: asyncio.StreamReader) -> Any:
    """The JSON value of one frame. Raises: PeerGone, FrameError."""
    frames, waiting = FrameReader(), list[bytes]()
    while not waiting:
        data = await reader.read(_READ_BYTES)
        if not data:
            raise PeerGone("the peer closed a switch's control connection")
        waiting = frames.feed(data)
    try:
        return document.read(waiting[0])
    except ControlError as fault:
        raise FrameError("frame_length", f"not JSON: {fault}") from None


# -- client -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Led:
    """A switch's reply to `lead`. ``is_led``: it follows the controller; else ``term`` is another controller's, and the
    other fields are empty. ``life``: new at each start of the switch. ``permissions``: the current ones."""

    is_led: bool
    term: int
    life: str
    capacity: int
    permissions: tuple[Permission, ...]


class SwitchControl:
    """Sends a controller's commands to one switch. Each call opens a connection; all calls may be repeated.

    Calls raise PeerGone: the switch is unreachable or did not answer in time (it may have received the command);
    SwitchRefused.
    """

    def __init__(self, address: str) -> None:
        """Raises: FabricAddressError."""
        self.address = address
        self._target = parse_address(address)

    async def lead(self, term: int, leader: str) -> Led:
        """Lead with this term from now on. ``leader`` is the controller's own name. The switch refuses older
        controllers."""
        answer = await self._request({"kind": "lead", "term": term, "leader": leader})
        try:
            match answer:
                case {
                    "is_led": bool(is_led), "term": int(found), "life": str(life), "capacity": int(capacity),
                    "permissions": list(permissions),
                }:  # fmt: skip
                    return Led(is_led, found, life, capacity, tuple(permission_from_data(each) for each in permissions))
        except RecordError as fault:
            raise SwitchRefused(f"switch at {self.address}: {fault}") from None
        raise SwitchRefused(f"switch at {self.address}: invalid answer")

    async def allow(self, permission: Permission, life: str = "") -> None:
        """Permit the switch's part of a tree; see `Permission`. ``life``: the intended switch process; empty: any."""
        await self._request({"kind": "allow", "permission": permission_to_data(permission), **_meant(life)})

    async def fence(self, term: int, job: str, incarnation: int, stamp: int, life: str = "") -> None:
        """Refuse everything of the job up to (incarnation, stamp). Returns once nothing of it is in flight at this
        switch, at most 15 s later."""
        request = {
            "kind": "fence",
            "term": term,
            "job": job,
            "incarnation": incarnation,
            "stamp": stamp,
            **_meant(life),
        }
        await self._request(request, ANSWER_S + CLEAR_S)

    async def capacity(self, capacity: int) -> None:
        """Set the number of concurrent operations; running ones continue."""
        await self._request({"kind": "capacity", "capacity": capacity})

    async def stats(self) -> dict[str, Any]:
        """See `Switch.statistics`. ``life`` changes when the switch restarts; its state is then empty."""
        return await self._request({"kind": "stats"})

    async def _request(self, request: dict[str, Any], within_s: float = ANSWER_S) -> dict[str, Any]:
        try:
            async with asyncio.timeout(within_s):
                answer = await self._exchange(frame(orjson.dumps(request)))
        except (OSError, TimeoutError, FrameError) as fault:
            raise PeerGone(f"switch at {self.address}: {str(fault) or 'no answer in time'}") from None
        if not isinstance(answer, dict) or answer.get("kind") == "refused":
            raise SwitchRefused(
                f"switch at {self.address}: {answer.get('detail') if isinstance(answer, dict) else answer}"
            )
        return answer

    async def _exchange(self, request: bytes) -> Any:
        family, target = self._target
        if family == socket.AF_UNIX:
            reader, writer = await asyncio.open_unix_connection(str(target))
        else:
            reader, writer = await asyncio.open_connection(target[0], int(target[1]))
        try:
            writer.write(request)
            await writer.drain()
            return await _one(reader)
        finally:
            await hang_up(writer)
