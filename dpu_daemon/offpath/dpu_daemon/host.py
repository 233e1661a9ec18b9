"""The host side in the shell: the helper's supervisor and one connection per lane's worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError, PeerGone, ProtocolError, RegionError
from offpath.bindings.ports import HostConnection, HostListener, MemoryExport
from offpath.bindings.wire import control, host
from offpath.dpu_daemon.inflight import HelperLink, LaneLink, Order
from offpath.dpu_daemon.offers import gpu_spec
from offpath.dpu_daemon.pulse import Pulse
from offpath.dpu_daemon.reunion import Reunion
from offpath.dpu_daemon.strangers import Strangers, close_all
from offpath.sched.jobs import commands, events

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon

logger = logging.getLogger(__name__)
_LAST_WORDS: Final = 4
"""A worker has at most a result and a scrub on its way."""


class HostSide:
    """Everything on the host's side of the channel. One helper at a time: a DPU belongs to one host."""

    def __init__(self, daemon: Daemon, listener: HostListener) -> None:
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self.listener = listener
        self._helper: HelperLink | None = None
        self.helpers_seen = 0
        self.orders: dict[int, Order] = {}
        self.lanes: dict[tuple[int, int], LaneLink] = {}
        self.gpu_names: list[str] = []
        self._parting: set[HostConnection] = set()
        """Of helpers that are lost, and may still be copied to."""
        self.on_ina: Callable[[control.InaStates | None], None] = lambda said: None
        """What the helper says of its ranks, and None when it has joined."""
        self.reunion = Reunion(daemon, self)
        self.strangers = Strangers(
            listener, self._meet_helper, self._meet_worker, on_contact=self.reunion.seen, count=daemon.count
        )

    # -- the helper -----------------------------------------------------------------------------------------------
    def _meet_helper(self, connection: HostConnection, hello: control.HelperHello) -> None:
        if self._helper is not None:
            self.strangers.turn_away(connection, f"helper {self._helper.hello.name!r} serves this daemon already")
            return
        self.strangers.known(connection)
        self.helpers_seen += 1
        self._helper = helper = HelperLink(self.helpers_seen, connection, hello)
        self._loop.add_reader(connection.fileno(), self._from_helper, helper)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self._helper_gone, helper, "its process ended")
        self._join_if_complete(helper)

    def _from_helper(self, helper: HelperLink) -> None:
        """One message a turn: a helper that talks without end holds nobody up."""
        try:
            if (received := helper.connection.receive()) is not None:
                close_all(received[1])
                if not helper.is_joined:
                    self.reunion.seen()
                if helper.pulse is not None:
                    helper.pulse.heard()
                self._helper_said(helper, control.decode(control.HOST_TO_DAEMON, received[0]))
        except (PeerGone, ProtocolError) as fault:
            self._helper_gone(helper, str(fault))

    def _helper_said(self, helper: HelperLink, message: BaseModel) -> None:
        if isinstance(message, control.GpuOffer) and not helper.is_joined:
            helper.gpus.append(gpu_spec(message, helper.gpus))
            self._join_if_complete(helper)
        elif isinstance(message, control.Pong) and helper.pulse is not None:
            helper.pulse.answered(message)
        elif isinstance(message, control.WorkerDied):
            self._worker_died(message)
        elif isinstance(message, control.Goodbye):
            self._helper_gone(helper, "it ends", is_orderly=True)
        elif isinstance(message, control.InaStates) and helper.is_joined:
            self.on_ina(message)
        elif isinstance(message, control.InstanceHeld) and not helper.is_joined:
            helper.held.append(message)
            self._join_if_complete(helper)
        elif isinstance(message, control.InstanceFailed):
            logger.warning("lease %d could not be opened: %s", message.lease, message.detail)
            self._drop_lanes(message.lease)
            self.orders.pop(message.lease, None)
            self._daemon.book_loop.dispatch(events.InstanceFailed(message.lease, message.generation))
        elif isinstance(message, control.InstanceClosed):
            self._drop_lanes(message.lease)
            self.orders.pop(message.lease, None)
            self._daemon.counters["scrubbed_bytes"] += message.scrubbed_bytes
            if self._is_unscrubbed(message):
                self._daemon.book_loop.dispatch(events.InstanceFailed(message.lease, message.generation))
            else:
                self._daemon.book_loop.dispatch(events.InstanceClosed(message.lease, message.generation))
        else:
            self._helper_gone(helper, f"it sent {type(message).__name__} out of turn")

    def _worker_died(self, died: control.WorkerDied) -> None:
        """One with a channel that sees its end is told of by that, after its last words. Elsewhere the helper's word is
        the proof: it is the worker's parent."""
        key = died.lease, died.lane
        link = self.lanes.get(key)
        if link is not None:
            if link.connection.death_fileno() < 0 and link.generation == died.generation:
                self._hear_out(link)
            return
        if key in self.reunion.awaited and self._daemon.book.ledger.lease_of(died.lease, died.generation) is not None:
            self.reunion.lane_missing(key)
        else:
            self._daemon.book_loop.dispatch(events.WorkerLost(died.lease, died.lane, died.generation))

    def _hear_out(self, link: LaneLink) -> None:
        """Its process ended: what it said before counts, as far as it has come; then it is lost."""
        waiting = self._from_worker if link.memory is not None else self._lane_offer
        for _ in range(_LAST_WORDS):
            waiting(link)
            if not self.holds(link) or link.connection.has_ended():
                break
        self.worker_gone(link, "its process ended")

    def _is_unscrubbed(self, closed: control.InstanceClosed) -> bool:
        """It was to be scrubbed and was not: the helper had dropped it before we asked, and a copy of ours may have
        landed there since."""
        book = self._daemon.book
        lease = book.ledger.lease_of(closed.lease, closed.generation)
        is_asked = lease is not None and lease.is_closing and book.leasing.closing(lease).scrub
        return is_asked and not closed.scrubbed_bytes

    def _join_if_complete(self, helper: HelperLink) -> None:
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
        keep = self.reunion.come_back(helper) if self.reunion.helper else None
        durability = self._daemon.config.durability
        longest_ms = max(durability.adopt_ms, durability.adopt_max_ms)  # the next process may wait for so long
        linger_ms = durability.adopt_ms + longest_ms if self._daemon.is_durable else 0
        welcome = control.HostWelcome(generation=helper.number, kernel_ids=ids, keep=keep or [], linger_ms=linger_ms)
        if keep is not None:
            for message in host_welcome_messages(welcome):
                self._to_helper(message)
            self.on_ina(None)
            self.reunion.reconcile(helper, set(keep))
            return
        self.gpu_names = [gpu.gpu for gpu in helper.gpus]
        logger.info("helper %s joined: %d GPUs, kernels %s", helper.hello.name, len(helper.gpus), ", ".join(ids))
        kernels = tuple(events.Kernel(ids[k.name], k.demand, k.name) for k in helper.hello.kernels)
        joined = events.HelperJoined(helper.number, tuple(helper.gpus), kernels, helper.hello.incarnation)
        helper.outbox = []
        self._daemon.book_loop.dispatch(joined)
        orders, helper.outbox = helper.outbox, None
        for message in (
            *host_welcome_messages(welcome),
            *orders,
        ):  # the kernels' numbers are in the journal before anybody is told them
            self._to_helper(message)
        self.on_ina(None)
        self._daemon.kernels_changed()

    def _helper_gone(self, helper: HelperLink, why: str, *, is_orderly: bool = False) -> None:
        if self._helper is not helper:
            return
        if is_orderly:
            logger.info("helper %s ends", helper.hello.name)
            self._dismiss_workers()
        else:
            logger.warning("helper %s lost: %s", helper.hello.name, why)
        self._helper = None
        if helper.pulse is not None:
            helper.pulse.stop()
        self._unwatch(helper.connection)
        if helper.is_joined:  # else nothing is its own, and another may be awaited
            self.drop_all()
            self.reunion.awaited.clear()
        # When it sees us hang up, nothing of ours lands in its memory any more: it may scrub.
        self._parting.add(helper.connection)
        self._daemon.copies.when_landed(self._daemon.copies.leases(), partial(self._part, helper.connection))
        if helper.is_joined:
            self._daemon.book_loop.dispatch(events.HelperLost(helper.number))

    def _dismiss_workers(self) -> None:
        """Their helper ends them: one that is not told would come back for its lane, and be turned away."""
        closing = control.encode(control.Closing(code="helper_ends", detail="its helper ends"))
        for link in self.lanes.values():
            self._to_worker(link, closing)

    def _part(self, connection: HostConnection) -> None:
        self._parting.discard(connection)
        connection.close()

    def _unwatch(self, connection: HostConnection) -> None:
        self._loop.remove_reader(connection.fileno())
        if connection.death_fileno() >= 0:
            self._loop.remove_reader(connection.death_fileno())

    def _is_at_work(self) -> bool:
        """An instance is being opened or closed: the helper may be scrubbing it."""
        return any(
            order.is_closing or any((lease, lane) not in self.lanes for lane in range(order.command.lanes))
            for lease, order in self.orders.items()
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
        if former := self._daemon.copies.leases() - self.orders.keys():
            # Copies into lanes of a lost helper: its memory may be ours to give.
            # (For those into a lease that drains, the book waits.)
            self._daemon.copies.when_landed(former, partial(self.open_lease, command))
            return
        if self.reunion.helper:
            return  # given when the helper is back
        token = self._daemon.order_token(command.lease, command.generation)
        index = self.gpu_names.index(command.gpu) if command.gpu in self.gpu_names else 0
        self.orders[command.lease] = Order(command, token, index)
        self._to_helper(
            control.OpenInstance(
                lease=command.lease, generation=command.generation, tenant=command.tenant, gpu=command.gpu,
                profile=command.profile, start=command.start, lanes=command.lanes,
                landing_bytes=command.landing_bytes, result_bytes=command.result_bytes,
                scrub_first=command.scrub_first, token=token, copy_engine=self._daemon.config.datapath.copy_engine,
            )
        )  # fmt: skip

    def close_lease(self, command: commands.CloseLease) -> None:
        """Ask the helper to end the lease's workers and instance. Their channels closing is no loss from here on."""
        self._drop_lanes(command.lease)
        if command.lease in self.orders:
            self.orders[command.lease].is_closing = True
        self._to_helper(control.CloseInstance(lease=command.lease, generation=command.generation, scrub=command.scrub))

    def scrub_lane(self, command: commands.ScrubLane) -> None:
        """Ask the worker."""
        if (command.lease, command.lane) in self.reunion.awaited:
            return  # asked when its worker is back
        link = self.lanes.get((command.lease, command.lane))
        if link is None or not self._to_worker(
            link, control.encode(control.ScrubLane(lease=command.lease, lane=command.lane))
        ):
            self._daemon.book_loop.dispatch(events.WorkerLost(command.lease, command.lane, command.generation))

    def kill_lane(self, command: commands.KillLane) -> None:
        """Have the helper kill the worker; that its channel then closes is news to nobody."""
        self._daemon.counters["workers_killed"] += 1
        logger.warning("worker of lease %d lane %d is to be killed", command.lease, command.lane)
        self._to_helper(control.KillWorker(lease=command.lease, lane=command.lane, generation=command.generation))

    def tell_helper(self, message: control.InaEpoch | control.InaAsk) -> bool:
        """What has nothing to do with leases; False: no helper has joined, and it is not sent."""
        if not self.has_helper():
            return False
        self._to_helper(message)
        return True

    def _to_helper(self, message: BaseModel) -> None:
        helper = self._helper
        if helper is None or helper.is_lost:
            return  # HelperLost is on its way to the book, which forgets these leases
        if helper.outbox is not None:
            helper.outbox.append(message)
            return
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

    def ask_proof(self, link: LaneLink, number: int) -> bool:
        """Have a worker say that it lives; its answer, if it can give one, comes by `Answers.proven`."""
        return self._to_worker(link, control.encode(control.Ping(number=number)))

    # -- workers --------------------------------------------------------------------------------------------------
    def _meet_worker(self, connection: HostConnection, hello: control.WorkerHello) -> None:
        order = self.orders.get(hello.lease)
        key = (hello.lease, hello.lane)
        if order is not None and order.is_closing and secrets.compare_digest(order.token, hello.token):
            # `close_lease` closed its channel and the helper has not killed it yet: its end is no loss.
            self.strangers.turn_away(connection, "its lease is closing", is_expected=True)
            return
        if (
            order is None
            or not secrets.compare_digest(order.token, hello.token)
            or hello.lane >= order.command.lanes
            or key in self.lanes
            or self._is_lost(hello)
            or (self._helper is not None and connection.peer != self._helper.connection.peer)
        ):
            self.strangers.turn_away(connection, "no lease waits for this worker")
            return
        self.strangers.known(connection)
        self.lanes[key] = link = LaneLink(hello.lease, hello.lane, order.command.generation, connection)
        link.last_job, link.resent = hello.last_job, hello.last_job if hello.has_result else 0
        self._loop.add_reader(connection.fileno(), self._lane_offer, link)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self.worker_gone, link, "its process ended")
        self._invite(link)

    def _invite(self, link: LaneLink) -> None:
        """Tell the worker what it needs to let the copy engine in, if it needs anything."""
        try:
            link.invitation = self._daemon.engine.invite()
        except OffpathError as fault:
            self.worker_gone(link, str(fault))
            return
        if link.invitation is None:
            return
        invite = control.InviteLane(
            lease=link.lease, lane=link.lane, generation=link.generation, invitation=link.invitation.descriptor
        )
        if not self._to_worker(link, control.encode(invite)):
            self.worker_gone(link, "it does not take its invitation")

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
            self.reunion.seen()
            body, fds = received
            try:
                ready = control.decode(control.HOST_TO_DAEMON, body)
                if not isinstance(ready, control.LaneReady):
                    raise ProtocolError("lane_ready", f"{ready.kind} came instead")
            except ProtocolError:
                close_all(fds)
                raise
            wanted = self.orders[link.lease].command
            if ready.landing_bytes < wanted.landing_bytes or ready.result_bytes < wanted.result_bytes:
                close_all(fds)
                raise ProtocolError("lane_size", f"{ready.landing_bytes}+{ready.result_bytes}")
            memory = self._daemon.engine.import_memory(MemoryExport(ready.export, fds), link.invitation)
            if memory.nbytes < ready.landing_bytes + ready.result_bytes:
                memory.close()
                raise RegionError("the exported range is smaller than it says")
        except OffpathError as fault:
            self.worker_gone(link, str(fault))
            return
        link.memory, link.landing_bytes, link.result_bytes = memory, ready.landing_bytes, ready.result_bytes
        self._loop.remove_reader(link.connection.fileno())
        self._loop.add_reader(link.connection.fileno(), self._from_worker, link)
        if (link.lease, link.lane) in self.reunion.awaited and not link.resent:
            # Before the book may send it anything new: that would look as if it never arrived.
            self.reunion.lane_is_back(link)
        self._daemon.book_loop.dispatch(events.LaneReady(link.lease, link.lane, link.generation))

    def _from_worker(self, link: LaneLink) -> None:
        try:
            message = link.connection.receive_message()
            if message is None:
                return
            if message[0] == host.KIND_RESULT:
                since_ns = self._daemon.now_ns()
                ref = link.ref
                self._daemon.answers.arrived(link, host.parse_result(message))
                if ref is not None:
                    self._daemon.pacing.of(ref.session.tenant).charge(since_ns)
                return
            said = control.decode(control.HOST_TO_DAEMON, message)
            if isinstance(said, control.Pong):
                self._daemon.answers.proven(link, said.number)
                return
            if not isinstance(said, control.LaneScrubbed):
                raise ProtocolError("out_of_turn", said.kind)
        except (PeerGone, ProtocolError) as fault:
            self.worker_gone(link, str(fault))
            return
        self._daemon.counters["scrubbed_bytes"] += said.scrubbed_bytes
        self._daemon.book_loop.dispatch(events.LaneScrubbed(link.lease, link.lane, link.generation))

    def worker_gone(self, link: LaneLink, why: str) -> None:
        """Its process ended, its channel broke, or it broke the rules."""
        if self.lanes.get((link.lease, link.lane)) is not link:
            return
        logger.warning("worker of lease %d lane %d lost: %s", link.lease, link.lane, why)
        self._close_lane(link)
        if (link.lease, link.lane) in self.reunion.awaited:  # it was back, and left before its lane was
            self.reunion.lane_missing((link.lease, link.lane))
            return
        self._daemon.book_loop.dispatch(events.WorkerLost(link.lease, link.lane, link.generation))

    def _close_lane(self, link: LaneLink) -> None:
        self.lanes.pop((link.lease, link.lane), None)
        self._unwatch(link.connection)
        link.connection.close()
        self._daemon.answers.forget(link)
        if link.invitation is not None:
            link.invitation.close()
        if link.memory is not None:
            link.memory.close()

    def copy_failed(self, link: LaneLink, why: str) -> None:
        """A copy into or out of this lane ended in an error. If none can succeed any more, or its worker has ended, the
        lane is lost; so it is where nothing could say yet that it ended: its job may then run elsewhere."""
        if link.memory is not None and not self._daemon.engine.reaches(link.memory):
            self.worker_gone(link, f"its memory cannot be reached: {why}")
        elif link.connection.death_fileno() < 0 or link.connection.has_ended():
            self.worker_gone(link, f"it may have ended: {why}")

    def drop_all(self) -> None:
        """The helper is gone, and all that it had with it."""
        for link in list(self.lanes.values()):
            self._close_lane(link)
        self.orders.clear()

    def _drop_lanes(self, lease: int) -> None:
        for link in [link for link in self.lanes.values() if link.lease == lease]:
            self._close_lane(link)

    def holds(self, link: LaneLink) -> bool:
        """True while the lane's worker is connected."""
        return self.lanes.get((link.lease, link.lane)) is link

    @property
    def awaited(self) -> set[tuple[int, int]]:
        """After a restart: lanes whose workers are expected back."""
        return self.reunion.awaited

    def lane_is_back(self, link: LaneLink) -> None:
        """See `Reunion.lane_is_back`."""
        self.reunion.lane_is_back(link)

    def gpu_index(self, lease: int) -> int:
        """The GPU of a lease as the answer header names it, counted in the helper's order."""
        order = self.orders.get(lease)
        return order.gpu_index if order is not None else 0

    def close(self, *, is_final: bool = True) -> None:
        """Hang up on everybody. Told that it is final, or left alone for too long, the helper scrubs and destroys what
        it holds."""
        self.strangers.close()
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


def host_welcome_messages(welcome: control.HostWelcome) -> Iterator[BaseModel]:
    """The welcome; if it is too long for the host channel, the kernels' numbers in a message behind it. Each then fits,
    whatever the limits allow (tests/dpu_daemon/test_largest_welcome.py)."""
    if len(control.encode(welcome)) > host.MAX_MESSAGE_BYTES:
        yield welcome.model_copy(update={"kernel_ids": {}})
        yield control.HostKernels(kernel_ids=welcome.kernel_ids)
    else:
        yield welcome
