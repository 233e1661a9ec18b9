"""The host side in the shell: the helper's supervisor and one connection per lane's worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError, PeerGone, ProtocolError, RegionError
from offpath.bindings.loopback.channel import LoopbackChannelListener, LoopbackConnection
from offpath.bindings.ports import Memory, MemoryExport
from offpath.bindings.wire import control, host
from offpath.dpu_daemon.landings import Landings
from offpath.dpu_daemon.offers import gpu_spec
from offpath.dpu_daemon.pulse import Pulse
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import LeaseState

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon
    from offpath.dpu_daemon.sessions import JobRef
    from offpath.sched.jobs.records import Lease

logger = logging.getLogger(__name__)
HELLO_TIMEOUT_S: Final = 5.0
_ACCEPTS: Final = 16  # in one turn of the loop, so that a flood of strangers does not hold up who is in


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
    last_job: int = 0
    """Of a worker that came back: the last launch it received."""
    resent: int = 0
    """The job whose result it sends again, because it cannot know whether we had it."""


@dataclass(slots=True, eq=False)
class _Helper:
    number: int
    connection: LoopbackConnection
    hello: control.HelperHello
    gpus: list[GpuSpec] = field(default_factory=list)
    held: list[control.InstanceHeld] = field(default_factory=list)
    is_joined: bool = False
    pulse: Pulse | None = None
    is_lost: bool = False
    """A message did not reach it: nothing may follow."""


@dataclass(slots=True)
class _Order:
    """An instance asked for: who may connect as its workers."""

    command: commands.OpenLease
    token: str
    gpu_index: int
    is_closing: bool = False


class HostSide:
    """Everything on the host's side of the channel. One helper at a time: a DPU belongs to one host."""

    def __init__(self, daemon: Daemon, listener: LoopbackChannelListener) -> None:
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self.path = listener.path
        self._helper: _Helper | None = None
        self._helpers_seen = 0
        self._orders: dict[int, _Order] = {}
        self.lanes: dict[tuple[int, int], LaneLink] = {}
        self.gpu_names: list[str] = []
        self.landings = Landings()
        self._parting: set[LoopbackConnection] = set()
        """Of helpers that are lost, and may still be copied to."""
        self._strangers: dict[LoopbackConnection, asyncio.TimerHandle] = {}
        self.awaited: set[tuple[int, int]] = set()
        """After a restart: lanes whose workers are expected back."""
        self._awaited_helper = ""
        self.on_lane_back: Callable[[LaneLink], None] = lambda link: None
        self._loop.add_reader(listener.fileno(), self._accept)

    # -- connections ----------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            if (connection := self._listener.accept()) is None:
                return
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
        is_self_check = connection.peer_pid == os.getpid()
        logger.log(
            logging.DEBUG if is_self_check else logging.WARNING,
            "host channel: turned away pid %d: %s", connection.peer_pid, why,
        )  # fmt: skip
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
        """One message a turn: a helper that talks without end holds nobody up."""
        try:
            if (received := helper.connection.receive()) is not None:
                _close_all(received[1])
                if helper.pulse is not None:
                    helper.pulse.heard()
                self._helper_said(helper, control.decode(control.HOST_TO_DAEMON, received[0]))
        except (PeerGone, ProtocolError) as fault:
            self._helper_gone(helper, str(fault))

    def _helper_said(self, helper: _Helper, message: BaseModel) -> None:
        if isinstance(message, control.GpuOffer) and not helper.is_joined:
            helper.gpus.append(gpu_spec(message, helper.gpus))
            self._join_if_complete(helper)
        elif isinstance(message, control.Pong) and helper.pulse is not None:
            helper.pulse.answered(message)
        elif isinstance(message, control.WorkerDied):
            self._worker_died(message)
        elif isinstance(message, control.InstanceHeld) and not helper.is_joined:
            helper.held.append(message)
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
            if self._is_unscrubbed(message):
                self._daemon.dispatch(events.InstanceFailed(message.lease, message.generation))
            else:
                self._daemon.dispatch(events.InstanceClosed(message.lease, message.generation))
        else:
            self._helper_gone(helper, f"it sent {type(message).__name__} out of turn")

    def _worker_died(self, died: control.WorkerDied) -> None:
        """One with a channel is told of by that, after its last words."""
        key = died.lease, died.lane
        if key in self.lanes:
            return
        if key in self.awaited and self._daemon.book.ledger.lease_of(died.lease, died.generation) is not None:
            self._lane_missing(key)
        else:
            self._daemon.dispatch(events.WorkerLost(died.lease, died.lane, died.generation))

    def _is_unscrubbed(self, closed: control.InstanceClosed) -> bool:
        """It was to be scrubbed and was not: the helper had dropped it before we asked, and a copy of ours may have
        landed there since."""
        book = self._daemon.book
        lease = book.ledger.lease_of(closed.lease, closed.generation)
        is_asked = lease is not None and lease.is_closing and book.leasing.closing(lease).scrub
        return is_asked and not closed.scrubbed_bytes

    def _join_if_complete(self, helper: _Helper) -> None:
        if len(helper.gpus) < helper.hello.gpu_count or len(helper.held) < helper.hello.held_count:
            return
        try:
            ids = self._daemon.kernels.learn(helper.hello.kernels)
        except ProtocolError as fault:
            self._helper_gone(helper, str(fault))
            return
        helper.is_joined = True
        helper.pulse = Pulse(
            lambda: self._daemon.config.limits, self._to_helper, self._is_at_work,
            lambda why: self._helper_gone(helper, why),
        )  # fmt: skip
        keep = self._come_back(helper) if self._awaited_helper else None
        linger_ms = 2 * self._daemon.config.durability.adopt_ms if self._daemon.is_durable else 0
        self._to_helper(
            control.HostWelcome(generation=helper.number, kernel_ids=ids, keep=keep or [], linger_ms=linger_ms)
        )
        if keep is not None:
            self._reconcile(helper, set(keep))
            return
        self.gpu_names = [gpu.gpu for gpu in helper.gpus]
        logger.info("helper %s joined: %d GPUs, kernels %s", helper.hello.name, len(helper.gpus), ", ".join(ids))
        kernels = tuple(events.Kernel(ids[k.name], k.demand, k.name) for k in helper.hello.kernels)
        joined = events.HelperJoined(helper.number, tuple(helper.gpus), kernels, helper.hello.incarnation)
        self._daemon.dispatch(joined)
        self._daemon.kernels_changed()

    # -- after a restart ------------------------------------------------------------------------------------------
    def restore(self) -> None:
        """The book is one that another process left: expect its helper and its workers back."""
        leasing, leases = self._daemon.book.leasing, self._daemon.book.ledger.leases
        self._helpers_seen = leasing.helper
        self.gpu_names = [gpu.gpu for gpu in leasing.gpus]
        for number, lease in leases.items():
            command = leasing.opening(lease)
            token = self._daemon.order_token(number, lease.generation)
            self._orders[number] = _Order(command, token, self.gpu_names.index(command.gpu))
            if not lease.is_closing:
                self.awaited |= {(number, lane) for lane in range(lease.view.lanes) if lane not in lease.lost}
        if leasing.helper:
            self._awaited_helper = leasing.origin or "unknown"
        self._loop.call_later(self._daemon.config.durability.adopt_ms / 1e3, self._stop_waiting)

    def _come_back(self, helper: _Helper) -> list[int] | None:
        """The helper is the one the book knows: the leases it keeps. None: another process, with nothing of ours."""
        book = self._daemon.book
        if helper.hello.incarnation != self._awaited_helper or tuple(helper.gpus) != tuple(book.leasing.gpus):
            self._forget_helper()
            return None
        self._awaited_helper = ""
        helper.number = self._helpers_seen = book.leasing.helper
        held = {(one.lease, one.generation) for one in helper.held}
        return [number for number, lease in book.ledger.leases.items() if (number, lease.generation) in held]

    def _reconcile(self, helper: _Helper, kept: set[int]) -> None:
        """Give the orders again that may not have arrived; report what did not survive."""
        book, dispatch = self._daemon.book, self._daemon.dispatch
        logger.info("helper %s is back with %d of %d leases", helper.hello.name, len(kept), len(book.ledger.leases))
        alive = {(one.lease, lane) for one in helper.held for lane in one.lanes}
        for number, lease in list(book.ledger.leases.items()):
            if lease.is_closing:
                self.close_lease(book.leasing.closing(lease))
                continue
            lanes = [(number, lane) for lane in range(lease.view.lanes)]
            if number not in kept and lease.state is LeaseState.CREATING:
                self.awaited.difference_update(lanes)
                if lease.ready:  # what it had of it is gone; the book must not count lanes of two instances
                    del self._orders[number]
                    dispatch(events.InstanceFailed(number, lease.generation))
                else:
                    self.open_lease(book.leasing.opening(lease))
            else:
                for key in lanes:
                    if key not in alive and key in self.awaited:
                        self._lane_missing(key)
        dispatch(events.Tick())
        self._daemon.kernels_changed()

    def _lane_missing(self, key: tuple[int, int]) -> None:
        """Its worker will not come back."""
        self.awaited.discard(key)
        lease = self._daemon.book.ledger.leases.get(key[0])
        if lease is not None:
            self._daemon.dispatch(events.WorkerLost(*key, lease.generation))
            self._end_dead_copies(lease)

    def _end_dead_copies(self, lease: Lease) -> None:
        """Copies into lanes that were lost went with our former process, but for those that we posted."""
        for job, attempt in sorted(lease.strays - self._daemon.copies_in_flight()):
            self._daemon.dispatch(events.CopyDone(job, attempt, error=True))

    def _stop_waiting(self) -> None:
        """Whoever is not back by now is lost."""
        if self._awaited_helper:
            self._forget_helper()
        for key in sorted(self.awaited):
            self._lane_missing(key)
        self._daemon.give_up_unwritten()

    def _forget_helper(self) -> None:
        """The helper the book knows is not coming back."""
        self._awaited_helper = ""
        self.awaited.clear()
        for link in list(self.lanes.values()):
            self._close_lane(link)
        self._orders.clear()
        self._daemon.dispatch(events.HelperLost(self._daemon.book.leasing.helper))

    def _helper_gone(self, helper: _Helper, why: str) -> None:
        if self._helper is not helper:
            return
        logger.warning("helper %s lost: %s", helper.hello.name, why)
        self._helper = None
        if helper.pulse is not None:
            helper.pulse.stop()
        self._unwatch(helper.connection)
        for link in list(self.lanes.values()):
            self._close_lane(link)
        self._orders.clear()
        self.awaited.clear()
        # When it sees us hang up, nothing of ours lands in its memory any more: it may scrub.
        self._parting.add(helper.connection)
        self.landings.when_landed(self.landings.leases(), partial(self._part, helper.connection))
        if helper.is_joined:
            self._daemon.dispatch(events.HelperLost(helper.number))

    def _part(self, connection: LoopbackConnection) -> None:
        self._parting.discard(connection)
        connection.close()

    def _unwatch(self, connection: LoopbackConnection) -> None:
        self._loop.remove_reader(connection.fileno())
        if connection.death_fileno() >= 0:
            self._loop.remove_reader(connection.death_fileno())

    def _is_at_work(self) -> bool:
        """An instance is being opened or closed: the helper may be scrubbing it."""
        return any(
            order.is_closing or any((lease, lane) not in self.lanes for lane in range(order.command.lanes))
            for lease, order in self._orders.items()
        )

    def limits_changed(self) -> None:
        """They count from now on."""
        if self._helper is not None and self._helper.pulse is not None:
            self._helper.pulse.look_again()

    def has_helper(self) -> bool:
        """True while a helper has joined."""
        return self._helper is not None and self._helper.is_joined

    # -- commands of the book -------------------------------------------------------------------------------------
    def open_lease(self, command: commands.OpenLease) -> None:
        """Ask the helper for the instance; its workers prove themselves with a fresh token."""
        lease = self._daemon.book.ledger.lease_of(command.lease, command.generation)
        if lease is None or lease.is_closing:
            return  # forgotten with its helper, or given up, before it could be ordered
        if former := self.landings.leases() - self._orders.keys():
            # Copies into lanes of a lost helper: its memory may be ours to give.
            # (For those into a lease that drains, the book waits.)
            self.landings.when_landed(former, partial(self.open_lease, command))
            return
        if self._awaited_helper:
            return  # given when the helper is back
        token = self._daemon.order_token(command.lease, command.generation)
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
        if command.lease in self._orders:
            self._orders[command.lease].is_closing = True
        self._to_helper(control.CloseInstance(lease=command.lease, generation=command.generation, scrub=command.scrub))

    def scrub_lane(self, command: commands.ScrubLane) -> None:
        """Ask the worker."""
        if (command.lease, command.lane) in self.awaited:
            return  # asked when its worker is back
        link = self.lanes.get((command.lease, command.lane))
        if link is None or not self._to_worker(
            link, control.encode(control.ScrubLane(lease=command.lease, lane=command.lane))
        ):
            self._daemon.dispatch(events.WorkerLost(command.lease, command.lane, command.generation))

    def kill_lane(self, command: commands.KillLane) -> None:
        """Have the helper kill the worker; that its channel then closes is news to nobody."""
        self._daemon.counters["workers_killed"] += 1
        logger.warning("worker of lease %d lane %d is to be killed", command.lease, command.lane)
        self._to_helper(control.KillWorker(lease=command.lease, lane=command.lane, generation=command.generation))

    def lane_is_back(self, link: LaneLink) -> None:
        """The worker is back and has said what it had to say."""
        self.awaited.discard((link.lease, link.lane))
        lease = self._daemon.book.ledger.leases.get(link.lease)
        if lease is not None:
            self._end_dead_copies(lease)
        self.on_lane_back(link)

    def scrub_again(self, link: LaneLink) -> None:
        """A worker is back: if its lane was to be scrubbed and is not, it is asked once more."""
        lease = self._daemon.book.ledger.leases.get(link.lease)
        if lease is not None and lease.state is LeaseState.SCRUBBING and link.lane not in lease.scrubbed:
            self.scrub_lane(commands.ScrubLane(link.lease, link.lane, link.generation))

    def _to_helper(self, message: BaseModel) -> None:
        helper = self._helper
        if helper is None or helper.is_lost:
            return  # HelperLost is on its way to the book, which forgets these leases
        try:
            if not helper.connection.send(control.encode(message)):
                raise PeerGone("it has stopped reading")
        except PeerGone as gone:
            helper.is_lost = True
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
            or self._is_lost(hello)
        ):
            self._turn_away(connection, "no lease waits for this worker")
            return
        self._known(connection)
        self.lanes[key] = link = LaneLink(hello.lease, hello.lane, order.command.generation, connection)
        link.last_job, link.resent = hello.last_job, hello.last_job if hello.has_result else 0
        self._loop.add_reader(connection.fileno(), self._lane_offer, link)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self._worker_gone, link, "its process ended")

    def _is_lost(self, hello: control.WorkerHello) -> bool:
        """The book has given this lane up: a worker that was dropped may not come back to it."""
        lease = self._daemon.book.ledger.leases.get(hello.lease)
        return lease is None or hello.lane in lease.lost

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
        if (link.lease, link.lane) in self.awaited and not link.resent:
            self.lane_is_back(link)  # before the book may send it anything new, that would look as if it never arrived
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
        if (link.lease, link.lane) in self.awaited:  # it was back, and left before its lane was
            self._lane_missing((link.lease, link.lane))
            return
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

    def close(self, *, is_final: bool = True) -> None:
        """Hang up on everybody. Told that it is final, or left alone for too long, the helper scrubs and destroys what
        it holds."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in list(self._strangers):
            self._turn_away(connection, "the daemon ends")
        for connection in self._parting:
            connection.close()
        for link in list(self.lanes.values()):
            self._close_lane(link)
        if self._helper is not None:
            if self._helper.pulse is not None:
                self._helper.pulse.stop()
            if is_final:
                with contextlib.suppress(PeerGone):
                    self._helper.connection.send(
                        control.encode(control.Closing(code="daemon_ends", detail="the daemon ends"))
                    )
            self._unwatch(self._helper.connection)
            self._helper.connection.close()
            self._helper = None


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
