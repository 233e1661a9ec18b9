"""The UDP socket of one key-value service: it carries packets between clients and a `Store`, `Cache` or `Chain`.

What is no packet is counted and dropped. Control datagrams need the task's token.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections.abc import Callable
from typing import Final

from pydantic import BaseModel

from offpath.bindings.errors import ControlError, PlaceUnusable
from offpath.bindings.wire import control
from offpath.dpu_daemon.switch.inc import messages
from offpath.dpu_daemon.switch.inc.cache import Cache
from offpath.dpu_daemon.switch.inc.chain import Chain
from offpath.dpu_daemon.switch.inc.packets import (
    CONTROL,
    NOWHERE,
    Address,
    DatagramInvalid,
    Packet,
    address_of,
    answer,
    controlled,
    pack,
    unpack,
)
from offpath.dpu_daemon.switch.inc.store import Store

ENTRY_BYTES: Final = 256
"""Of memory for a key with its value and version."""
TICK_S: Final = 0.02
_BUFFER: Final = 1 << 20
Service = Store | Cache | Chain


def keys_of(sram_kib: int) -> int:
    """Entries that so much memory holds."""
    return max(1, sram_kib * 1024 // ENTRY_BYTES)


def bound(address: str) -> socket.socket:
    """A UDP socket at HOST:PORT; port 0: any. Raises: PlaceUnusable."""
    host, _, port = address.rpartition(":")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        sock.bind((host, int(port)))
    except (OSError, ValueError, OverflowError) as fault:
        sock.close()
        raise PlaceUnusable(f"udp {address}: {fault}") from None
    return sock


class Endpoint(asyncio.DatagramProtocol):
    """``make``: the service, given its own address. ``dropped``: called for each datagram that is none of ours."""

    def __init__(
        self, make: Callable[[Address], Service], token: bytes, dropped: Callable[[], None] = lambda: None
    ) -> None:  # fmt: skip
        self._make, self._token, self._dropped = make, token, dropped
        self.service: Service
        self.address: Address
        self._epoch = 0
        self._transport: asyncio.DatagramTransport
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, sock: socket.socket) -> str:
        """Serve on the socket; returns HOST:PORT."""
        self.address = sock.getsockname()[:2]
        self.service = self._make(self.address)
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=sock)
        if isinstance(self.service, Store):  # the only one that has something to repeat
            self._tick()
        return f"{self.address[0]}:{self.address[1]}"

    def close(self) -> None:
        """Serve no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()

    def _tick(self) -> None:
        self._send(self.service.tick(time.monotonic_ns()))
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def error_received(self, exc: Exception) -> None:
        """A peer's port is closed; it repeats what it wants."""

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """From a client, another service or the manager."""
        try:
            if data[:4] == CONTROL:
                self._controlled(data, addr)
            else:
                self._send(self.service.handle(unpack(data), addr[:2], time.monotonic_ns()))
        except (DatagramInvalid, ControlError):
            self._dropped()

    def _send(self, sent: list[tuple[Address, Packet]]) -> None:
        for address, packet in sent:
            if address[1]:
                self._transport.sendto(pack(packet), address)

    def _controlled(self, data: bytes, addr: Address) -> None:
        token, number, body = controlled(data)
        if not hmac.compare_digest(token, self._token):
            raise DatagramInvalid("wrong token")
        reply = self._reply(control.decode(messages.TO_SERVICE, body))
        self._transport.sendto(answer(token, number, control.encode(reply)), addr)

    def _reply(self, request: messages.ToService) -> BaseModel:
        match request, self.service:
            case messages.Configure(), _:
                self._configure(request)
                return self._done()
            case messages.Pull(), Chain() as chain:
                return _page(chain, request.after)
            case messages.Load(), Chain() as chain:
                entries = [(bytes.fromhex(e.key), e.version, bytes.fromhex(e.value)) for e in request.entries]
                return self._done() if chain.load(entries) else messages.Refused(detail="no room for the entries")
        return messages.Refused(detail="only a chain has entries")

    def _configure(self, request: messages.Configure) -> None:
        """Raises: DatagramInvalid: an address is none; nothing changes."""
        if request.epoch < self._epoch:
            return
        stores = [address_of(each) if each else NOWHERE for each in request.stores]
        chain = [address_of(each) for each in request.chain]
        self._epoch = request.epoch
        if isinstance(self.service, Cache):
            self.service.stores = stores
        elif isinstance(self.service, Chain):
            self.service.members, self.service.is_open = chain, request.is_open

    def _done(self) -> messages.Done:
        keys = self.service.keys if isinstance(self.service, Cache) else len(self.service.table)
        return messages.Done(epoch=self._epoch, keys=keys, counters=dict(self.service.counters))


def _page(chain: Chain, after: str) -> messages.Entries:
    behind = bytes.fromhex(after)
    keys = sorted(key for key in chain.table if key > behind or not after)
    entries = [
        messages.Entry(key=key.hex(), version=chain.table[key][0], value=chain.table[key][1].hex())
        for key in keys[: messages.MOST_ENTRIES]
    ]
    return messages.Entries(entries=entries, is_last=len(keys) <= messages.MOST_ENTRIES)


def service_of(name: str, most_keys: int) -> Callable[[Address], Service]:
    """How to make the service ``name``: `store`, `cache` or `chain`. Raises: ValueError: there is none."""
    match name:
        case "store":
            return lambda _: Store(most_keys)
        case "cache":
            return lambda _: Cache(most_keys)
        case "chain":
            return lambda here: Chain(most_keys, here)
    raise ValueError(f"no service {name!r:.40}: store, cache or chain")
