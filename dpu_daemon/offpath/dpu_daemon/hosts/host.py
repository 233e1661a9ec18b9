"""Serves the host channel and the helper's supervisor; `lanes` serves the helper's workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from pydantic import BaseModel

from offpath.bindings.errors import PeerGone, ProtocolError
from offpath.bindings.ports import HostConnection, HostListener
from offpath.bindings.wire import control, host
from offpath.dpu_daemon.config.in_force import ConfigInForce
from offpath.dpu_daemon.hosts.handshakes import PendingConnections, close_all
from offpath.dpu_daemon.hosts.heartbeat import Heartbeat
from offpath.dpu_daemon.hosts.helper_link import HelperLink
from offpath.dpu_daemon.hosts.kernels import KernelRegistry
from offpath.dpu_daemon.hosts.lanes import Lanes, unwatch
from offpath.dpu_daemon.hosts.offers import check_needs, gpu_spec, kernel_of
from offpath.dpu_daemon.hosts.reattach import Reattachment
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.sched.jobs import events

logger = logging.getLogger(__name__)


class HostSide:
    """Owns the host channel and the helper. One helper at a time: a DPU belongs to one host."""

    def __init__(
        self,
        listener: HostListener,
        book_loop: BookLoop,
        lanes: Lanes,
        reattachment: Reattachment,
        kernels: KernelRegistry,
        copies: Copies,
        counters: Counter[str],
        settings: ConfigInForce,
        is_durable: Callable[[], bool],
    ) -> None:
        self._book_loop = book_loop
        self.lanes = lanes
        self.reattachment = reattachment
        self.kernels = kernels
        self._copies = copies
        self._counters = counters
        self._settings = settings
        self._is_durable = is_durable
        self._loop = asyncio.get_running_loop()
        self.listener = listener
        self._helper: HelperLink | None = None
        self.helpers_seen = 0
        self.emulated: dict[str, bool] = {}
        """Whether a GPU of the last helper is emulated, by its uuid; empty until one has joined this process."""
        self._closing_connections: set[HostConnection] = set()
        """Connections to lost helpers; copies into their memory may still be in flight."""
        self.on_ina: Callable[[control.InaStates | None], None] = lambda states: None
        """Called with the helper's report about its ranks, and with None when it has joined."""
        self.pending = PendingConnections(
            listener, self._accept_helper, self._accept_worker, on_contact=reattachment.seen, count=self._count
        )

    def _count(self, what: str) -> None:
        self._counters[what] += 1

    def restore(self) -> None:
        """Resume a former process's book: expect its helper and its workers to reattach."""
        self.helpers_seen = self._book_loop.book.leasing.helper
        self.reattachment.restore()

    # -- the helper -----------------------------------------------------------------------------------------------
    def _accept_helper(self, connection: HostConnection, hello: control.HelperHello) -> None:
        if self._helper is not None:
            self.pending.turn_away(connection, f"helper {self._helper.hello.name!r} serves this daemon already")
            return
        self.pending.known(connection)
        self.helpers_seen += 1
        self._helper = helper = HelperLink(self.helpers_seen, connection, hello)
        self._loop.add_reader(connection.fileno(), self._from_helper, helper)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self._helper_gone, helper, "its process ended")
        self._join_if_complete(helper)

    def _accept_worker(self, connection: HostConnection, hello: control.WorkerHello) -> None:
        is_foreign = self._helper is not None and connection.peer != self._helper.connection.peer
        if self.lanes.is_closing(hello):
            self.pending.turn_away(connection, "its lease is closing", is_expected=True)
        elif is_foreign or not self.lanes.expects(hello):
            self.pending.turn_away(connection, "no lease expects this worker")
        else:
            self.pending.known(connection)
            self.lanes.admit(connection, hello)

    def _from_helper(self, helper: HelperLink) -> None:
        """Handle one message per loop turn, so that a helper that sends continuously delays no other peer."""
        try:
            if (received := helper.connection.receive()) is not None:
                close_all(received[1])
                if not helper.is_joined:
                    self.reattachment.seen()
                if helper.heartbeat is not None:
                    helper.heartbeat.on_message()
                self._helper_sent(helper, control.decode(control.HOST_TO_DAEMON, received[0]))
        except (PeerGone, ProtocolError) as fault:
            self._helper_gone(helper, str(fault))

    def _helper_sent(self, helper: HelperLink, message: BaseModel) -> None:
        if isinstance(message, control.GpuOffer) and not helper.is_joined:
            helper.gpus.append(gpu_spec(message, helper.gpus))
            helper.emulated[message.uuid] = message.is_emulated
            self._join_if_complete(helper)
        elif isinstance(message, control.KernelNeeds) and not helper.is_joined:
            check_needs(message, helper.hello, helper.needs)
            helper.needs[message.name] = message
            self._join_if_complete(helper)
        elif isinstance(message, control.Pong) and helper.heartbeat is not None:
            helper.heartbeat.answered(message)
        elif isinstance(message, control.WorkerDied):
            self.lanes.on_worker_died(message)
        elif isinstance(message, control.Goodbye):
            self._helper_gone(helper, "it ends", is_orderly=True)
        elif isinstance(message, control.InaStates) and helper.is_joined:
            self.on_ina(message)
        elif isinstance(message, control.InstanceHeld) and not helper.is_joined:
            helper.held.append(message)
            self._join_if_complete(helper)
        elif isinstance(message, control.InstanceFailed):
            logger.warning(
                "lease %d could not be opened: %s", message.lease, message.detail, extra={"code": "lease_failed"}
            )
            self.lanes.end_order(message.lease)
            self._book_loop.dispatch(events.InstanceFailed(message.lease, message.generation))
        elif isinstance(message, control.InstanceClosed):
            self.lanes.end_order(message.lease)
            self._counters["scrubbed_bytes"] += message.scrubbed_bytes
            if self._is_unscrubbed(message):
                self._book_loop.dispatch(events.InstanceFailed(message.lease, message.generation))
            else:
                self._book_loop.dispatch(events.InstanceClosed(message.lease, message.generation))
        else:
            self._helper_gone(helper, f"it sent an unexpected {type(message).__name__}")

    def _is_unscrubbed(self, closed: control.InstanceClosed) -> bool:
        """True if the instance had to be scrubbed and was not: the helper dropped it before the request, and a copy may
        have landed in it since."""
        book = self._book_loop.book
        lease = book.ledger.lease_of(closed.lease, closed.generation)
        is_asked = lease is not None and lease.is_closing and book.leasing.closing(lease).scrub
        return is_asked and not closed.scrubbed_bytes

    def _join_if_complete(self, helper: HelperLink) -> None:
        if not helper.is_complete:
            return
        try:
            ids = self.kernels.learn(helper.hello.kernels, is_emulated=any(helper.emulated.values()))
        except ProtocolError as fault:
            self._helper_gone(helper, str(fault))
            return
        helper.is_joined = True
        self.emulated = helper.emulated
        helper.heartbeat = Heartbeat(
            lambda: self._settings.config.limits, self.to_helper, self.lanes.is_changing,
            lambda why: self._helper_gone(helper, why),
        )  # fmt: skip
        keep = self.reattachment.come_back(helper) if self.reattachment.helper else None
        durability = self._settings.config.durability
        longest_ms = max(durability.adopt_ms, durability.adopt_max_ms)  # the longest time that the next process waits
        linger_ms = durability.adopt_ms + longest_ms if self._is_durable() else 0
        welcome = control.HostWelcome(generation=helper.number, kernel_ids=ids, keep=keep or [], linger_ms=linger_ms)
        if keep is not None:
            for message in host_welcome_messages(welcome):
                self.to_helper(message)
            self.helpers_seen = helper.number
            self.on_ina(None)
            self.reattachment.reconcile(helper, set(keep))
            self.kernels.changed()
            return
        self.lanes.gpu_names = [gpu.gpu for gpu in helper.gpus]
        logger.info(
            "helper %s joined: %d GPUs (%d EMULATED), kernels %s",
            helper.hello.name,
            len(helper.gpus),
            sum(helper.emulated.values()),
            ", ".join(ids),
            extra={"code": "helper_joined"},
        )
        kernels = tuple(kernel_of(k, helper.needs.get(k.name), ids[k.name]) for k in helper.hello.kernels)
        joined = events.HelperJoined(helper.number, tuple(helper.gpus), kernels, helper.hello.incarnation)
        helper.outbox = []
        self._book_loop.dispatch(joined)
        orders, helper.outbox = helper.outbox, None
        for message in (
            *host_welcome_messages(welcome),
            *orders,
        ):  # the kernels' numbers are in the journal before they are sent to any peer
            self.to_helper(message)
        self.on_ina(None)
        self.kernels.changed()

    def _helper_gone(self, helper: HelperLink, why: str, *, is_orderly: bool = False) -> None:
        if self._helper is not helper:
            return
        if is_orderly:
            logger.info("helper %s is shutting down", helper.hello.name, extra={"code": "helper_ends"})
            self.lanes.dismiss_workers()
        else:
            logger.warning("helper %s lost: %s", helper.hello.name, why, extra={"code": "helper_lost"})
        self._helper = None
        if helper.heartbeat is not None:
            helper.heartbeat.stop()
        unwatch(helper.connection)
        if helper.is_joined:  # else it owns nothing, and another helper may be awaited
            self.lanes.drop_all()
            self.lanes.awaited.clear()
        # Close the connection after the last copy: the helper may scrub its memory once it sees the close.
        self._closing_connections.add(helper.connection)
        self._copies.when_landed(self._copies.leases(), partial(self._part, helper.connection))
        if helper.is_joined:
            self._book_loop.dispatch(events.HelperLost(helper.number))

    def _part(self, connection: HostConnection) -> None:
        self._closing_connections.discard(connection)
        connection.close()

    def limits_changed(self) -> None:
        """Apply changed limits from now on."""
        if self._helper is not None and self._helper.heartbeat is not None:
            self._helper.heartbeat.look_again()

    def has_helper(self) -> bool:
        """True while a helper has joined."""
        return self._helper is not None and self._helper.is_joined

    def notify_helper(self, message: control.InaEpoch | control.InaAsk) -> bool:
        """Send a message that does not concern leases. False: no helper has joined, and the message is not sent."""
        if not self.has_helper():
            return False
        self.to_helper(message)
        return True

    def to_helper(self, message: BaseModel) -> None:
        """Send the message if a helper is connected; queued until the helper's welcome is sent."""
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

    def close(self, *, is_final: bool = True) -> None:
        """Disconnect all peers. If the close is final, or no daemon returns in time, the helper scrubs and destroys its
        instances."""
        self.pending.close()
        for connection in self._closing_connections:
            connection.close()
        self.lanes.close()
        if self._helper is not None:
            if self._helper.heartbeat is not None:
                self._helper.heartbeat.stop()
            if is_final:
                with contextlib.suppress(PeerGone):
                    self._helper.connection.send(
                        control.encode(control.Closing(code="daemon_ends", detail="the daemon is shutting down"))
                    )
            unwatch(self._helper.connection)
            self._helper.connection.close()
            self._helper = None


def host_welcome_messages(welcome: control.HostWelcome) -> Iterator[BaseModel]:
    """The welcome; if it is too long for the host channel, a second message carries the kernels' numbers. Each message
    then fits, whatever the limits allow (tests/dpu_daemon/test_largest_welcome.py)."""
    if len(control.encode(welcome)) > host.MAX_MESSAGE_BYTES:
        yield welcome.model_copy(update={"kernel_ids": {}})
        yield control.HostKernels(kernel_ids=welcome.kernel_ids)
    else:
        yield welcome
