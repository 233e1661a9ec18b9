"""The host side in the shell: the helper's supervisor and one connection per lane's worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError, PeerGone, ProtocolError, RegionError
from offpath.bindings.loopback.channel import LoopbackChannelListener, LoopbackConnection
from offpath.bindings.ports import Memory, MemoryExport
from offpath.bindings.wire import control, host
from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.jobs import commands, events

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon
    from offpath.dpu_daemon.sessions import JobRef

logger = logging.getLogger(__name__)
HELLO_TIMEOUT_S: Final = 5.0


@dataclass(slots=True, eq=False)
class LaneLink:
    """A lane's worker: its channel and its memory as the copy engine reaches it."""

    lease: int
    lane: int
    generation: int
    connection: LoopbackConnection
    memory: Memory | None = None
    landing_bytes: int = 0
    result_bytes: int = 0
    ref: JobRef | None = None
    """The job whose payload was last sent here."""


@dataclass(slots=True, eq=False)
class _Helper:
    number: int
    connection: LoopbackConnection
    hello: control.HelperHello
    gpus: list[GpuSpec] = field(default_factory=list)
    is_joined: bool = False


@dataclass(slots=True)
class _Order:
    """An instance asked for: who may connect as its workers."""

    command: commands.OpenLease
    token: str
    gpu_index: int


class HostSide:
    """Everything on the host's side of the channel. One helper at a time: a DPU belongs to one host."""

    def __init__(self, daemon: Daemon, listener: LoopbackChannelListener) -> None:
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._helper: _Helper | None = None
        self._helpers_seen = 0
        self._orders: dict[int, _Order] = {}
        self.lanes: dict[tuple[int, int], LaneLink] = {}
        self.gpu_names: list[str] = []
        self._copies: Counter[int] = Counter()
        self._when_quiet: list[Callable[[], None]] = []
        self._strangers: dict[LoopbackConnection, asyncio.TimerHandle] = {}
        self._loop.add_reader(listener.fileno(), self._accept)

    # -- connections ----------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        while (connection := self._listener.accept()) is not None:
            timer = self._loop.call_later(HELLO_TIMEOUT_S, self._no_hello, connection)
            self._strangers[connection] = timer
            self._loop.add_reader(connection.fileno(), self._first_message, connection)

    def _no_hello(self, connection: LoopbackConnection) -> None:
        """Time is up. If it was us who slept, the hello is here."""
        self._first_message(connection)
        if connection in self._strangers:
            self._turn_away(connection, "no hello in time")

    def _turn_away(self, connection: LoopbackConnection, why: str) -> None:
        """Close a connection that is neither helper nor worker (yet)."""
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(connection.fileno())
        logger.warning("host channel: turned away pid %d: %s", connection.peer_pid, why)
        with contextlib.suppress(PeerGone):  # it may have left before we can say so
            connection.send(control.encode(control.Closing(code="refused", detail=why[:500])))
        connection.close()

    def _first_message(self, connection: LoopbackConnection) -> None:
        try:
            received = connection.receive()
            if received is None:
                return
            _close_all(received[1])
            message = control.decode(control.HOST_TO_DAEMON, received[0])
        except (PeerGone, ProtocolError) as fault:
            self._turn_away(connection, str(fault))
            return
        if isinstance(message, control.HelperHello):
            self._meet_helper(connection, message)
        elif isinstance(message, control.WorkerHello):
            self._meet_worker(connection, message)
        else:
            self._turn_away(connection, f"{message.kind} before a hello")

    def _known(self, connection: LoopbackConnection) -> None:
        self._strangers.pop(connection).cancel()
        self._loop.remove_reader(connection.fileno())

    # -- the helper -----------------------------------------------------------------------------------------------
    def _meet_helper(self, connection: LoopbackConnection, hello: control.HelperHello) -> None:
        if self._helper is not None:
            self._turn_away(connection, f"helper {self._helper.hello.name!r} serves this daemon already")
            return
        self._known(connection)
        self._helpers_seen += 1
        self._helper = helper = _Helper(self._helpers_seen, connection, hello)
        self._loop.add_reader(connection.fileno(), self._from_helper, helper)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self._helper_gone, helper, "its process ended")
        self._join_if_complete(helper)

    def _from_helper(self, helper: _Helper) -> None:
        try:
            while self._helper is helper and (received := helper.connection.receive()) is not None:
                _close_all(received[1])
                self._helper_said(helper, control.decode(control.HOST_TO_DAEMON, received[0]))
        except (PeerGone, ProtocolError) as fault:
            self._helper_gone(helper, str(fault))

    def _helper_said(self, helper: _Helper, message: BaseModel) -> None:
        if isinstance(message, control.GpuOffer) and not helper.is_joined:
            helper.gpus.append(_spec(message))
            self._join_if_complete(helper)
        elif isinstance(message, control.InstanceFailed):
            logger.warning("lease %d could not be opened: %s", message.lease, message.detail)
            self._drop_lanes(message.lease)
            self._orders.pop(message.lease, None)
            self._daemon.dispatch(events.InstanceFailed(message.lease, message.generation))
        elif isinstance(message, control.InstanceClosed):
            self._drop_lanes(message.lease)
            self._orders.pop(message.lease, None)
            self._daemon.counters["scrubbed_bytes"] += message.scrubbed_bytes
            self._daemon.dispatch(events.InstanceClosed(message.lease, message.generation))
        else:
            self._helper_gone(helper, f"it sent {type(message).__name__} out of turn")

    def _join_if_complete(self, helper: _Helper) -> None:
        if len(helper.gpus) < helper.hello.gpu_count:
            return
        helper.is_joined = True
        ids = self._daemon.kernels.learn(helper.hello.kernels)
        self._to_helper(control.HostWelcome(generation=helper.number, kernel_ids=ids))
        self.gpu_names = [gpu.gpu for gpu in helper.gpus]
        logger.info("helper %s joined: %d GPUs, kernels %s", helper.hello.name, len(helper.gpus), ", ".join(ids))
        kernels = tuple(events.Kernel(ids[k.name], k.demand) for k in helper.hello.kernels)
        self._daemon.dispatch(events.HelperJoined(helper.number, tuple(helper.gpus), kernels))
        self._daemon.kernels_changed()

    def _helper_gone(self, helper: _Helper, why: str) -> None:
        if self._helper is not helper:
            return
        logger.warning("helper %s lost: %s", helper.hello.name, why)
        self._helper = None
        self._unwatch(helper.connection)
        helper.connection.close()
        for link in list(self.lanes.values()):
            self._close_lane(link)
        self._orders.clear()
        self._when_quiet.clear()  # orders for this helper: the next one must not be given them
        if helper.is_joined:
            self._daemon.dispatch(events.HelperLost(helper.number))

    def _unwatch(self, connection: LoopbackConnection) -> None:
        self._loop.remove_reader(connection.fileno())
        if connection.death_fileno() >= 0:
            self._loop.remove_reader(connection.death_fileno())

    def has_helper(self) -> bool:
        """True while a helper has joined."""
        return self._helper is not None and self._helper.is_joined

    # -- copies in flight -----------------------------------------------------------------------------------------
    def copy_started(self, link: LaneLink) -> None:
        """A copy into or out of the lane goes on beside the loop."""
        self._copies[link.lease] += 1

    def copy_ended(self, link: LaneLink) -> None:
        """It landed; what waited for its lease to be quiet happens now."""
        self._copies[link.lease] -= 1
        if not self._copies[link.lease]:
            del self._copies[link.lease]
            waiting, self._when_quiet = self._when_quiet, []
            for action in waiting:
                action()

    def _is_quiet(self) -> bool:
        """No copy can still land in memory of a lease that is gone. (Of one that drains, the book waits for it.)"""
        return all(lease in self._orders for lease in self._copies)

    # -- commands of the book -------------------------------------------------------------------------------------
    def open_lease(self, command: commands.OpenLease) -> None:
        """Ask the helper for the instance; its workers prove themselves with a fresh token."""
        if not self._is_quiet():  # copies into lanes of a lost helper: its memory may be ours to give
            self._when_quiet.append(lambda: self.open_lease(command))
            return
        token = self._daemon.token()
        index = self.gpu_names.index(command.gpu) if command.gpu in self.gpu_names else 0
        self._orders[command.lease] = _Order(command, token, index)
        self._to_helper(
            control.OpenInstance(
                lease=command.lease, generation=command.generation, tenant=command.tenant, gpu=command.gpu,
                profile=command.profile, start=command.start, lanes=command.lanes,
                landing_bytes=command.landing_bytes, result_bytes=command.result_bytes,
                scrub_first=command.scrub_first, token=token,
            )
        )  # fmt: skip

    def close_lease(self, command: commands.CloseLease) -> None:
        """Ask the helper to end the lease's workers and instance. Their channels closing is no loss from here on."""
        self._drop_lanes(command.lease)
        self._to_helper(control.CloseInstance(lease=command.lease, generation=command.generation, scrub=command.scrub))

    def scrub_lane(self, command: commands.ScrubLane) -> None:
        """Ask the worker."""
        link = self.lanes.get((command.lease, command.lane))
        if link is None or not self._to_worker(
            link, control.encode(control.ScrubLane(lease=command.lease, lane=command.lane))
        ):
            self._daemon.dispatch(events.WorkerLost(command.lease, command.lane, command.generation))

    def _to_helper(self, message: BaseModel) -> None:
        helper = self._helper
        if helper is None:
            return  # HelperLost is on its way to the book, which forgets these leases
        try:
            if not helper.connection.send(control.encode(message)):
                raise PeerGone("it has stopped reading")
        except PeerGone as gone:
            self._loop.call_soon(self._helper_gone, helper, str(gone))

    def _to_worker(self, link: LaneLink, message: bytes) -> bool:
        try:
            return link.connection.send(message)
        except PeerGone:
            return False

    def launch(self, link: LaneLink, message: bytes) -> bool:
        """Signal a worker; False: it surely did not get it."""
        return self._to_worker(link, message)

    # -- workers --------------------------------------------------------------------------------------------------
    def _meet_worker(self, connection: LoopbackConnection, hello: control.WorkerHello) -> None:
        order = self._orders.get(hello.lease)
        key = (hello.lease, hello.lane)
        if (
            order is None
            or not secrets.compare_digest(order.token, hello.token)
            or hello.lane >= order.command.lanes
            or key in self.lanes
        ):
            self._turn_away(connection, "no lease waits for this worker")
            return
        self._known(connection)
        self.lanes[key] = link = LaneLink(hello.lease, hello.lane, order.command.generation, connection)
        self._loop.add_reader(connection.fileno(), self._lane_offer, link)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self._worker_gone, link, "its process ended")

    def _lane_offer(self, link: LaneLink) -> None:
        """The lane's export, with its descriptor; afterwards the worker is on the fast path."""
        try:
            received = link.connection.receive()
            if received is None:
                return
            body, fds = received
            try:
                ready = control.decode(control.HOST_TO_DAEMON, body)
                if not isinstance(ready, control.LaneReady):
                    raise ProtocolError("lane_ready", f"{ready.kind} came instead")
            except ProtocolError:
                _close_all(fds)
                raise
            wanted = self._orders[link.lease].command
            if ready.landing_bytes < wanted.landing_bytes or ready.result_bytes < wanted.result_bytes:
                _close_all(fds)
                raise ProtocolError("lane_size", f"{ready.landing_bytes}+{ready.result_bytes}")
            memory = self._daemon.engine.import_memory(MemoryExport(ready.export, fds))
            if memory.nbytes < ready.landing_bytes + ready.result_bytes:
                memory.close()
                raise RegionError("the exported range is smaller than it says")
        except OffpathError as fault:
            self._worker_gone(link, str(fault))
            return
        link.memory, link.landing_bytes, link.result_bytes = memory, ready.landing_bytes, ready.result_bytes
        self._loop.remove_reader(link.connection.fileno())
        self._loop.add_reader(link.connection.fileno(), self._from_worker, link)
        self._daemon.dispatch(events.LaneReady(link.lease, link.lane, link.generation))

    def _from_worker(self, link: LaneLink) -> None:
        try:
            message = link.connection.receive_message()
            if message is None:
                return
            if message[0] == host.KIND_RESULT:
                self._daemon.result(link, host.parse_result(message))
                return
            said = control.decode(control.HOST_TO_DAEMON, message)
            if not isinstance(said, control.LaneScrubbed):
                raise ProtocolError("out_of_turn", said.kind)
        except (PeerGone, ProtocolError) as fault:
            self._worker_gone(link, str(fault))
            return
        self._daemon.counters["scrubbed_bytes"] += said.scrubbed_bytes
        self._daemon.dispatch(events.LaneScrubbed(link.lease, link.lane, link.generation))

    def _worker_gone(self, link: LaneLink, why: str) -> None:
        if self.lanes.get((link.lease, link.lane)) is not link:
            return
        logger.warning("worker of lease %d lane %d lost: %s", link.lease, link.lane, why)
        self._close_lane(link)
        self._daemon.dispatch(events.WorkerLost(link.lease, link.lane, link.generation))

    def _close_lane(self, link: LaneLink) -> None:
        self.lanes.pop((link.lease, link.lane), None)
        self._unwatch(link.connection)
        link.connection.close()
        if link.memory is not None:
            link.memory.close()

    def _drop_lanes(self, lease: int) -> None:
        for link in [link for link in self.lanes.values() if link.lease == lease]:
            self._close_lane(link)

    def holds(self, link: LaneLink) -> bool:
        """True while the lane's worker is connected."""
        return self.lanes.get((link.lease, link.lane)) is link

    def gpu_index(self, lease: int) -> int:
        """The GPU of a lease as the answer header names it, counted in the helper's order."""
        order = self._orders.get(lease)
        return order.gpu_index if order is not None else 0

    def close(self) -> None:
        """Hang up on everybody. The helper scrubs and destroys what it holds when its channel closes."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in list(self._strangers):
            self._turn_away(connection, "the daemon ends")
        for link in list(self.lanes.values()):
            self._close_lane(link)
        if self._helper is not None:
            self._unwatch(self._helper.connection)
            self._helper.connection.close()
            self._helper = None


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)


def _spec(offer: control.GpuOffer) -> GpuSpec:
    profiles = tuple(
        Profile(p.name, p.compute_slices, p.memory_slices, p.memory_bytes, tuple(p.starts), p.max_instances)
        for p in offer.profiles
    )
    return GpuSpec(offer.uuid, offer.model, offer.compute_slices, offer.memory_slices, profiles)
