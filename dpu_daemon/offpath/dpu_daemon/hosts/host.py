"""Serves the host channel and the helpers' supervisors; `lanes` serves the helpers' workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from pydantic import BaseModel

from offpath.bindings.errors import PeerGone, ProtocolError
from offpath.bindings.ports import HostConnection, HostListener
from offpath.bindings.wire import control
from offpath.dpu_daemon.config.in_force import ConfigInForce
from offpath.dpu_daemon.hosts.handshakes import PendingConnections, close_all
from offpath.dpu_daemon.hosts.heartbeat import Heartbeat
from offpath.dpu_daemon.hosts.helper_link import HelperLink
from offpath.dpu_daemon.hosts.kernels import KernelRegistry
from offpath.dpu_daemon.hosts.lanes import Lanes, unwatch
from offpath.dpu_daemon.hosts.offers import KernelMessage, check_held, gpu_spec, identity
from offpath.dpu_daemon.hosts.reattach import Reattachment
from offpath.dpu_daemon.hosts.reloading import receive
from offpath.dpu_daemon.hosts.welcome import host_welcome_messages, kernel_numbers
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.sched.jobs import events

logger = logging.getLogger(__name__)
MAX_GPUS: Final = 32
"""Of all helpers. The daemon's status, with a line for each, then fits a frame."""


class HostSide:
    """Owns the host channel and the helpers: one connection for each helper's name."""

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
        self._helpers: dict[str, HelperLink] = {}
        """By name, in the order in which they connected."""
        self.helpers_seen = 0
        """The largest number that a helper was given."""
        self._closing_connections: set[HostConnection] = set()
        """Connections to lost helpers; copies into their memory may still be in flight."""
        self.on_ina: Callable[[control.InaStates | None], None] = lambda states: None
        """Called with the reports about ranks of the helper that joined first, and with None when that is another."""
        self._ina_helper: HelperLink | None = None
        self.pending = PendingConnections(
            listener, self._accept_helper, self._accept_worker, on_contact=reattachment.seen, count=self._count
        )

    def _count(self, what: str) -> None:
        self._counters[what] += 1

    def restore(self) -> None:
        """Resume a former process's book: expect its helpers and its workers to reattach."""
        self.helpers_seen = self._book_loop.book.ledger.helpers.last
        self.reattachment.restore()

    # -- helpers --------------------------------------------------------------------------------------------------
    def _why_not(self, hello: control.HelperHello) -> str:
        """Why the helper may not join; empty: it may."""
        config = self._settings.config
        if config.helper_names and hello.name not in config.helper_names:
            return f"helper {hello.name!r} is not in the daemon's helper_names"
        if hello.name in self._helpers:
            return f"a helper {hello.name!r} serves this daemon already; start this one with another --name"
        names = self._helpers.keys() | self.reattachment.helpers.keys()
        if hello.name not in names and len(names) >= config.max_helpers:
            return f"{len(names)} helpers serve this daemon already, as many as its max_helpers allows"
        gpus = sum(helper.hello.gpu_count for helper in self._helpers.values())
        gpus += sum(len(each.gpus) for each in self.reattachment.helpers.values() if each.name != hello.name)
        if gpus + hello.gpu_count > MAX_GPUS:
            return f"its {hello.gpu_count} GPUs and the {gpus} of other helpers are more than {MAX_GPUS}"
        return ""

    def _accept_helper(self, connection: HostConnection, hello: control.HelperHello) -> None:
        if why_not := self._why_not(hello):
            self.pending.turn_away(connection, why_not)
            return
        self.pending.known(connection)
        self.helpers_seen += 1
        self._helpers[hello.name] = helper = HelperLink(self.helpers_seen, connection, hello)
        self._loop.add_reader(connection.fileno(), self._from_helper, helper)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self._helper_gone, helper, "its process ended")
        self._join_if_complete(helper)

    def _accept_worker(self, connection: HostConnection, hello: control.WorkerHello) -> None:
        helper = self._numbered(self.lanes.helper_of(hello.lease))
        is_foreign = helper is not None and connection.peer != helper.connection.peer
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
            self._offered_twice(message)
            helper.gpus.append(gpu_spec(message, helper.name, helper.gpus))
            helper.emulated[identity(helper.name, message.uuid)] = message.is_emulated
            self._join_if_complete(helper)
        elif isinstance(message, KernelMessage) and not helper.is_joined:
            helper.take(message)
            self._join_if_complete(helper)
        elif isinstance(message, control.KernelsReloaded | KernelMessage) and helper.is_joined:
            if receive(helper, message):
                self._reloaded(helper)
        elif isinstance(message, control.Pong) and helper.heartbeat is not None:
            helper.heartbeat.answered(message)
        elif isinstance(message, control.WorkerDied | control.InstanceFailed | control.InstanceClosed):
            self._about_lease(helper, message)
        elif isinstance(message, control.GpuLost) and helper.is_joined:
            self._gpu_lost(helper, message)
        elif isinstance(message, control.Goodbye):
            self._helper_gone(helper, "it ends", is_orderly=True)
        elif isinstance(message, control.InaStates) and helper.is_joined:
            if helper is self._ina_helper:
                self.on_ina(message)
        elif isinstance(message, control.InstanceHeld) and not helper.is_joined:
            check_held(message)
            helper.held.append(message)
            self._join_if_complete(helper)
        else:
            self._helper_gone(helper, f"it sent an unexpected {type(message).__name__}")

    def _offered_twice(self, offer: control.GpuOffer) -> None:
        """Raises: ProtocolError: another helper offers the GPU; both would place instances on it. Only emulated GPUs of
        several helpers may have one name."""
        for other in self._helpers.values():
            if other.emulated.get(identity(other.name, offer.uuid)) is False and not offer.is_emulated:
                raise ProtocolError("gpu_offer", f"{offer.uuid} is offered by helper {other.name!r} already")

    def _gpu_lost(self, helper: HelperLink, lost: control.GpuLost) -> None:
        """A GPU of the helper needs a reset. Raises: ProtocolError: the helper did not offer it."""
        gpu = identity(helper.name, lost.uuid)
        if gpu not in helper.emulated:
            raise ProtocolError("gpu_lost", f"{lost.uuid} is not a GPU of this helper")
        if gpu in self._book_loop.book.ledger.helpers.lost_gpus(helper.number):
            return
        logger.warning("GPU %s is lost: %s", gpu, lost.detail, extra={"code": "gpu_lost"})
        self.lanes.drop_gpu(helper.number, gpu)
        self._book_loop.dispatch(events.GpuLost(helper.number, gpu))

    def _about_lease(
        self, helper: HelperLink, message: control.WorkerDied | control.InstanceFailed | control.InstanceClosed
    ) -> None:
        """The helper reports on a lease. It may do so only on its own."""
        if self.lanes.is_anothers(helper.number, message.lease, message.generation):
            self._helper_gone(helper, f"it reported on lease {message.lease}, which another helper holds")
        elif isinstance(message, control.WorkerDied):
            self.lanes.on_worker_died(message)
        elif isinstance(message, control.InstanceFailed):
            logger.warning(
                "lease %d could not be opened: %s", message.lease, message.detail, extra={"code": "lease_failed"}
            )
            self.lanes.end_order(message.lease)
            self._book_loop.dispatch(events.InstanceFailed(message.lease, message.generation))
        else:
            self.lanes.end_order(message.lease)
            self._counters["scrubbed_bytes"] += message.scrubbed_bytes
            if self._is_unscrubbed(message):
                self._book_loop.dispatch(events.InstanceFailed(message.lease, message.generation))
            else:
                self._book_loop.dispatch(events.InstanceClosed(message.lease, message.generation))

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
            ids = self._learn(helper)
        except ProtocolError as fault:
            self._helper_gone(helper, str(fault))
            return
        helper.is_joined = True
        helper.heartbeat = Heartbeat(
            lambda: self._settings.config.limits, partial(self._send, helper),
            lambda: self.lanes.is_changing(helper.number), lambda why: self._helper_gone(helper, why),
        )  # fmt: skip
        keep = self.reattachment.come_back(helper)
        durability = self._settings.config.durability
        longest_ms = max(durability.adopt_ms, durability.adopt_max_ms)  # the longest time that the next process waits
        linger_ms = durability.adopt_ms + longest_ms if self._is_durable() else 0
        welcome = control.HostWelcome(generation=helper.number, kernel_ids=ids, keep=keep or [], linger_ms=linger_ms)
        if keep is not None:
            self._welcome_back(helper, welcome)
            return
        logger.info(
            "helper %s joined: %d GPUs (%d EMULATED), kernels %s",
            helper.name,
            len(helper.gpus),
            sum(helper.emulated.values()),
            ", ".join(ids),
            extra={"code": "helper_joined"},
        )
        joined = events.HelperJoined(
            helper.number, tuple(helper.gpus), helper.numbered(ids), helper.hello.incarnation, helper.name,
            helper.hello.revision,
        )  # fmt: skip
        orders = self._dispatched(helper, joined)
        # The kernels' numbers are in the journal before they are sent to any peer.
        for message in (*host_welcome_messages(welcome, helper.hello.revision), *orders):
            self._send(helper, message)
        self._choose_ina_helper()
        self.kernels.changed()

    def _learn(self, helper: HelperLink) -> dict[str, int]:
        """The numbers of the helper's kernels. Raises: ProtocolError: there is no room for its names, or no number is
        left. It may be an honest helper, so it is told."""
        is_emulated, kernels = any(helper.emulated.values()), helper.hello.kernels
        try:
            return self.kernels.learn(helper.name, kernels, is_emulated=is_emulated, signatures=helper.signatures)
        except ProtocolError as fault:
            self._send(helper, control.Closing(code="refused", detail=str(fault)[:500]))
            raise

    def _welcome_back(self, helper: HelperLink, welcome: control.HostWelcome) -> None:
        """A helper of the former process reattaches. If it has reloaded its kernels since, the book learns of that once
        both sides agree on its leases, and the new numbers follow then."""
        known = self._book_loop.book.ledger.helpers.by_name[helper.name]
        numbers = {kernel.name: kernel.kernel for kernel in known.kernels}
        for message in host_welcome_messages(welcome.model_copy(update={"kernel_ids": numbers}), known.revision):
            self._send(helper, message)
        self._choose_ina_helper()
        self.reattachment.reconcile(helper, set(welcome.keep))
        if helper.hello.revision > known.revision:
            self._reloaded(helper)
        self.kernels.changed()

    def _dispatched(self, helper: HelperLink, event: events.Event) -> list[BaseModel]:
        """Have the book handle the event. Returns the messages to the helper that follow from it, which are not sent
        yet."""
        helper.outbox = []
        self._book_loop.dispatch(event)
        orders, helper.outbox = helper.outbox, None
        return orders

    def _reload_event(self, helper: HelperLink, ids: dict[str, int]) -> events.KernelsReloaded:
        logger.info(
            "helper %s reloaded its kernels, revision %d: %s", helper.name, helper.hello.revision, ", ".join(ids),
            extra={"code": "helper_reloaded"},
        )  # fmt: skip
        return events.KernelsReloaded(helper.number, helper.numbered(ids), helper.hello.revision)

    def _reloaded(self, helper: HelperLink) -> None:
        """A joined helper serves other kernels: replace the workers that run the former code. Raises: ProtocolError: as
        `_learn`."""
        hello = helper.hello
        ids = self._learn(helper)
        orders = self._dispatched(helper, self._reload_event(helper, ids))
        # The numbers precede the orders that start workers: those call their kernels by number.
        for message in (*kernel_numbers(ids, hello.revision), *orders):
            self._send(helper, message)
        self.kernels.changed()

    def _helper_gone(self, helper: HelperLink, why: str, *, is_orderly: bool = False) -> None:
        if self._helpers.get(helper.name) is not helper:
            return
        if is_orderly:
            logger.info("helper %s is shutting down", helper.name, extra={"code": "helper_ends"})
            self.lanes.dismiss_workers(helper.number)
        else:
            logger.warning("helper %s lost: %s", helper.name, why, extra={"code": "helper_lost"})
        del self._helpers[helper.name]
        if helper.heartbeat is not None:
            helper.heartbeat.stop()
        unwatch(helper.connection)
        leases = self.lanes.leases_of(helper.number)
        self.lanes.drop_helper(helper.number)
        # Close the connection after the last copy: the helper may scrub its memory once it sees the close.
        self._closing_connections.add(helper.connection)
        self._copies.when_landed(leases, partial(self._part, helper.connection))
        if helper.is_joined:
            self._book_loop.dispatch(events.HelperLost(helper.number))
            self._choose_ina_helper()
            self.kernels.changed()  # another helper's signatures may hold now

    def _part(self, connection: HostConnection) -> None:
        self._closing_connections.discard(connection)
        connection.close()

    def limits_changed(self) -> None:
        """Apply changed limits from now on."""
        for helper in self._helpers.values():
            if helper.heartbeat is not None:
                helper.heartbeat.look_again()

    def joined(self) -> list[HelperLink]:
        """The helpers that have joined."""
        return [helper for helper in self._helpers.values() if helper.is_joined]

    def has_helper(self) -> bool:
        """True while a helper has joined."""
        return any(helper.is_joined for helper in self._helpers.values())

    def emulated(self) -> dict[str, bool]:
        """Whether a GPU is emulated, by its identity; of the helpers that have joined this process."""
        return {gpu: each for helper in self.joined() for gpu, each in helper.emulated.items()}

    def _numbered(self, number: int) -> HelperLink | None:
        """The connected helper of this number."""
        return next((helper for helper in self._helpers.values() if helper.number == number), None)

    def _choose_ina_helper(self) -> None:
        """A helper joined or was lost: one of them watches the ranks, the one that joined first."""
        former, self._ina_helper = self._ina_helper, next(iter(self.joined()), None)
        if self._ina_helper is not None and self._ina_helper is not former:
            self.on_ina(None)

    def notify_helper(self, message: control.InaEpoch | control.InaAsk) -> bool:
        """Send a message about ranks. False: no helper has joined, and the message is not sent."""
        if self._ina_helper is None:
            return False
        self._send(self._ina_helper, message)
        return True

    def to_helper(self, number: int, message: BaseModel) -> None:
        """Send the message if the helper of this number is connected; queued until its welcome is sent."""
        helper = self._numbered(number)
        if helper is not None:
            self._send(helper, message)

    def _send(self, helper: HelperLink, message: BaseModel) -> None:
        if helper.is_lost:
            return  # HelperLost is on its way to the book, which forgets its leases
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
        for helper in self._helpers.values():
            if helper.heartbeat is not None:
                helper.heartbeat.stop()
            if is_final:
                with contextlib.suppress(PeerGone):
                    helper.connection.send(
                        control.encode(control.Closing(code="daemon_ends", detail="the daemon is shutting down"))
                    )
            unwatch(helper.connection)
            helper.connection.close()
        self._helpers.clear()
