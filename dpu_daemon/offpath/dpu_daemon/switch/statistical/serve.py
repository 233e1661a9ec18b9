"""Runs a statistical switch: connections, timers, signals. All decisions are `Rack`'s.

Each process of a job has one connection, a byte stream. The stream loses nothing: the emulated links decide what is
lost. A process that does not read loses what does not fit its connection's buffer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from offpath.bindings.errors import PacketError
from offpath.bindings.ina.address import parse_address, tune
from offpath.bindings.ina.packets import Packet, PacketKind, PacketReader, Refusal, pack
from offpath.dpu_daemon.listening.accepting import Unidentified, address_of
from offpath.dpu_daemon.operation import logs
from offpath.dpu_daemon.switch.statistical.rack import Port, Rack, RackSettings
from offpath.dpu_daemon.switch.switch import listen

logger = logging.getLogger(__name__)
MOST_CONNECTIONS: Final = 4096
MOST_PENDING: Final = 256
"""Connections without an ATTACH. The oldest is closed to make room."""
ATTACH_S: Final = 10.0
MOST_UNREAD: Final = 1 << 20
"""Bytes that wait for a process; packets beyond are dropped."""
_EVENTS_S: Final = 0.25


class _Connection(asyncio.Protocol):
    def __init__(self, shell: SwitchShell) -> None:
        self._shell = shell
        self._reader = PacketReader()
        self._timer: asyncio.TimerHandle | None = None
        self.port: Port | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self._shell.let_in(self):
            transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(ATTACH_S, self._late)

    def _late(self) -> None:
        if self.port is None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for packet in self._reader.feed(data):
                self._shell.received(self, packet)
                if self.transport.is_closing():
                    return
        except PacketError as fault:
            self._shell.malformed += 1
            logger.warning("process disconnected: %s", fault, extra={"code": "process_refused"})
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._shell.left(self)

    def send(self, packet: Packet) -> bool:
        """False: dropped, because the process does not read."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size() > MOST_UNREAD:
            return False
        self.transport.write(pack(packet))
        return True


class SwitchShell:
    """Carries packets between connections and a `Rack`. ``events``: a file that gets the statistics as a JSON line four
    times a second."""

    def __init__(self, settings: RackSettings, events: str | None = None) -> None:
        """Raises: ValueError, OSError."""
        self.rack = Rack(settings)
        self.malformed = self.unread = 0
        self._stale_s = settings.stale_ns / 1e9
        self._ports: dict[Port, _Connection] = {}
        self._connections: set[_Connection] = set()
        self._pending = Unidentified(4 * MOST_PENDING)  # a quarter of them for one address
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._server: asyncio.Server | None = None
        self._path = ""
        self._repeated: dict[str, asyncio.TimerHandle] = {}
        self._events = open(events, "a", buffering=1, encoding="ascii") if events is not None else None  # noqa: SIM115

    async def start(self, address: str) -> str:
        """Listen; returns the address to connect to. Raises: FabricAddressError, PlaceUnusable."""
        sock, found = listen(address)
        family, target = parse_address(found)
        if family == socket.AF_UNIX:
            self._path = str(target)
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), sock=sock)
        self._flush_stale()
        if self._events is not None:
            self._write_events()
        return found

    async def close(self) -> None:
        """Disconnect all processes."""
        for timer in [*self._repeated.values(), *([self._timer] if self._timer is not None else [])]:
            timer.cancel()
        if self._server is not None:
            self._server.close()
        for each in list(self._connections):
            each.transport.abort()
        await asyncio.sleep(0)
        if self._path and os.path.exists(self._path):
            os.unlink(self._path)
        if self._events is not None:
            self._write_event()
            self._events.close()

    def statistics(self) -> dict[str, Any]:
        """See `Rack.statistics`."""
        return {**self.rack.statistics(), "malformed": self.malformed, "unread": self.unread}

    # -- connections --------------------------------------------------------------------------------------------------
    def let_in(self, connection: _Connection) -> bool:
        """A connection was made. False: there are too many."""
        if len(self._connections) >= MOST_CONNECTIONS:
            return False
        sock: socket.socket = connection.transport.get_extra_info("socket")
        try:
            tune(sock)
            self._pending.add(connection, address_of(sock), connection.transport.abort)
        except OSError:  # it has disconnected already
            return False
        self._connections.add(connection)
        return True

    def received(self, connection: _Connection, packet: Packet) -> None:
        """A packet from a process. Before its ATTACH, and twice an ATTACH, breaks the rules: it is disconnected."""
        if connection.port is not None and packet.kind is not PacketKind.ATTACH:
            self.rack.handle(connection.port, packet, time.monotonic_ns())
            self._watch()
        elif connection.port is not None or packet.kind is not PacketKind.ATTACH:
            self.malformed += 1
            connection.transport.abort()
        else:
            self._attach(connection, packet)

    def left(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._pending.remove(connection)
        if connection.port is None:
            return
        del self._ports[connection.port]
        notice = self.rack.detach(connection.port)
        if notice is not None:
            self._deliver(*notice)
        elif connection.port.rank < 0:  # without its PS the job cannot go on
            for port, other in list(self._ports.items()):
                if port.job == connection.port.job:
                    other.transport.abort()

    def _attach(self, connection: _Connection, packet: Packet) -> None:
        port = self.rack.attach(packet)
        if isinstance(port, Refusal):
            logger.warning("process refused: %s", port.name.lower(), extra={"code": "process_refused"})
            connection.send(Packet(PacketKind.REFUSED, packet.job, int(port), packet.workers))
            connection.transport.close()
            return
        connection.port = port
        self._ports[port] = connection
        self._pending.remove(connection)
        for each in self.rack.newly_ready(port.job):
            self._deliver(each, Packet(PacketKind.READY, port.job, 0, packet.workers))

    def _deliver(self, port: Port, packet: Packet) -> None:
        connection = self._ports.get(port)
        if connection is not None and not connection.send(packet):
            self.unread += 1

    # -- time ---------------------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Wake when the rack has something to do."""
        at_ns = self.rack.next_ns()
        if self._timer is not None:
            if at_ns is not None and at_ns >= self._timer_ns:
                return
            self._timer.cancel()
            self._timer = None
        if at_ns is not None:
            self._timer_ns = at_ns
            wait_s = max(0, at_ns - time.monotonic_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._advance)

    def _advance(self) -> None:
        self._timer = None
        for port, packet in self.rack.advance(time.monotonic_ns()):
            self._deliver(port, packet)
        self._watch()

    def _flush_stale(self) -> None:
        self.rack.flush_stale(time.monotonic_ns())
        self._watch()
        self._again(self._stale_s / 2, self._flush_stale)

    def _write_events(self) -> None:
        self._write_event()
        self._again(_EVENTS_S, self._write_events)

    def _write_event(self) -> None:
        assert self._events is not None
        self._events.write(json.dumps({"t_ns": time.monotonic_ns(), **self.statistics()}) + "\n")

    def _again(self, after_s: float, what: Callable[[], None]) -> None:
        self._repeated[what.__name__] = asyncio.get_running_loop().call_later(after_s, what)


async def serve(
    settings: RackSettings, address: str, ready: Callable[[str], None], *, events: str | None = None, log: str = "text"
) -> dict[str, Any]:
    """Serve until SIGTERM or SIGINT; returns the final statistics. ``ready`` gets the address.

    Raises: FabricAddressError, PlaceUnusable, ValueError, OSError: the events' file.
    """
    logs.set_up(log)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.loop_fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    shell = SwitchShell(settings, events)
    try:
        ready(await shell.start(address))
        await stop.wait()
        return shell.statistics()
    finally:
        await shell.close()


def run(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Blocking `serve`. Its loop is asyncio's own: packets are few, and its timers are as fine."""
    return asyncio.run(serve(*arguments, **options))
