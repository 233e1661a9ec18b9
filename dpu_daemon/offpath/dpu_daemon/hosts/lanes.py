"""Manages the lanes: orders instances from the helper and connects their workers.

On the request path (a launch, a result): no task, no log line.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, Protocol

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError, PeerGone, ProtocolError, RegionError
from offpath.bindings.native import parse_result
from offpath.bindings.ports import HostConnection, MemoryExport
from offpath.bindings.wire import control, host
from offpath.dpu_daemon.hosts.handshakes import close_all
from offpath.dpu_daemon.hosts.helper_link import Order
from offpath.dpu_daemon.hosts.offers import own_name, owner
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.dpu_daemon.requests.inflight import LaneConnection
from offpath.dpu_daemon.requests.pacing import Pacing
from offpath.sched.jobs import commands, events

logger = logging.getLogger(__name__)
_LAST_MESSAGES: Final = 4
"""Upper bound on the messages that a worker has in flight: at most a result and a scrub report."""


class WorkerReports(Protocol):
    """Receives the workers' reports about jobs."""

    def arrived(self, link: LaneConnection, result: host.Result) -> None:
        """A result. Raises: HostMessageError: it is invalid for its job."""

    def proven(self, link: LaneConnection, number: int) -> None:
        """The worker's reply to `Lanes.request_proof`. Raises: HostMessageError: there was no such request."""

    def forget(self, link: LaneConnection) -> None:
        """The worker is gone."""


class Returning(Protocol):
    """After a restart: the helpers and the workers that are expected to reattach."""

    def awaits(self, number: int) -> bool:
        """True if the helper of this number is expected."""

    def seen(self) -> None:
        """A sign of life of a peer that may be an expected one."""

    def lane_missing(self, key: tuple[int, int]) -> None:
        """The lane's worker will not reattach."""

    def lane_is_back(self, link: LaneConnection) -> None:
        """The worker has reattached and sent its pending result."""


class HelperEnd(Protocol):
    """Sends messages to the helpers."""

    def to_helper(self, number: int, message: BaseModel) -> None:
        """Send the message if the helper of this number is connected."""


class Lanes:
    """Owns the orders and the workers' connections. Handles `OpenLease`, `CloseLease`, `ScrubLane`, `KillLane` and
    `RenewLane`. Counts ``leases_opened``, ``leases_closed``, ``workers_killed``, ``workers_renewed`` and
    ``scrubbed_bytes``.

    Call `attach` before any other method. Implements `offpath.dpu_daemon.requests.inflight.Workers` and
    `offpath.dpu_daemon.hosts.reattach.Orders`.
    """

    def __init__(
        self,
        book_loop: BookLoop,
        copies: Copies,
        pacing: Pacing,
        counters: Counter[str],
        mint: Callable[[int, int, int, int], str],
        copy_engine: Literal["loopback", "verbs", "doca", "cuda"],
    ) -> None:
        """``mint`` returns the token of a lease and generation, or of a lane and its renewal; ``copy_engine`` is the
        name that workers receive."""
        self.orders: dict[int, Order] = {}
        self.links: dict[tuple[int, int], LaneConnection] = {}
        """The connected workers, by lease and lane."""
        self.awaited: set[tuple[int, int]] = set()
        """After a restart: lanes whose workers are expected to reattach."""
        self._former: dict[int, str] = {}
        """Leases of lost helpers that may still be copied into, with the helpers' names."""
        self._book_loop = book_loop
        self._ledger = book_loop.book.ledger
        self._leasing = book_loop.book.leasing
        self._copies = copies
        self._engine = copies.engine
        self._pacing = pacing
        self._counters = counters
        self._mint = mint
        self._copy_engine = copy_engine
        self._loop = asyncio.get_running_loop()
        self._reports: WorkerReports
        self._returning: Returning
        self._helper: HelperEnd
        book_loop.on(commands.OpenLease, self._to_open)
        book_loop.on(commands.CloseLease, self._to_close)
        book_loop.on(commands.ScrubLane, self.scrub_lane)
        book_loop.on(commands.KillLane, self.kill_lane)
        book_loop.on(commands.RenewLane, self.renew_lane)

    def attach(self, reports: WorkerReports, returning: Returning, helper: HelperEnd) -> None:
        """Set the components that themselves depend on the lanes."""
        self._reports = reports
        self._returning = returning
        self._helper = helper

    # -- orders ---------------------------------------------------------------------------------------------------
    def _to_open(self, command: commands.OpenLease) -> None:
        self._counters["leases_opened"] += 1
        logger.info(
            "lease %d: %s gets %s at %d of %s", command.lease, command.tenant, command.profile, command.start,
            " and ".join((command.gpu, *command.others)),
            extra={"code": "lease_opens"},
        )  # fmt: skip
        self.open_lease(command)

    def open_lease(self, command: commands.OpenLease) -> None:
        """Order the instance from the helper; its workers authenticate with the token of lease and generation."""
        lease = self._ledger.lease_of(command.lease, command.generation)
        if lease is None or lease.is_closing:
            return  # forgotten with its helper, or given up, before it was ordered
        name = owner(command.gpu)
        unordered = self._copies.leases() - self.orders.keys()
        if former := {lease for lease in unordered if self._former.get(lease, name) == name}:
            # Wait for copies into lanes of the helper before it was lost: the new instance may reuse that memory.
            # (For copies into a draining lease, the book waits.)
            self._copies.when_landed(former, partial(self.open_lease, command))
            return
        if self._returning.awaits(command.helper):
            return  # ordered when the helper has reattached
        order = self.expect(command)
        self._helper.to_helper(
            command.helper,
            control.OpenInstance(
                lease=command.lease, generation=command.generation, tenant=command.tenant, gpu=own_name(command.gpu),
                profile=command.profile, start=command.start, lanes=command.lanes,
                landing_bytes=command.landing_bytes, result_bytes=command.result_bytes,
                scrub_first=command.scrub_first, token=order.token, copy_engine=self._copy_engine,
                others=list(map(own_name, command.others)),
            ),
        )  # fmt: skip

    def expect(self, command: commands.OpenLease) -> Order:
        """Let the lease's workers connect from now on."""
        token = self._mint(command.lease, command.generation, 0, 0)
        helper = self._ledger.helpers.connection(command.helper)
        names = [gpu.gpu for gpu in helper.gpus] if helper is not None else []
        index = names.index(command.gpu) if command.gpu in names else 0
        self.orders[command.lease] = order = Order(command, token, index)
        if (lease := self._ledger.lease_of(command.lease, command.generation)) is not None:
            for lane, renewal in lease.renewals.items():
                order.renewed[lane] = self._mint(command.lease, command.generation, lane, renewal)
        return order

    def _to_close(self, command: commands.CloseLease) -> None:
        self._counters["leases_closed"] += 1
        logger.info("lease %d closes", command.lease, extra={"code": "lease_closes"})
        self.close_lease(command)

    def close_lease(self, command: commands.CloseLease) -> None:
        """Have the helper end the lease's workers and instance. A closing worker channel is no loss from now on."""
        self._drop_lanes(command.lease)
        if command.lease in self.orders:
            self.orders[command.lease].is_closing = True
        self._helper.to_helper(
            command.helper,
            control.CloseInstance(lease=command.lease, generation=command.generation, scrub=command.scrub),
        )

    def scrub_lane(self, command: commands.ScrubLane) -> None:
        """Have the worker scrub its lane."""
        if (command.lease, command.lane) in self.awaited:
            return  # requested when its worker has reattached
        link = self.links.get((command.lease, command.lane))
        if link is None or not self.to_worker(
            link, control.encode(control.ScrubLane(lease=command.lease, lane=command.lane))
        ):
            self._book_loop.dispatch(events.WorkerLost(command.lease, command.lane, command.generation))

    def kill_lane(self, command: commands.KillLane) -> None:
        """Have the helper kill the worker. The book already counts the lane as lost."""
        self._counters["workers_killed"] += 1
        logger.warning(
            "ordering the helper to kill the worker of lease %d lane %d",
            command.lease,
            command.lane,
            extra={"code": "worker_killed"},
        )
        self._helper.to_helper(
            command.helper, control.KillWorker(lease=command.lease, lane=command.lane, generation=command.generation)
        )

    def renew_lane(self, command: commands.RenewLane) -> None:
        """Have the helper replace the idle worker. From now on only the new one may connect, and the end of the former
        one is no loss."""
        key = command.lease, command.lane
        order = self.orders.get(command.lease)
        if order is None:
            return  # its helper is lost
        token = self._mint(command.lease, command.generation, command.lane, command.renewal)
        order.renewed[command.lane] = token
        self.awaited.discard(key)
        self._counters["workers_renewed"] += 1
        if (link := self.links.get(key)) is not None:
            self.to_worker(link, control.encode(control.Closing(code="renewed", detail="another takes its place")))
            self._close_lane(link)
        self._helper.to_helper(
            command.helper,
            control.RenewWorker(
                lease=command.lease, lane=command.lane, generation=command.generation, renewal=command.renewal,
                token=token,
            ),
        )  # fmt: skip

    def end_order(self, lease: int) -> None:
        """Forget the order: the instance is closed or was never opened."""
        self._drop_lanes(lease)
        self.orders.pop(lease, None)

    def gpu_index(self, lease: int) -> int:
        """The GPU index of a lease in the answer header: its position in the helper's order."""
        order = self.orders.get(lease)
        return order.gpu_index if order is not None else 0

    def load_ms(self, lease: int) -> int:
        """The longest time that a worker of the lease took to load its models; 0 until one is ready."""
        return max((link.load_ms for link in self.links.values() if link.lease == lease), default=0)

    def is_changing(self, number: int) -> bool:
        """True while an instance of the helper of this number is being opened or closed."""
        return any(
            order.is_closing or any((lease, lane) not in self.links for lane in range(order.command.lanes))
            for lease, order in self.orders.items()
            if order.command.helper == number
        )

    def leases_of(self, number: int) -> set[int]:
        """The leases that are ordered from the helper of this number."""
        return {lease for lease, order in self.orders.items() if order.command.helper == number}

    def is_anothers(self, number: int, lease: int, generation: int) -> bool:
        """True if another helper than that of this number holds the lease."""
        order, held = self.orders.get(lease), self._ledger.lease_of(lease, generation)
        is_ordered_elsewhere = order is not None and order.command.helper != number
        return is_ordered_elsewhere or (held is not None and self._leasing.helper_of(held) != number)

    def helper_of(self, lease: int) -> int:
        """The number of the helper that the lease is ordered from; 0: it is not ordered."""
        order = self.orders.get(lease)
        return order.command.helper if order is not None else 0

    # -- workers --------------------------------------------------------------------------------------------------
    def is_closing(self, hello: control.WorkerHello) -> bool:
        """True if the worker's lease is closing: its channel is closed, and the helper has not killed it yet."""
        order = self.orders.get(hello.lease)
        return (
            order is not None and order.is_closing and secrets.compare_digest(order.token_of(hello.lane), hello.token)
        )

    def expects(self, hello: control.WorkerHello) -> bool:
        """True if the worker's token matches an ordered lease and its lane is free."""
        order = self.orders.get(hello.lease)
        key = (hello.lease, hello.lane)
        return not (
            order is None
            or not secrets.compare_digest(order.token_of(hello.lane), hello.token)
            or hello.lane >= order.command.lanes
            or key in self.links
            or self._is_lost(hello)
        )

    def _is_lost(self, hello: control.WorkerHello) -> bool:
        """True if the book has given this lane up: a dropped worker must not reconnect to it."""
        lease = self._ledger.leases.get(hello.lease)
        return lease is None or hello.lane in lease.lost

    def admit(self, connection: HostConnection, hello: control.WorkerHello) -> None:
        """Accept an expected worker and watch its connection."""
        generation = self.orders[hello.lease].command.generation
        link = LaneConnection(hello.lease, hello.lane, generation, connection)
        self.links[hello.lease, hello.lane] = link
        link.last_job, link.resent = hello.last_job, hello.last_job if hello.has_result else 0
        self._loop.add_reader(connection.fileno(), self._lane_offer, link)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self.worker_gone, link, "its process ended")
        self._invite(link)

    def _invite(self, link: LaneConnection) -> None:
        """Send the worker what the copy engine requires to access its memory, if anything."""
        try:
            link.invitation = self._engine.invite()
        except OffpathError as fault:
            self.worker_gone(link, str(fault))
            return
        if link.invitation is None:
            return
        invite = control.InviteLane(
            lease=link.lease, lane=link.lane, generation=link.generation, invitation=link.invitation.descriptor
        )
        if not self.to_worker(link, control.encode(invite)):
            self.worker_gone(link, "it did not accept its invitation")

    def _lane_offer(self, link: LaneConnection) -> None:
        """Receive the lane's memory export with its descriptor; the worker is then on the fast path."""
        try:
            received = link.connection.receive()
            if received is None:
                return
            self._returning.seen()
            body, fds = received
            try:
                ready = control.decode(control.HOST_TO_DAEMON, body)
                if isinstance(ready, control.LaneLoading) and not link.is_loading:
                    close_all(fds)
                    link.is_loading = True
                    self._book_loop.dispatch(events.LaneLoading(link.lease, link.lane, link.generation))
                    return
                if not isinstance(ready, control.LaneReady):
                    raise ProtocolError("lane_ready", f"received {ready.kind} instead")
            except ProtocolError:
                close_all(fds)
                raise
            wanted = self.orders[link.lease].command
            if ready.landing_bytes < wanted.landing_bytes or ready.result_bytes < wanted.result_bytes:
                close_all(fds)
                raise ProtocolError("lane_size", f"{ready.landing_bytes}+{ready.result_bytes}")
            memory = self._engine.import_memory(MemoryExport(ready.export, fds), link.invitation)
            self._engine.attach(memory, link.connection, ready.landing_bytes)
            if memory.nbytes < ready.landing_bytes + ready.result_bytes:
                memory.close()
                raise RegionError("the exported range is smaller than declared")
        except OffpathError as fault:
            self.worker_gone(link, str(fault))
            return
        link.memory, link.landing_bytes, link.result_bytes = memory, ready.landing_bytes, ready.result_bytes
        self._loop.remove_reader(link.connection.fileno())
        self._loop.add_reader(link.connection.fileno(), self._from_worker, link)
        link.load_ms = ready.load_ms
        if (link.lease, link.lane) not in self.awaited:
            self._counters["lanes_ready"] += 1
            self._counters["load_ms"] += ready.load_ms
        elif not link.resent:
            # Before the book sends anything new to the lane: it would look like a message that never arrived.
            self._returning.lane_is_back(link)
        if self.holds(link):  # else its lane was freed meanwhile, and another worker is to take its place
            self._book_loop.dispatch(events.LaneReady(link.lease, link.lane, link.generation))

    def _from_worker(self, link: LaneConnection) -> None:
        try:
            message = link.connection.receive_message()
            if message is None:
                return
            if message[0] == host.KIND_RESULT:
                since_ns = self._book_loop.now_ns()
                ref = link.ref
                self._reports.arrived(link, parse_result(message))
                if ref is not None:
                    self._pacing.of(ref.session.tenant).charge(since_ns)
                return
            report = control.decode(control.HOST_TO_DAEMON, message)
            if isinstance(report, control.Pong):
                self._reports.proven(link, report.number)
                return
            if not isinstance(report, control.LaneScrubbed):
                raise ProtocolError("out_of_turn", report.kind)
        except (PeerGone, ProtocolError) as fault:
            self.worker_gone(link, str(fault))
            return
        self._counters["scrubbed_bytes"] += report.scrubbed_bytes
        self._book_loop.dispatch(events.LaneScrubbed(link.lease, link.lane, link.generation))

    def to_worker(self, link: LaneConnection, message: bytes) -> bool:
        """Send the message. False: it certainly did not arrive."""
        try:
            return link.connection.send(message)
        except PeerGone:
            return False

    def is_gone(self, lease: int, lane: int, generation: int) -> bool:
        """True if this worker gets no message any more."""
        held = self._ledger.lease_of(lease, generation)
        return held is None or lane in held.lost or (lease, lane) not in self.links.keys() | self.awaited

    def flush_soon(self) -> None:
        """Have the copy engine send what no message to a worker takes along in this turn."""
        self._loop.call_soon(self._engine.flush)

    def request_proof(self, link: LaneConnection, number: int) -> bool:
        """Ping a worker to prove that it is alive; its pong goes to `WorkerReports.proven`."""
        return self.to_worker(link, control.encode(control.Ping(number=number)))

    def lane_is_back(self, link: LaneConnection) -> None:
        """An awaited worker has reattached and sent its pending result."""
        self._returning.lane_is_back(link)

    def holds(self, link: LaneConnection) -> bool:
        """True while the lane's worker is connected."""
        return self.links.get((link.lease, link.lane)) is link

    # -- loss of workers ------------------------------------------------------------------------------------------
    def on_worker_died(self, died: control.WorkerDied) -> None:
        """The helper reports a dead worker. A channel that detects process death reports it too, after the worker's
        last messages. On other channels the helper's report is the proof: it is the worker's parent."""
        key = died.lease, died.lane
        lease = self._ledger.lease_of(died.lease, died.generation)
        if lease is not None and died.renewal != lease.renewals.get(died.lane, 0):
            return  # another has taken its place
        link = self.links.get(key)
        if link is not None:
            if link.connection.death_fileno() < 0 and link.generation == died.generation:
                self._drain_messages(link)
            return
        if key in self.awaited and lease is not None:
            self._returning.lane_missing(key)
        else:
            self._book_loop.dispatch(events.WorkerLost(died.lease, died.lane, died.generation))

    def _drain_messages(self, link: LaneConnection) -> None:
        """Its process ended: handle the messages that have arrived, then count it as lost."""
        waiting = self._from_worker if link.memory is not None else self._lane_offer
        for _ in range(_LAST_MESSAGES):
            waiting(link)
            if not self.holds(link) or link.connection.has_ended():
                break
        self.worker_gone(link, "its process ended")

    def worker_gone(self, link: LaneConnection, why: str) -> None:
        """The worker's process ended, its channel broke, or it violated the protocol."""
        if self.links.get((link.lease, link.lane)) is not link:
            return
        logger.warning("worker of lease %d lane %d lost: %s", link.lease, link.lane, why, extra={"code": "worker_lost"})
        self._close_lane(link)
        if (link.lease, link.lane) in self.awaited:  # it reconnected, and was lost before its lane was back
            self._returning.lane_missing((link.lease, link.lane))
            return
        self._book_loop.dispatch(events.WorkerLost(link.lease, link.lane, link.generation))

    def copy_failed(self, link: LaneConnection, why: str) -> None:
        """A copy into or out of this lane failed. The lane is lost if no copy can succeed, or if its worker has ended.
        It is also lost if the channel cannot detect the worker's end: the job may then run elsewhere."""
        if link.memory is not None and not self._engine.reaches(link.memory):
            self.worker_gone(link, f"its memory cannot be reached: {why}")
        elif link.connection.death_fileno() < 0 or link.connection.has_ended():
            self.worker_gone(link, f"it may have ended: {why}")

    def dismiss_workers(self, number: int) -> None:
        """Notify the workers that their helper ends them; otherwise they would reconnect and be refused."""
        closing = control.encode(control.Closing(code="helper_ends", detail="the helper is shutting down"))
        for link in self.links.values():
            if self.helper_of(link.lease) == number:
                self.to_worker(link, closing)

    def drop_helper(self, number: int) -> None:
        """The helper of this number is gone, with all its workers and instances."""
        self._drop_leases(self.leases_of(number))

    def drop_gpu(self, number: int, gpu: str) -> None:
        """A GPU of the helper of this number is lost, with all workers and instances on it."""
        lost = {lease for lease in self.leases_of(number) if gpu in self.orders[lease].command.gpus}
        self._drop_leases(lost)

    def _drop_leases(self, leases: set[int]) -> None:
        copied = self._copies.leases()
        self._former = {lease: name for lease, name in self._former.items() if lease in copied}
        for lease in leases:
            if lease in copied:
                self._former[lease] = owner(self.orders[lease].command.gpu)
            self.awaited -= {key for key in self.awaited if key[0] == lease}
            self.end_order(lease)

    def _drop_lanes(self, lease: int) -> None:
        for link in [link for link in self.links.values() if link.lease == lease]:
            self._close_lane(link)

    def _close_lane(self, link: LaneConnection) -> None:
        self.links.pop((link.lease, link.lane), None)
        unwatch(link.connection)
        link.connection.close()
        self._reports.forget(link)
        if link.invitation is not None:
            link.invitation.close()
        if link.memory is not None:
            link.memory.close()

    def close(self) -> None:
        """Disconnect every worker."""
        for link in list(self.links.values()):
            self._close_lane(link)


def unwatch(connection: HostConnection) -> None:
    """Remove the connection from the loop."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(connection.fileno())
    if connection.death_fileno() >= 0:
        loop.remove_reader(connection.death_fileno())
